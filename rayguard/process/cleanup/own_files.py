"""What dead processes left in rayguard's own home: token logs, flight recordings, notes, pages, kept states.

Token logs and recordings have their own ``owned_files.sweep``, in two passes: found dead, dead long enough.
What lies outside of the home is ``belongings``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.private import closed_after, open_private
from rayguard.process import owned_files
from rayguard.process.cleanup.belongings import ENDING as NOTE_ENDING
from rayguard.process.cleanup.belongings import KIND as NOTE
from rayguard.process.cleanup.belongings import read
from rayguard.process.cleanup.shm import held, shape
from rayguard.process.cleanup.verdict import Fate, Leftover, ProcessLife, Shape, Sort
from rayguard.process.identity import owner_mark, owner_of
from rayguard.process.pid_namespace import life_of, world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DAY_S = 86_400.0
_STATE_DAYS = 7
_PAGE = re.compile(r"\.?(\d{1,10}-\d{1,19})\.(?:json|tmp)")
_STATE = re.compile(r"[0-9a-f]{8,64}\.state")
_WRITING = re.compile(r"[0-9a-f]{8,64}-[0-9a-z_]{8}\.writing")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_PAGE_BYTES = 1 << 20


# Folder, kind and ending of the files that ``owned_files`` named, and how long those of the dead are of use.
SWEPT = (
    ("tokens", "tokens", "log", 600.0),  # who continues the requests has read them by then
    ("flight", "flight", "ring", _DAY_S),  # for who asks in the morning why it died at night
)


@dataclass(frozen=True, slots=True)
class Litter:
    """One file of the home, and where it is removed from."""

    shown: Leftover
    path: Path
    shape: Shape


def find(home: Path) -> list[Litter]:
    """Return the files of dead processes in ``home``, each with its verdict; changes nothing."""
    found: list[Litter] = []
    for part in (_pages, _states, _empty_notes):
        with contextlib.suppress(OSError):  # no such folder, or not ours to read: nothing is reaped there
            found.extend(part(home))
    return found


def remove(one: Litter, _deadline: float = 0.0) -> tuple[Fate, str]:
    """Remove one file whose fate is to be reaped, after looking at it again; say what became of it."""
    with (
        closed_after(open_private(one.path.parent)) as folder,
        closed_after(os.open(one.path.name, _OPEN, dir_fd=folder)) as file,
    ):
        found = os.fstat(file)
        if shape(found) != one.shape or not stat.S_ISREG(found.st_mode):
            return Fate.LEFT, "another file has the name now"
        if held(file) is not False:
            return Fate.LEFT, "somebody has it open"
        os.unlink(one.path.name, dir_fd=folder)
    return Fate.REAPED, one.shown.why


def sweep(home: Path, *, only_look: bool = False) -> list[Leftover]:
    """Remove the token logs and recordings whose time is over; of those found dead now it begins to run."""
    fate, why = Fate.REAP if only_look else Fate.REAPED, "its writer is dead, and nobody asked for it"
    found: list[Leftover] = []
    for folder, kind, ending, keep_s in SWEPT:
        with contextlib.suppress(OSError):
            # They are long and mostly holes: what counts is what lies on the disk.
            sizes = {path: path.lstat().st_blocks * 512 for path in _files(home / folder)}
            for path in owned_files.sweep(
                home / folder, kind, ending, older_than_s=keep_s, only_look=only_look
            ):
                writer, size = owned_files.writer_of(path.name, kind, ending), sizes.get(path, 0)
                mark = owner_mark(writer) if writer else ""
                found.append(
                    Leftover(sort=Sort.FILE, name=str(path), owner=mark, size_bytes=size, fate=fate, why=why)
                )
    return found


def _pages(home: Path) -> Iterator[Litter]:
    """Yield the status pages of processes that died more than a day ago."""
    for path in _files(home / "status"):
        match = _PAGE.fullmatch(path.name)
        owner = owner_of(match[1]) if match else None
        if owner is None or not _of_this_world(path) or life_of(owner, world()) is not ProcessLife.DEAD:
            continue
        found = path.lstat()
        old_s = time.time() - max(found.st_mtime, found.st_ctime)
        if found.st_uid == os.geteuid() and old_s > _DAY_S:
            why = "the page of a process that died more than a day ago"
            yield _litter(path, found, Fate.REAP, why, owner_mark(owner))


def _of_this_world(path: Path) -> bool:
    """Say whether the page was written in this boot and pid namespace; a torn page by its neighbour."""
    whole = path.with_name(path.name.removeprefix(".").replace(".tmp", ".json"))
    try:
        with whole.open("rb") as file:
            where = str(json.loads(file.read(_MAX_PAGE_BYTES))["world"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(where) and world().startswith(f"{where} ")


def _states(home: Path) -> Iterator[Litter]:
    """Yield the states that recycled actors left and nobody fetched."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for path in _files(home / "kept"):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            continue
        old_s = time.time() - max(found.st_mtime, found.st_ctime)
        if _WRITING.fullmatch(path.name) and old_s > _DAY_S:
            yield _litter(path, found, Fate.REAP, "half a state that nobody has written to for a day")
        elif _STATE.fullmatch(path.name):
            # Ray's node of that time is gone with the boot, and with it whoever could ask for it there.
            if old_s > _STATE_DAYS * _DAY_S and found.st_ctime < booted:
                why = f"older than this boot and than {_STATE_DAYS} days: nobody can fetch it"
                yield _litter(path, found, Fate.REAP, why)
            else:
                yield _litter(path, found, Fate.LEFT, "the next life of its actor may fetch it")


def _empty_notes(home: Path) -> Iterator[Litter]:
    """Yield the notes of dead owners of which nothing is left."""
    for path in _files(home / NOTE):
        owner = owned_files.writer_of(path.name, NOTE, NOTE_ENDING)
        if owner is None:
            continue
        note, found = read(path), path.lstat()
        # Of another container there is nothing that could be told from here.
        if note is None or note.world != world() or life_of(owner, note.world) is not ProcessLife.DEAD:
            continue
        if all(_is_missing(one.path) for one in note.belongings):
            why = "the note of a dead owner, of whose belongings nothing is left"
            yield _litter(path, found, Fate.REAP, why, owner_mark(owner))


def _is_missing(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _litter(path: Path, found: os.stat_result, fate: Fate, why: str, owner: str = "") -> Litter:
    size_bytes = found.st_blocks * 512
    shown = Leftover(sort=Sort.FILE, name=str(path), owner=owner, size_bytes=size_bytes, fate=fate, why=why)
    return Litter(shown, path, shape(found))
