"""What dead processes left in rayguard's own home: token logs, flight recordings, notes, pages, kept states.

The files named by ``kept`` are removed by its own ``sweep``, in two passes: found dead, dead for long enough.
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

from rayguard.private import open_private
from rayguard.process import kept
from rayguard.process.belongings import ENDING as NOTE_ENDING
from rayguard.process.belongings import KIND as NOTE
from rayguard.process.belongings import read
from rayguard.process.identity import owner_mark, owner_of
from rayguard.process.leftovers import Fate, Leftover, Life, Shape, Sort
from rayguard.process.shm import held, shape
from rayguard.process.world import life_of, world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DAY_S = 86_400.0
_STATE_DAYS = 7
_FOUND_DEAD = 0o400  # as ``kept`` marks a file whose writer it found dead
_PAGE = re.compile(r"\.?(\d{1,10}-\d{1,19})\.(?:json|tmp)")
_STATE = re.compile(r"[0-9a-f]{8,64}\.state")
_WRITING = re.compile(r"[0-9a-f]{8,64}-[0-9a-z_]{8}\.writing")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_PAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder of the home with files that ``kept`` named, and how long those of the dead are of use."""

    folder: str
    kind: str
    ending: str
    keep_s: float


SHELVES = (
    Shelf("tokens", "tokens", "log", 600.0),  # who continues the requests has read them by then
    Shelf("flight", "flight", "ring", _DAY_S),  # for who asks in the morning why it died at night
)


@dataclass(frozen=True, slots=True)
class Litter:
    """One file of the home, and where it is removed from."""

    shown: Leftover
    path: Path
    shape: Shape
    shelf: Shelf | None = None


def find(home: Path) -> list[Litter]:
    """Return the files of dead processes in ``home``, each with its verdict; changes nothing."""
    found: list[Litter] = []
    for part in (_on_shelves, _pages, _states, _empty_notes):
        with contextlib.suppress(OSError):  # no such folder, or not ours to read: nothing is reaped there
            found.extend(part(home))
    return found


def remove(one: Litter) -> tuple[Fate, str]:
    """Remove one file whose fate is to be reaped, after looking at it again; say what became of it."""
    if one.shelf is not None:
        return _swept(one)
    folder = open_private(one.path.parent)
    try:
        file = os.open(one.path.name, _OPEN, dir_fd=folder)
        try:
            found = os.fstat(file)
            if shape(found) != one.shape or not stat.S_ISREG(found.st_mode):
                return Fate.LEFT, "another file has the name now"
            if held(file) is not False:
                return Fate.LEFT, "somebody has it open"
            os.unlink(one.path.name, dir_fd=folder)
        finally:
            os.close(file)
    finally:
        os.close(folder)
    return Fate.REAPED, one.shown.why


def _swept(one: Litter) -> tuple[Fate, str]:
    assert one.shelf is not None
    gone = kept.sweep(one.path.parent, one.shelf.kind, one.shelf.ending, older_than_s=one.shelf.keep_s)
    if one.path in gone or not one.path.exists():
        return Fate.REAPED, one.shown.why
    return Fate.LEFT, "its lock is held"


def mark_the_dead(home: Path) -> None:
    """Let ``kept`` find out whose writers are dead: from then on their time runs."""
    for shelf in SHELVES:
        with contextlib.suppress(OSError):
            kept.sweep(home / shelf.folder, shelf.kind, shelf.ending, older_than_s=shelf.keep_s)


def _on_shelves(home: Path) -> Iterator[Litter]:
    for shelf in SHELVES:
        for path in _files(home / shelf.folder):
            writer = kept.writer_of(path.name, shelf.kind, shelf.ending)
            if writer is None or life_of(writer, world()) is not Life.DEAD:
                continue
            found = path.lstat()
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            left_s = shelf.keep_s - (time.time() - found.st_mtime)
            if not ours:
                fate, why = Fate.LEFT, "not a file of ours"
            elif stat.S_IMODE(found.st_mode) != _FOUND_DEAD:
                fate, why = Fate.LEFT, f"its writer is dead; kept for another {_duration(shelf.keep_s)}"
            elif left_s > 0:
                fate, why = Fate.LEFT, f"its writer is dead; kept for another {_duration(left_s)}"
            else:
                fate, why = Fate.REAP, "its writer is dead, and nobody asked for it"
            yield _litter(path, found, fate, why, owner_mark(writer), shelf)


def _pages(home: Path) -> Iterator[Litter]:
    """Yield the status pages of processes that died more than a day ago."""
    for path in _files(home / "status"):
        match = _PAGE.fullmatch(path.name)
        owner = owner_of(match[1]) if match else None
        if owner is None or not _written_here(path) or life_of(owner, world()) is not Life.DEAD:
            continue
        found = path.lstat()
        old_s = time.time() - max(found.st_mtime, found.st_ctime)
        if found.st_uid == os.geteuid() and old_s > _DAY_S:
            why = "the page of a process that died more than a day ago"
            yield _litter(path, found, Fate.REAP, why, owner_mark(owner))


def _written_here(path: Path) -> bool:
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
                fate, why = (
                    Fate.REAP,
                    f"older than this boot and than {_STATE_DAYS} days: nobody can fetch it",
                )
            else:
                fate, why = Fate.LEFT, "the next life of its actor may fetch it"
            yield _litter(path, found, fate, why)


def _empty_notes(home: Path) -> Iterator[Litter]:
    """Yield the notes of dead owners of which nothing is left."""
    for path in _files(home / NOTE):
        owner = kept.writer_of(path.name, NOTE, NOTE_ENDING)
        if owner is None:
            continue
        note, found = read(path), path.lstat()
        # Of another container there is nothing that could be told from here.
        if note is None or note.world != world() or life_of(owner, note.world) is not Life.DEAD:
            continue
        if all(_gone(one.path) for one in note.belongings):
            why = "the note of a dead owner, of whose belongings nothing is left"
            yield _litter(path, found, Fate.REAP, why, owner_mark(owner))


def _gone(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _litter(
    path: Path, found: os.stat_result, fate: Fate, why: str, owner: str = "", shelf: Shelf | None = None
) -> Litter:
    # Token logs and recordings are long and mostly holes: what counts is what lies on the disk.
    size_bytes = found.st_blocks * 512
    shown = Leftover(sort=Sort.FILE, name=str(path), owner=owner, size_bytes=size_bytes, fate=fate, why=why)
    return Litter(shown, path, shape(found), shelf)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 2 * 3600 else f"{max(1.0, seconds / 60):.0f} min"
