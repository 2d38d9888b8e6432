"""Small files of the node's agent in the node's home: that it is there, and what it must not forget.

A worker that wants to know whether its node has an agent looks here first: no question to Ray. Standard
library only, since every worker under the plugin does so.
"""

from __future__ import annotations

import contextlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING

from rayguard.home import AGENTS
from rayguard.private import read_regular, replace_file
from rayguard.process.identity import ProcessId
from rayguard.process.pid_namespace import world

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
    agent = {"pid": me.pid, "started": me.started, "world": world(), "version": version(), "url": url}
    save(home, f"{node_id}.json", agent)


def read(home: Path, node_id: str) -> dict[str, object]:
    """Return what the agent of the node said of itself; empty where it said nothing."""
    found = load(home, f"{node_id}.json")
    return found if isinstance(found, dict) else {}


def agent_lives(home: Path, node_id: str, wanted: str) -> bool:
    """Say whether the node has a living agent of this version, as far as can be told without Ray."""
    agent = read(home, node_id)
    if agent.get("version") != wanted or not world() or agent.get("world") != world():
        return False
    pid, started = agent.get("pid"), agent.get("started")
    return isinstance(pid, int) and isinstance(started, int) and ProcessId(pid, started).alive()


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


def save(home: Path, name: str, what: object) -> None:
    """Replace a file of the agent's in one step. Raises ``OSError``."""
    replace_file(home / AGENTS, name, json.dumps(what, allow_nan=False).encode())


def load(home: Path, name: str) -> object:
    """Return what was saved; None where nothing was, or where it cannot be read."""
    try:
        return json.loads(read_regular(home / AGENTS / name, _MAX_BYTES))
    except (OSError, ValueError):
        return None
