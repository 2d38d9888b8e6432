"""``make check-frameworks``: the real packages of frameworks, struck by faults, bare and with rayguard.

Each framework has a module here with ``environment``, and either ``answered``, which is given the Python of that
environment, or ``checks``, which runs in it (``python -m tests.check_frameworks.NAME``, its last line JSON). One with
a reason in ``skipped`` is not run. The last line of all is JSON: for each framework ``version``, ``ran`` (which real
part), ``faults`` and ``no_fault_identical``, or ``skipped``. Ends with 1 where one is not as it should.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from tests.check_frameworks.answers import read
from tests.check_frameworks.environments import ROOT, python_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.check_frameworks.answers import FrameworkAnswer

FRAMEWORKS = ("trl", "trl_served", "verl", "verl_own_tests", "easyr1", "openrlhf", "swift", "swift_served")
_CHECK_S = 1800


def main() -> int:
    """Run as the command line says; return the exit code."""
    options = argparse.ArgumentParser(
        prog="python -m tests.check_frameworks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--only", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS, help="default: all")
    asked = options.parse_args()
    found = {name: _checked(name) for name in asked.only}
    print(json.dumps(found))
    return int(any(one["problems"] for one in found.values()))


def _checked(name: str) -> dict[str, object]:
    module = importlib.import_module(f"tests.check_frameworks.{name}")
    reason = module.skipped() if hasattr(module, "skipped") else ""
    if reason:
        print(f"{name}: skipped: {reason}", flush=True)
        return {"skipped": reason, "problems": []}
    wanted = module.environment()
    print(f"{name}: {', '.join(wanted.packages)}", flush=True)
    try:
        python = python_of(wanted)
        if hasattr(module, "answered"):
            found: FrameworkAnswer = module.answered(python)
            code, answer = int(not found.good), asdict(found)
        else:
            code, answer = _in_its_own(python, name)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return {"problems": [f"{type(error).__name__}: {error}"]}
    problems = list(answer.get("problems", ()))
    if code and not problems:
        problems = [f"it ended with {code}"]
    return {**answer, "problems": problems}


def _in_its_own(python: Path, name: str) -> tuple[int, dict[str, object]]:
    """Run a module's ``checks`` with that Python; return its exit code and what it answers."""
    done = subprocess.run(
        [str(python), "-m", f"tests.check_frameworks.{name}"],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_CHECK_S,
        check=False,
    )
    return done.returncode, read(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
