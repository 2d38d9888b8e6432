"""EasyR1: its own ``main`` and trainer on the CPU, with workers under DDP and gloo in the place of FSDP and vLLM.

It is on no registry: ``EASYR1_SRC`` names a checkout of it, and without one this is skipped. What is run stands in
``tests/frameworks/worker_groups/checks_easyr1.py``.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.check_frameworks.answers import FaultAnswer, FrameworkAnswer
from tests.check_frameworks.by_path import is_bad, lines_of, problem
from tests.check_frameworks.environments import FrameworkEnvironment

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = "EASYR1_SRC"
PRELOADED = ", workers preloaded"
_SCRIPT = "tests/frameworks/worker_groups/checks_easyr1.py"
_RAN = (
    "verl.trainer.main and its trainer on the CPU, with RAYGUARD_PLUGIN='{}' and no more; workers under DDP and gloo in "
    "the place of FSDP and vLLM"
)
_PACKAGES = (
    "accelerate<1.12", "codetiming", "datasets<5", "omegaconf<2.4", "pandas", "peft==0.17.1", "pylatexenc",
    "tensordict", "torchdata", "wandb", "transformers>=4.54,<5", "huggingface_hub<1", "pillow", "einops",
    "torch==2.13.0", "pytest",
)  # fmt: skip


def skipped() -> str:
    """Say why there is nothing to run; '' if there is."""
    return "" if os.environ.get(SOURCE) else f"{SOURCE} is not set: no checkout of EasyR1"


def environment() -> FrameworkEnvironment:
    """Return what a checkout of EasyR1 needs."""
    return FrameworkEnvironment("easyr1", _PACKAGES)


def answered(python: Path) -> FrameworkAnswer:
    """Run the checks with the Python of that environment."""
    return read_lines(lines_of(python, _SCRIPT), _version(os.environ[SOURCE]))


def read_lines(lines: list[dict[str, object]], version: str) -> FrameworkAnswer:
    """Return what the printed lines come to; ``sums`` are those of the parameters after each update."""
    runs = {str(line.get("run")): line for line in lines}
    bare, guarded = (runs.get(f"no fault, {mode}", {}) for mode in ("bare", "guarded"))
    faults = [
        _fault(name, runs) for name in runs if _bare_of(name) in runs and not name.startswith("no fault")
    ]
    identical = bool(bare.get("sums")) and bare.get("sums") == guarded.get("sums")
    return FrameworkAnswer(
        version, _RAN, faults, identical, [problem(line) for line in lines if is_bad(line)]
    )


def _bare_of(name: str) -> str:
    """Return the name of the run without rayguard that a run with it stands beside."""
    return f"{name.removesuffix(PRELOADED)}, bare"


def _fault(name: str, runs: dict[str, dict[str, object]]) -> FaultAnswer:
    """Return one fault: its run with rayguard, beside the run of the same name that is bare."""
    bare, found = runs[_bare_of(name)], runs[name]
    took: list[float] = found.get("recover_s") or []  # type: ignore[assignment]
    return FaultAnswer(
        fault=name,
        bare=f"exit {bare['code']}: {_last_line(bare)}",
        survived=bool(found["holds"]),
        seconds=max(took) if took else found["seconds"],  # type: ignore[arg-type]
        ratio_to_restart=round(took[0] / bare["seconds"], 2) if took else None,  # type: ignore[operator]
        note="the longest recovery; the first, over the bare job from its launch to its end by the first death"
        if took
        else "the whole run",
    )


def _last_line(run: dict[str, object]) -> str:
    found = [line.strip() for line in str(run.get("said")).splitlines() if "Error" in line]
    return found[-1][:160] if found else "no error was printed"


def _version(folder: str) -> str:
    """Return the commit of a checkout."""
    done = subprocess.run(
        ["git", "-C", folder, "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() or "a checkout without git"
