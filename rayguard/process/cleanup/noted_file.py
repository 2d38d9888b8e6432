"""A file that was noted while its engine lived (``belongings``), as it is now: judged, and removed.

Looked at, asked about and removed through one open directory, so that a path that is changed meanwhile
leads nowhere else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.private import closed_after
from rayguard.process.cleanup import shm
from rayguard.process.cleanup.verdict import (
    Fate,
    FileFacts,
    Leftover,
    ProcessLife,
    Shape,
    Sort,
    judge_file,
    why_not_file,
)
from rayguard.process.identity import owner_mark
from rayguard.process.pid_namespace import life_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rayguard.process.cleanup.belongings import Belonging, OwnerNote

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Remains:
    """One noted file. ``asked_by_owner``: by the living owner, after it ended the engine."""

    def __init__(self, one: Belonging, note: OwnerNote, *, asked_by_owner: bool = False) -> None:
        self._one = one
        self._note = note
        self._asked_by_owner = asked_by_owner
        self._path = Path(one.path)

    def shown(self, *, explain: bool) -> Leftover:
        """Return it with its verdict; ``explain`` also finds who holds it, which takes a while."""
        size_bytes, fate, why = 0, Fate.LEFT, "gone"
        try:
            with self._folder() as folder:
                found = self._stat(folder)
                # What lies in memory or on the disk, not what is only reserved.
                size_bytes = 0 if found is None else found.st_blocks * 512
                fate, why = self._judged(folder, found, explain=explain)
        except FileNotFoundError:
            pass
        except OSError as error:
            why = f"it cannot be looked at: {error}"
        return Leftover(
            sort=self._one.sort,
            name=self._one.path,
            owner=owner_mark(self._note.owner),
            size_bytes=size_bytes,
            fate=fate,
            why=why,
        )

    def remove(self, _deadline: float = 0.0) -> tuple[Fate, str]:
        """Remove it if it is still proved, and say what became of it; raises ``OSError``."""
        with self._folder() as folder:
            fate, why = self._judged(folder, self._stat(folder), explain=False)
            if fate is not Fate.REAP:
                return fate, why
            now = self._stat(folder)
            if now is None or not self._is_it(self._shape(folder, now)):
                return Fate.LEFT, "another file took its name just now"
            os.unlink(self._path.name, dir_fd=folder)
        return Fate.REAPED, why

    def _folder(self) -> AbstractContextManager[int]:
        return closed_after(os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def _stat(self, folder: int) -> os.stat_result | None:
        try:
            return os.stat(self._path.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _judged(self, folder: int, found: os.stat_result | None, *, explain: bool) -> tuple[Fate, str]:
        facts = self._facts(folder, found)
        if why_not_file(facts):
            return judge_file(facts, held=None)
        held = self._held(folder)
        seen = shm.holders(self._one.shape) if held and explain else ()
        return judge_file(facts, held=held, holders=seen)

    def _shape(self, folder: int, found: os.stat_result) -> Shape:
        return shm.shape(found, shm.born_ns(self._path.name, folder=folder))

    def _is_it(self, found: Shape) -> bool:
        return found.still_is(self._one.shape, self._one.sort)

    def _facts(self, folder: int, found: os.stat_result | None) -> FileFacts:
        mode = 0 if found is None else found.st_mode
        is_socket = self._one.sort is Sort.SOCKET
        return FileFacts(
            sort=self._one.sort,
            name=self._path.name,
            noted=self._one.shape,
            found=None if found is None else self._shape(folder, found),
            right_kind=stat.S_ISSOCK(mode) if is_socket else stat.S_ISREG(mode),
            links=0 if found is None else found.st_nlink,
            our_user=os.geteuid(),
            owner=life_of(self._note.owner, self._note.world),
            users=self._life_of_users(),
            asked_by_owner=self._asked_by_owner,
        )

    def _life_of_users(self) -> ProcessLife:
        lives = {life_of(user, self._note.world) for user in self._one.identities()}
        if not lives or ProcessLife.UNKNOWN in lives:
            return ProcessLife.UNKNOWN
        return ProcessLife.ALIVE if ProcessLife.ALIVE in lives else ProcessLife.DEAD

    def _held(self, folder: int) -> bool | None:
        if self._one.sort is Sort.SOCKET:
            # Through the directory that was looked at; a socket's path has at most 107 characters, too.
            return shm.listened_to(f"/proc/self/fd/{folder}/{self._path.name}")
        with closed_after(os.open(self._path.name, _OPEN, dir_fd=folder)) as file:
            found = shm.shape(os.fstat(file), shm.born_ns(file=file))
            return shm.held(file) if self._is_it(found) else None
