"""Small files of the node's agent in the node's home: that it is there, and what it must not forget.

A worker that wants to know whether its node has an agent looks here first: no question to Ray. Standard
library only, since every worker under the plugin does so.
"""

from __future__ import annotations

import contextlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rayguard.home import AGENTS
from rayguard.private import open_regular, replace_file
from rayguard.process.identity import ProcessId
from rayguard.process.world import world

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES = 16 << 20


@lru_cache(maxsize=1)
def version() -> str:
    """Return the version of rayguard that is installed here."""
    from importlib.metadata import version  # noqa: PLC0415 - to load it and to ask it takes milliseconds

    return version("rayguard")


def write(home: Path, node_id: str, *, url: str = "") -> None:
    """Say that the calling process is the agent of the node. Raises ``OSError``."""
    me = ProcessId.me()
    said = {"pid": me.pid, "started": me.started, "world": world(), "version": version(), "url": url}
    save(home, f"{node_id}.json", said)


def read(home: Path, node_id: str) -> dict[str, Any]:
    """Return what the agent of the node said of itself; empty where it said nothing."""
    found = load(home, f"{node_id}.json")
    return found if isinstance(found, dict) else {}


def there(home: Path, node_id: str, wanted: str) -> bool:
    """Say whether the node has a living agent of this version, as far as can be told without Ray."""
    said = read(home, node_id)
    if said.get("version") != wanted or not world() or said.get("world") != world():
        return False
    return ProcessId(int(said.get("pid", 0)), int(said.get("started", 0))).alive()


def last_at(home: Path, node_id: str) -> float | None:
    """Return when the node's agent last wrote one of its files (wall clock); None where it left none."""
    times = []
    for name in (f"{node_id}.json", f"{node_id}.known.json"):
        with contextlib.suppress(OSError):
            times.append((home / AGENTS / name).stat().st_mtime)
    return max(times, default=None)


def forget(home: Path, node_id: str) -> None:
    """Remove all files of the node's agent."""
    folder = home / AGENTS
    for name in (f"{node_id}.json", f"{node_id}.known.json", f"{node_id}.tried.json", "install.lock"):
        (folder / name).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:  # another node of this machine has its agent's files here, or it is gone
        return


def save(home: Path, name: str, what: Any) -> None:
    """Replace a file of the agent's in one step. Raises ``OSError``."""
    replace_file(home / AGENTS, name, json.dumps(what, allow_nan=False).encode())


def load(home: Path, name: str) -> Any:
    """Return what was saved; None where nothing was, or where it cannot be read."""
    try:
        file = open_regular(home / AGENTS / name)
        if file is None:
            return None
        with open(file, "rb") as stream:  # noqa: PTH123 - a descriptor
            return json.loads(stream.read(_MAX_BYTES))
    except (OSError, ValueError):
        return None
