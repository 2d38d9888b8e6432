"""Where token logs lie, and the removal of those whose writers are dead. Their content is ``token_log``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.process import kept

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.process.identity import ProcessId


def log_path(directory: Path, writer: ProcessId | None = None) -> Path:
    """Return where ``writer`` (the calling process by default) keeps its log; the name says who it is."""
    return kept.path_of(directory, "tokens", "log", writer)


def sweep(directory: Path, *, older_than_s: float = 600.0) -> list[Path]:
    """Remove the logs of writers that are provably dead (see ``rayguard.process.kept``), and return which.

    Whoever continues the requests of a dead writer needs the time after its death.
    """
    return kept.sweep(directory, "tokens", "log", older_than_s=older_than_s)
