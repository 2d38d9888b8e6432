"""verl's own tests of its single controller, bare and with the plugin on: all pass, both times.

They come with verl's own package. Of those that touch no CUDA device most are run; where they ask for GPUs, Ray is told that
there are some. One of ours beside them says that rayguard is there with the plugin, and only then (``verl_presence``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.check_frameworks import verl
from tests.check_frameworks.answers import FrameworkAnswer
from tests.check_frameworks.environments import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path("tests", "single_controller")
FILES = (
    "test_auto_padding_on_cpu.py",
    "test_colocated_workers.py",
    "test_colocated_workers_fused.py",
    "test_decorator_on_cpu.py",
    "test_fused_workers_on_cpu.py",
    "test_get_set_dispatch_collect_cpu.py",
    "test_ray_local_envs_on_cpu.py",
    "test_ray_utils_on_cpu.py",
)
PRESENCE = "test_rayguard_presence.py"
PLUGIN = {  # as docs/frameworks/verl.md has it
    "RAY_RUNTIME_ENV_PLUGINS": '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]',
    "RAY_RUNTIME_ENV_HOOK": "rayguard.cluster.driver.prepare",
    "RAYGUARD_PLUGIN": "{}",
}
PASSED = "passed"
_RESOURCES = '{"CPU": 100, "GPU": 4}'  # two of the files make a pool of 2 GPUs, and use none
_TESTS_S = 1500

environment = verl.environment


@dataclass(frozen=True)
class RunOfTests:
    """How each test ended, and how long all took."""

    outcomes: dict[str, str]
    seconds: float


def answered(python: Path) -> FrameworkAnswer:
    """Run the tests twice with the Python of that environment."""
    with tempfile.TemporaryDirectory(prefix="verl-tests-") as name:
        folder = Path(name)
        version = _laid_out(folder)
        return told(version, _run(python, folder, {}), _run(python, folder, PLUGIN))


def told(version: str, bare: RunOfTests, guarded: RunOfTests) -> FrameworkAnswer:
    """Return what the two runs come to: no fault was made, and each test is to pass in both."""
    every = sorted({*bare.outcomes, *guarded.outcomes})
    pairs = {
        test: (bare.outcomes.get(test, "not run"), guarded.outcomes.get(test, "not run")) for test in every
    }
    theirs = [test for test in every if PRESENCE.removesuffix(".py") not in test]
    ran = (
        f"{len(theirs)} of its own tests of its single controller, in {bare.seconds:.0f} s bare and {guarded.seconds:.0f} s "
        "with the plugin on, on the CPU"
    )
    problems = [
        f"{test}: bare {without}, with the plugin {under}"
        for test, (without, under) in pairs.items()
        if (without, under) != (PASSED, PASSED)
    ]
    if len(theirs) == len(every) or not theirs:
        problems.append("not all of what was to run has run")
    return FrameworkAnswer(
        version, ran, no_fault_identical=bare.outcomes == guarded.outcomes, problems=problems
    )


def _laid_out(folder: Path) -> str:
    """Put the tests into ``folder`` as they lie in verl's repository, with nothing else of it; return its version."""
    whole = folder / "whole"
    unpack(verl.VERL, whole)
    shutil.copytree(whole / FOLDER, folder / FOLDER)
    shutil.copy(whole / "tests" / "__init__.py", folder / "tests")
    shutil.copy(Path(__file__).with_name("verl_presence.py"), folder / FOLDER / PRESENCE)
    version = next(whole.glob("verl-*.dist-info")).name.removesuffix(".dist-info").partition("-")[2]
    shutil.rmtree(whole)  # its ``verl`` would be another than the installed one
    return version


def _run(python: Path, folder: Path, more: Mapping[str, str]) -> RunOfTests:
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAYGUARD", "RAY_RUNTIME_ENV"))
    }
    own = {
        "RAY_ADDRESS": "local",  # never a cluster that somebody else has started here
        "RAY_AUTH_MODE": "disabled",
        "RAY_OVERRIDE_RESOURCES": _RESOURCES,
        "RAYGUARD_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    files = [str(FOLDER / name) for name in (*FILES, PRESENCE)]
    began = time.monotonic()
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *files],
        cwd=folder, env={**kept, **own, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_TESTS_S, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    if not report.exists():
        return RunOfTests({"all": f"ended with {done.returncode}: {done.stdout[-500:]}"}, seconds)
    cases = ET.parse(report).iter("testcase")
    return RunOfTests({f"{one.get('classname')}.{one.get('name')}": _outcome(one) for one in cases}, seconds)


def _outcome(case: ET.Element) -> str:
    """Return ``passed``, or how else it ended and what was said."""
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return f"{kind}: {str(found.get('message'))[:200]}"
    return PASSED
