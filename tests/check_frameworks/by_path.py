"""Runs a file of checks by its path in a framework's environment, and reads the lines of JSON that it prints.

By path, since verl brings a package of its own called ``tests``, and a checkout of EasyR1 one called ``verl``.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from tests.check_frameworks.answers import FaultAnswer
from tests.check_frameworks.environments import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_CHECK_S = 3600
_SAID = 600  # characters of what a check that failed has said


def lines_of(python: Path, script: str) -> list[dict[str, object]]:
    """Return what the checks in ``script`` (a path in the repository) have printed, a dict for each line of JSON.

    Raises:
        subprocess.TimeoutExpired: They were not through within an hour.
    """
    done = subprocess.run(
        [str(python), str(ROOT / script)],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_CHECK_S,
        check=False,
    )
    found: list[dict[str, object]] = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    ]
    if done.returncode and not any(is_bad(line) for line in found):
        found.append({"check": script, "holds": False, "said": f"it ended with {done.returncode}"})
    return found


def is_bad(line: dict[str, object]) -> bool:
    """Say whether a line tells of something that is not as it should be."""
    return line.get("holds") is False or line.get("survived") is False


def problem(line: dict[str, object]) -> str:
    """Return a bad line as one sentence."""
    name = line.get("fault") or line.get("check") or line.get("run") or "a check"
    return f"{name}: {str(line.get('said') or 'not as it should be')[-_SAID:]}"


def fault_of(line: dict[str, object]) -> FaultAnswer:
    """Return a line of a fault as an answer: its keys are those of ``FaultAnswer``, and others."""
    names = FaultAnswer.__dataclass_fields__
    return FaultAnswer(**{name: value for name, value in line.items() if name in names})  # type: ignore[arg-type]
