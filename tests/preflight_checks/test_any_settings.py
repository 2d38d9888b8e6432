"""Whatever is given to preflight: a report in seconds, or one ConfigError; never anything else."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rayguard
from rayguard.dialects.job_settings import JobSettings
from rayguard.errors import ConfigError
from rayguard.preflight_checks.machine import MachineFacts

NAMES = [one.name for one in dataclasses.fields(JobSettings) if one.name != "spelled"]
ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(0, 9), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(0, 70_000), max_size=3)
)
FITTING = {
    "int": st.integers(1, 10_000),
    "float": st.floats(0, 2),
    "bool": st.booleans(),
    "str": st.sampled_from(
        ["nccl", "gloo", "server", "colocate", "0,1", "1", "EasyR1", "OpenRLHF", "python"]
    ),
    "Mapping[str, int]": st.dictionaries(st.text(max_size=3), st.integers(0, 65_535), max_size=4),
    "tuple[int, int]": st.tuples(st.integers(0, 30_000), st.integers(30_000, 65_535)),
}
LARGE = st.integers(1, 100_000_000)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        one.name: LARGE if one.name.endswith("tokens") else FITTING[str(one.type).removesuffix(" | None")]
        for one in dataclasses.fields(JobSettings)
        if one.name in NAMES
    },
)
WORDS = st.sampled_from(
    [
        "python",
        "python3",
        "-m",
        "verl.trainer.main",
        "openrlhf.cli.train_ppo_ray",
        "torchrun",
        "ray",
        "start",
        "swift",
        "vllm",
        "serve",
        "env",
        "x.py",
        "A=1",
        "CUDA_VISIBLE_DEVICES=0,,1",
        "--",
        "---",
        "--head",
        "--port",
        "70000",
        "-1",
        "--master_port=x",
        "--vllm_mode",
        "server",
        "--vllm_server_base_url=http://[::1]:8/x",
        "--vllm_num_engines",
        "--vllm.num_engines=2",
        "--colocate_all_models",
        "data.rollout_batch_size=7",
        "trainer.n_gpus_per_node={",
        "worker.rollout.n=[1]",
        "config=",
        "=",
        "",
    ]
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A machine that is the same everywhere."""

    def machine(environment):
        return MachineFacts(gpus=2, gpus_here=2, gpu_bytes=1 << 34, memory=1 << 36, environment=environment)

    monkeypatch.setattr("rayguard.preflight_checks.report.this_machine", machine)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def asked(*given, **options):
    """Return the report, None for a ConfigError."""
    begun = time.monotonic()
    report = None
    with contextlib.suppress(ConfigError):
        report = rayguard.preflight(*given, **options)
    assert time.monotonic() - begun < 20, "a busy machine's; it takes milliseconds"
    return report


@settings(max_examples=60)
@given(LIKELY)
def test_settings_that_could_be(settings):
    """Also numbers that nobody has."""
    report = asked(**settings)
    assert report is not None
    assert all(one.message for one in report.findings)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(NAMES), ODD, max_size=5))
def test_settings_that_could_not_be(settings):
    """Of any type."""
    asked(**settings)


@settings(max_examples=80)
@given(st.lists(WORDS, max_size=9))
def test_commands_of_any_words(words):
    """In any order."""
    asked(words)
