"""Run the programs of the pages, each in a process, a folder and an environment of its own, on real Ray."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.as_printed.pages import Program

# What our own tests set, so that engines share two cores: a reader has none of it.
_OURS = ("HF_", "OMP_", "PYTEST", "PYTHON", "RAY", "VLLM_")
_TAIL = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a program: blocks that ran to their end, and what the first one that did not says."""

    blocks: int
    blocks_ok: int
    said: str = ""

    @property
    def ok(self) -> bool:
        return self.blocks == self.blocks_ok


def run(program: Program, folder: Path, *, python: Path, deadline_s: float) -> Run:
    """Run ``program`` with ``python`` in the empty ``folder``, which is its home too.

    Ray's folder is its own as well: in the common one it finds the clusters of other tests, and joins them.
    """
    file = folder / "page.py"
    file.write_text(program.source, encoding="utf-8")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    own = {"HOME": str(folder), "PATH": f"{python.parent}:{bare['PATH']}"}
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as rays:
        process = subprocess.Popen(
            [python, "-u", file],
            cwd=folder,
            env=bare | own | {"RAY_TMPDIR": rays} | program.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        said = _said(process, deadline_s)
    count = len(program.blocks)
    if process.returncode == 0:
        return Run(blocks=count, blocks_ok=count, said=said)
    return Run(blocks=count, blocks_ok=_done(program, said), said=said[-_TAIL:])


def _said(process: subprocess.Popen[str], deadline_s: float) -> str:
    """Wait for the end of a program; return what it has said."""
    try:
        return process.communicate(timeout=deadline_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # its traceback says where it stood
        try:
            said = process.communicate(timeout=30)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[0]
    return f"{said}\nstill ran after {deadline_s:.0f} s"


def _done(program: Program, said: str) -> int:
    """Say how many blocks ran to their end, by the line of the page that the traceback names first."""
    lines = re.findall(r'File "[^"]*page\.py", line (\d+), in <module>', said)
    if not lines:
        return 0
    return sum(block.line <= int(lines[-1]) for block in program.blocks) - 1
