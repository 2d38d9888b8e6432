"""Where rayguard keeps its state, for those who cannot wait for the settings.

``rayguard.config`` says the same and checks it; loading that takes a third of a second and 10 MB, which no
actor pays that has nothing to tell.
"""

from __future__ import annotations

import os
from pathlib import Path

AGENTS = "agents"  # the folder in it that is there as long as the node has an agent
VARIABLE = "RAYGUARD_HOME"


def home() -> Path:
    """Return what ``rayguard.config.Settings().home`` is."""
    said = next((value for name, value in os.environ.items() if name.upper() == VARIABLE and value), "")
    return Path(os.path.expanduser(said)).absolute() if said else default_home()  # noqa: PTH111 - as below


def default_home() -> Path:
    """Return ``$XDG_STATE_HOME/rayguard`` or ``~/.local/state/rayguard``; creates nothing.

    Where that cannot be written (no home, read-only, another user's), it is ``<tmp>/rayguard-<uid>``.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    home = Path(os.path.expanduser(state)) / "rayguard"  # noqa: PTH111 - Path.expanduser raises without a home
    if _could_write(home):
        return home
    import tempfile  # noqa: PLC0415 - 5 ms that hardly anybody needs

    return Path(tempfile.gettempdir()) / f"rayguard-{os.getuid()}"


def _could_write(home: Path) -> bool:
    """Say whether ``home`` is ours to write, or could be made."""
    if not home.is_absolute():
        return False
    try:
        if home.exists():
            return home.stat().st_uid == os.getuid() and os.access(home, os.W_OK | os.X_OK)
        nearest = next(parent for parent in home.parents if parent.exists())
    except OSError:  # a parent that may not be searched, a symlink loop
        return False
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
