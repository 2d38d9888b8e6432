"""A fuse: a file that makes one process fail once, lit from another one.

Who unlinks it, burns it, and leaves ashes that prove when and where. What fails then is
``rayguard.testing.scheduler`` (vLLM's scheduler); that module imports vLLM, this one does not.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_KEY = "rayguard_fuse"


def fused(path: Path) -> dict[str, object]:
    """Return the vLLM engine arguments that put a fuse at ``path`` into the engine's scheduler."""
    return {
        "scheduler_cls": "rayguard.testing.scheduler.FusedScheduler",
        "additional_config": {CONFIG_KEY: str(path)},
    }


@dataclass(frozen=True, slots=True)
class Fuse:
    """The file at ``path``. Invariant: however many processes watch it, it burns once per lighting."""

    path: Path

    @property
    def _ashes(self) -> Path:
        return self.path.with_suffix(".burnt")

    def light(self, *, after: int = 1) -> None:
        """Let the ``after``-th call from now fail."""
        self._ashes.unlink(missing_ok=True)
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps({"after": after}), encoding="utf-8")
        draft.replace(self.path)  # in one move: nobody ever reads half a fuse

    def calls_left(self) -> int | None:
        """Return the number the fuse was lit with, or None when it is not lit."""
        try:
            return int(json.loads(self.path.read_text(encoding="utf-8"))["after"])
        except FileNotFoundError:
            return None

    def burn(self) -> bool:
        """Use the fuse up; only one process ever gets True."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        draft = self.path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"at": time.time(), "pid": os.getpid()}), encoding="utf-8")
        draft.replace(self._ashes)
        return True

    def burnt(self) -> tuple[float, int] | None:
        """Return when (wall clock) and in which process it burnt, or None."""
        try:
            ashes = json.loads(self._ashes.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return float(ashes["at"]), int(ashes["pid"])
