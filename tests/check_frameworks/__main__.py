"""``make check-frameworks``: the real packages of frameworks, struck by faults, bare and with rayguard.

Each framework has a module here with ``environment``, and ``checks``, which runs in that environment (as
``python -m tests.check_frameworks.NAME``, its last line JSON). The last line of all is JSON: for each framework
``version``, ``ran`` (which real part), ``faults`` and ``no_fault_identical``. Ends with 1 where one is not as it should.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys

from tests.check_frameworks.answers import read
from tests.check_frameworks.environments import ROOT, python_of

FRAMEWORKS = ("trl", "trl_served", "openrlhf")
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
    wanted = importlib.import_module(f"tests.check_frameworks.{name}").environment()
    print(f"{name}: {', '.join(wanted.packages)}", flush=True)
    try:
        python = python_of(wanted)
        command = [str(python), "-m", f"tests.check_frameworks.{name}"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_CHECK_S,
            check=False,
        )
        answer = read(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return {"problems": [f"{type(error).__name__}: {error}"]}
    problems = list(answer.get("problems", ()))  # type: ignore[call-overload]
    if done.returncode and not problems:
        problems = [f"it ended with {done.returncode}"]
    return {**answer, "problems": problems}


if __name__ == "__main__":
    sys.exit(main())
