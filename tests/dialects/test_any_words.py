"""Whatever a command's words are: other words stay in order, a second time changes nothing, what is written is read."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import settings as of_a_test
from hypothesis import strategies as st

from rayguard.dialects import script, verl
from rayguard.dialects.dialect import Command
from rayguard.dialects.known import DIALECTS, dialect_of
from rayguard.errors import ConfigError

COMMANDS = {
    "EasyR1": "python3 -m verl.trainer.main",
    "verl": "python3 -m verl.trainer.main_ppo",
    "verl, V0": "python3 -m verl.trainer.main_ppo_v0",
    "OpenRLHF": "python3 -m openrlhf.cli.train_ppo_ray --colocate_all_models --vllm_num_engines 2",
    "OpenRLHF, dotted": "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --train.colocate_all --vllm.num_engines 2",
    "ms-swift": "swift rlhf --use_vllm true --vllm_mode colocate",
    "ms-swift on Megatron": "megatron rlhf --use_vllm true --vllm_mode colocate",
    "TRL": "trl grpo --use_vllm true --vllm_mode colocate",
    "TRL's script": "accelerate launch --num_processes 2 train.py --use_vllm true --vllm_mode colocate",
}
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "prompts": st.integers(1, 4096),
        "answers": st.integers(1, 16),
        "micro_update": st.integers(1, 64),
        "max_model_len": st.integers(1, 100_000),
        "max_num_seqs": st.integers(1, 1024),
        "max_num_batched_tokens": st.integers(1, 100_000),
        "gpu_memory_utilization": st.floats(0.05, 0.95).map(lambda share: round(share, 3)),
        "chunked_prefill": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
        "enforce_eager": st.booleans(),
        "tensor_parallel": st.integers(1, 16),
        "sleep": st.booleans(),
        "async_generate": st.booleans(),
        "model": st.text(
            st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="\\\"'"),
            min_size=1,
            max_size=9,
        ),
    },
)
OTHERS = st.lists(
    st.sampled_from(
        ["--other", "--flag=3", "mine.key=1", "+mine.more=[1,2]", "~gone", "-x", "--lr=-1e-6", "", "=", "é"]
    )
)
NONSENSE = st.lists(
    st.sampled_from(
        [
            *{word for line in COMMANDS.values() for word in line.split()},
            "trainer.save_freq=x",
            "trainer.save_checkpoint_path=${a}",
            "data.rollout_batch_size={",
            "config=",
            "--config",
            "--output_dir",
            "--save_steps",
            "--resume_from_checkpoint",
            "--vllm_engine_kwargs",
            "a\0b.py",
            "c.yaml",
            "-m",
            "==",
            "[",
        ]
    ),
    max_size=12,
)


@pytest.fixture(autouse=True)
def by_itself(monkeypatch):
    """Whatever is installed where the tests run."""
    monkeypatch.setattr(script, "package_folder", lambda _: None)
    monkeypatch.setattr(verl, "package_folder", lambda _: None)


def known(line, *words):
    """Return a command that is known, and its dialect."""
    command = Command(words=(*line.split(), *words))
    dialect = dialect_of(command)
    assert dialect is not None
    return command, dialect


@pytest.mark.parametrize(("name", "line"), COMMANDS.items(), ids=COMMANDS)
def test_a_command_is_of_one_framework(name, line):
    """By its module, program or script."""
    command, dialect = known(line)
    assert name.startswith(dialect.name)
    assert [one for one in DIALECTS if one.speaks(command)] == [dialect]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "python",
        "python train.py",
        "bash run.sh",
        "swift",
        "swift infer",
        "trl",
        "trl env",
        "vllm serve m",
    ],
)
def test_other_commands_are_of_none(line):
    """They are read as any script is."""
    assert dialect_of(Command(words=tuple(line.split()))) is None


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
@of_a_test(max_examples=30)
@given(settings=SETTINGS, others=OTHERS)
def test_what_is_written_is_read_back_and_nothing_else_is_touched(line, settings, others):
    """Each setting is written or refused; twice is as once."""
    command, dialect = known(line, *others)
    changed = dialect.with_settings(command, settings)
    job = dialect.settings(changed.command)
    taken = {name: value for name, value in settings.items() if name not in changed.refused}
    assert {name: getattr(job, name) for name in taken} == taken
    assert all(changed.refused.values()), "with a reason"
    again = dialect.with_settings(changed.command, settings)
    assert again.command == changed.command
    kept = iter(changed.command.words)
    assert all(word in kept for word in others), "in their order"
    assert len(changed.command.words) <= len(command.words) + 2 * len(settings)


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
@of_a_test(max_examples=20)
@given(others=OTHERS, every=st.integers(1, 1000))
def test_saving_leaves_other_words_alone(line, others, every):
    """As settings do; what it switches on is seen."""
    command, dialect = known(line, *others)
    changed = dialect.saving(command, every)
    kept = iter(changed.command.words)
    assert all(word in kept for word in others)
    place = dialect.checkpoints(changed.command)
    assert changed.refused or place is None or place.saves
    again = dialect.saving(changed.command, every)
    assert sorted(again.command.words) == sorted(changed.command.words)


@of_a_test(max_examples=80)
@given(NONSENSE)
def test_any_words_are_answered_or_a_clear_error(words):
    """Never another exception."""
    command = Command(words=tuple(words))
    dialect = dialect_of(command)
    if dialect is None:
        return
    for ask in (
        dialect.settings,
        dialect.checkpoints,
        lambda one: dialect.resumed(one, None),
        lambda one: dialect.saving(one, 5),
        lambda one: dialect.with_settings(
            one, {"chunked_prefill": False, "launcher": "accelerate", "gpus": 1}
        ),
    ):
        with contextlib.suppress(ConfigError):
            ask(command)


@of_a_test(max_examples=30)
@given(SETTINGS)
def test_what_is_written_wins_for_argparse(settings):
    """The parser that reads these options, with their types."""
    command, dialect = known(
        "trl grpo --vllm_mode colocate --num_generations 99 --vllm_max_model_length=7 --a b"
    )
    asked = {name: settings[name] for name in ("answers", "max_model_len", "sleep") if name in settings}
    parser = argparse.ArgumentParser()
    for name in ("num_generations", "vllm_max_model_length"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument(
        "--vllm_enable_sleep_mode", type=lambda text: {"true": True, "false": False}[text], nargs="?"
    )
    parser.add_argument("--vllm_mode")
    parser.add_argument("--a")
    found = parser.parse_args(dialect.with_settings(command, asked).command.words[2:])
    assert found.num_generations == asked.get("answers", 99)
    assert found.vllm_max_model_length == asked.get("max_model_len", 7)
    assert found.vllm_enable_sleep_mode == asked.get("sleep")
    assert (found.vllm_mode, found.a) == ("colocate", "b")


def test_no_framework_is_loaded_to_know_its_words():
    """Nor torch, Ray or vLLM."""
    code = (
        "import sys; from rayguard.dialects.dialect import Command; from rayguard.dialects.known import dialect_of\n"
        f"for line in {list(COMMANDS.values())!r}:\n"
        "    command = Command(words=tuple(line.split())); dialect_of(command).settings(command)\n"
        "print([name for name in ('ray', 'torch', 'vllm', 'trl', 'verl', 'swift', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['yaml']"
