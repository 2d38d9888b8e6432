"""What the processes of an engine use outside of themselves, noted while they live: the proof for later.

A name like ``psm_0b0e5ad5`` says nothing about whose it is, and a dead process can no longer be asked. So its
owner notes what its engine's processes hold when the engine is up: one small file for each owner,
``<home>/belongings/belongings-<boot>-<pid>-<started>.json``. What was noted is reaped by ``reaper``.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.private import open_regular, replace_file
from rayguard.process import owned_files
from rayguard.process.cleanup import shm
from rayguard.process.cleanup.verdict import Shape, Sort
from rayguard.process.identity import ProcessId, owner_mark, owner_of
from rayguard.process.pid_namespace import world

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KIND, ENDING = "belongings", "json"
_MAX_BYTES = 1 << 20
_MAX_NOTED = 1_000  # by one owner: an engine has about ten
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Belonging:
    """One file, and the processes (their marks) that used it."""

    sort: Sort
    path: str
    shape: Shape
    users: tuple[str, ...]

    def identities(self) -> tuple[ProcessId | None, ...]:
        """Return who used it; None for a text that names no process."""
        return tuple(owner_of(mark) for mark in self.users)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerNote:
    """What one owner has noted. ``world`` is where its pid and those of the users mean something."""

    owner: ProcessId
    world: str
    belongings: tuple[Belonging, ...]


def note(processes: Sequence[ProcessId], home: Path) -> tuple[Belonging, ...]:
    """Note what ``processes``, an engine of this process, use now, beside what was noted before; return all.

    To be called when the engine is up, before it serves: what somebody hands to it later is not its own.
    Files that are gone are forgotten, and a process that may not be asked is passed over. Takes 25 ms.

    Raises:
        OSError: The note cannot be written.
    """
    found = tuple(_used_by(processes))
    with _lock:
        before = read(path_of(home))
        known = {} if before is None else {one.path: one for one in before.belongings}
        known.update({one.path: _merged(known.get(one.path), one) for one in found})
        kept = tuple(one for one in known.values() if _still(one))[-_MAX_NOTED:]
        write(home, OwnerNote(owner=ProcessId.me(), world=world(), belongings=kept))
    return kept


def unlink_own(owner: ProcessId, home: Path) -> None:
    """Take away the names of the shared memory of an engine, by one of its processes; ``owner`` is dead.

    As Python's resource tracker does at the end of an owner, where Ray does not end the tracker too. Also
    what only others of its processes used: the first that goes takes the others along, before they can.
    Whoever maps it keeps it. Raises ``OSError``.
    """
    mine, found = owner_mark(ProcessId.me()), read(path_of(home, owner))
    if found is None or found.owner != owner or found.world != world():
        return
    if not any(mine in one.users for one in found.belongings):
        return
    for one in found.belongings:
        if one.sort is Sort.SEGMENT and one.users and Path(one.path).exists() and _still(one):
            Path(one.path).unlink(missing_ok=True)


def path_of(home: Path, owner: ProcessId | None = None) -> Path:
    """Return where ``owner`` (the calling process by default) has its note."""
    return owned_files.path_of(home / KIND, KIND, ENDING, owner)


def _used_by(processes: Sequence[ProcessId]) -> Iterator[Belonging]:
    me = ProcessId.me()
    users: dict[tuple[Sort, Path], list[ProcessId]] = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for path in shm.mapped_segments(process):
                users.setdefault((Sort.SEGMENT, path), []).append(process)
    # The owner has sockets of its own to its engine. Not its shared memory: that is the user's.
    for process in (*processes, me):
        with contextlib.suppress(OSError):
            for path in shm.bound_sockets(process):
                users.setdefault((Sort.SOCKET, path), []).append(process)
    with contextlib.suppress(OSError):
        for path in shm.rendezvous_files(processes, Path(tempfile.gettempdir())):
            users[Sort.RENDEZVOUS, path] = list(processes)
    mine = set(shm.mapped_segments(me))
    earliest = min((_started_ns(p) for p in processes), default=0)
    for (sort, path), used in users.items():
        with contextlib.suppress(OSError):
            found = shm.shape(os.lstat(path), shm.born_ns(str(path)))
            if path in mine or (sort is Sort.SEGMENT and (found.born_ns or found.changed_ns) < earliest):
                continue  # the owner's own, given to the engine
            marks = tuple(owner_mark(process) for process in used)
            yield Belonging(sort=sort, path=str(path), shape=found, users=marks)


def _started_ns(process: ProcessId) -> int:
    """Return the wall time of a process's start, a second early: two clocks and ticks of 10 ms meet here."""
    return int((time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.started_s - 1.0) * 1e9)


def _merged(old: Belonging | None, new: Belonging) -> Belonging:
    if old is None or not new.shape.still_is(old.shape, new.sort):
        return new
    users = tuple(dict.fromkeys((*old.users, *new.users)))
    return Belonging(sort=new.sort, path=new.path, shape=new.shape, users=users)


def _still(one: Belonging) -> bool:
    try:
        return shm.shape(os.lstat(one.path), shm.born_ns(one.path)).still_is(one.shape, one.sort)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def write(home: Path, new: OwnerNote) -> None:
    """Put a note in the place of its owner's last one; raises ``OSError``."""
    content = json.dumps(
        {
            "owner": owner_mark(new.owner),
            "world": new.world,
            "belongings": [asdict(one) | {"sort": one.sort.value} for one in new.belongings],
        }
    ).encode()
    path = path_of(home, new.owner)
    replace_file(path.parent, path.name, content)


def notes(home: Path) -> list[OwnerNote]:
    """Return the notes of all owners of this boot, living and dead; what is no note of ours is skipped."""
    try:
        names = sorted(os.listdir(home / KIND))  # noqa: PTH208 - names only
    except (FileNotFoundError, NotADirectoryError):
        return []
    owners = ((name, owned_files.writer_of(name, KIND, ENDING)) for name in names)
    found = ((read(home / KIND / name), owner) for name, owner in owners if owner is not None)
    return [one for one, owner in found if one is not None and one.owner == owner]


def read(path: Path) -> OwnerNote | None:
    """Return the note at ``path``; None when there is none, or it is torn, foreign or another user's."""
    try:
        file = open_regular(path)
    except OSError:
        return None
    if file is None:
        return None
    with os.fdopen(file, "rb") as stream:
        if os.fstat(file).st_uid != os.geteuid():
            return None
        content = stream.read(_MAX_BYTES)
    try:
        return _note(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _note(data: dict[str, Any]) -> OwnerNote | None:
    owner = owner_of(str(data["owner"]))
    if owner is None:
        return None
    belongings = tuple(_belonging(one) for one in data["belongings"][:_MAX_NOTED])
    return OwnerNote(owner=owner, world=str(data["world"]), belongings=belongings)


def _belonging(data: dict[str, Any]) -> Belonging:
    numbers = {name: int(value) for name, value in data["shape"].items()}
    return Belonging(
        sort=Sort(data["sort"]),
        path=str(data["path"]),
        shape=Shape(**numbers),
        users=tuple(str(mark) for mark in data["users"]),
    )
