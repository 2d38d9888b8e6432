"""Small programs that stand where frameworks would: each life writes down its words and does what a story says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

DEADLINE_S = 120
PROGRAM = """\
import json, os, sys, time
from pathlib import Path

book = Path(os.environ["BOOK"])
life = len(book.read_text().splitlines()) if book.exists() else 0
words = sys.argv[1:]
with book.open("a") as file:
    file.write(json.dumps({"program": Path(sys.argv[0]).name, "words": words, "env": dict(os.environ)}) + "\\n")


def fail(text, code=1):
    print(text, file=sys.stderr, flush=True)
    sys.exit(code)


exec(os.environ.get("STORY", ""))
"""


def gone(pid: int) -> bool:
    """Wait until a process is dead."""
    deadline = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.05)
    return True


class Stage:
    """A folder with programs, a book of their lives, and a home of rayguard's own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.book = folder / "book"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.script = self.put("train.py")
        self.swift = self.put("bin/swift", first=f"#!{sys.executable}\n")
        self.swift.chmod(0o755)
        for module in ("verl/trainer/main.py", "accelerate/commands/launch.py"):
            inner = self.put(module).parent
            (inner / "__init__.py").touch()
            (inner.parent / "__init__.py").touch()

    def put(self, name: str, first: str = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(first + PROGRAM)
        return path

    def environment(self, **more: str) -> dict[str, str]:
        """A bare one, so that nothing of the machine that tests decides."""
        kept = {
            name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", "VIRTUAL_ENV") if name in os.environ
        }
        return {
            **kept,
            "PATH": f"{self.bin}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder),
            "RAYGUARD_HOME": str(self.folder / "home"),
            "BOOK": str(self.book),
            **more,
        }

    def run(self, *words, story: str = "", options=(), **more):
        """Run ``rayguard run`` in this folder, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "rayguard", "run", *map(str, options), "--", *map(str, words)],
            cwd=self.folder,
            env=self.environment(STORY=story),
            timeout=DEADLINE_S,
            check=False,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )

    def start(self, *words, story: str = "", options=(), **more):
        """Start the same, and return at once."""
        return subprocess.Popen(
            [sys.executable, "-m", "rayguard", "run", *map(str, options), "--", *map(str, words)],
            cwd=self.folder,
            env=self.environment(STORY=story),
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )

    def easyr1(self, *words, **more):
        """Run what is EasyR1 to rayguard."""
        return self.run(sys.executable, "-m", "verl.trainer.main", *words, **more)

    def lives(self):
        return [json.loads(line) for line in self.book.read_text().splitlines()] if self.book.exists() else []

    def incidents(self):
        """What stands in the journal, each in its last state."""
        from rayguard.recovery.journal import Journal

        return Journal(self.folder / "home").read()
