"""Ray's own files of the processes that a text names, where they lie on this machine.

A driver's text often says only that a worker died or that its engine did not start; why stands in the
worker's file of the session. A pid may be used again by another machine or a later session, so that a file
counts only where the text's address, if it has one, is of this machine, and where the file's actor, if both
name one, is the text's. What opens files is ``rayguard.logs.files``.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.faults.diagnosis import Kind
from rayguard.logs.files import LogFile, find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rayguard.faults.scene import Scene
    from rayguard.logs.many_files import Across
    from rayguard.logs.report import Report

MAX_FILES = 16
_HEAD_BYTES = 4_096
_ACTOR = re.compile(rb"^:actor_name:(\S{1,120})", re.MULTILINE)
_RAYS = Path("/tmp/ray")  # noqa: S108 - Ray's own folder


# Kinds that say what somebody saw of a process, not what happened in it.
_SEEN_FROM_OUTSIDE = frozenset(
    {
        Kind.ACTOR_DIED,
        Kind.ACTOR_UNAVAILABLE,
        Kind.ENGINE_DEAD,
        Kind.ENGINE_HANG,
        Kind.ENGINE_INIT_FAILED,
        Kind.GET_TIMEOUT,
        Kind.UNKNOWN,
        Kind.USER_CODE,
        Kind.WEIGHT_SYNC_FAILED,
    }
)


def read_on(across: Across, files: Sequence[LogFile], notes: list[str], told: Report) -> Report:
    """Return what the workers' own files say, where ``told`` has no cause and they lie here; or ``told``."""
    if not told.causeless or told.diagnosis.kind not in _SEEN_FROM_OUTSIDE:
        return told
    try:
        more = find([str(path) for path in worker_files(across.scene)]).files
    except ConfigError:  # it went meanwhile
        return told
    known = {file.path.resolve() for file in files if file.path is not None}
    more = [file for file in more if file.path is not None and file.path.resolve() not in known]
    if not more:
        return told
    fuller = across.diagnose(more, notes)
    if fuller.causeless or not fuller.evidence:
        notes.append(f"{more[0].name}: read, it says no more")
        return told
    notes.append(f"{more[0].name}: read too, because the text says only what others saw of that process")
    return fuller


def worker_files(scene: Scene) -> list[Path]:
    """Return the files of the workers that ``scene`` names, of the newest session that has them."""
    here = _own_addresses()
    wanted = {**scene.gone, **scene.processes}
    pids = [pid for pid, address in wanted.items() if not address or address in here]
    for folder in _sessions(scene):
        found = [file for pid in pids for file in _of(folder, pid) if _is_of(file, scene)]
        if found:
            return found[:MAX_FILES]
    return []


def _sessions(scene: Scene) -> Iterator[Path]:
    """Yield the folders of logs: of the sessions that the text names, then of this machine, newest first."""
    named = [Path(session) / "logs" for session in scene.sessions]
    roots = dict.fromkeys((Path(os.environ.get("RAY_TMPDIR", "")) / "ray", _RAYS))
    of_machine: list[Path] = []
    for root in roots:
        with suppress(OSError):
            of_machine += [one / "logs" for one in root.glob("session_2*")]
    yield from (one for one in named if one.is_dir())
    yield from sorted(of_machine, key=lambda one: one.parent.name, reverse=True)


def _of(folder: Path, pid: str) -> list[Path]:
    with suppress(OSError):
        files = sorted(folder.glob(f"worker-*-{pid}.err")) + sorted(folder.glob(f"worker-*-{pid}.out"))
        return [file for file in files if file.is_file() and file.stat().st_size]
    return []


def _is_of(file: Path, scene: Scene) -> bool:
    """Say whether the actor whose file it is may be one of the text's."""
    try:
        with file.open("rb") as opened:
            named = _ACTOR.search(opened.read(_HEAD_BYTES))
    except OSError:
        return False
    actor = named[1].decode("utf-8", "replace").partition("(")[0] if named else ""
    return not actor or not scene.actors or actor in scene.actors


def _own_addresses() -> set[str]:
    import psutil  # noqa: PLC0415 - only where a worker's file is looked for

    addresses = {one.address for ones in psutil.net_if_addrs().values() for one in ones}
    return addresses | {"127.0.0.1", "localhost"}
