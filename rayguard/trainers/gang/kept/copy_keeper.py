"""The actor of a gang on a node: hands out the states that ranks keep there, and holds copies of others'.

A copy lies in a file without a name: when the actor ends, however it does, nothing of it is left. A rank
knows nothing of all this. It writes its file, in which at most two slots are held against being written over.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from enum import Enum
from typing import IO, TYPE_CHECKING

from rayguard.actors.life import snapshot_files
from rayguard.private import open_private
from rayguard.process import snapshot_slots
from rayguard.trainers.gang.kept.copy_place import PART_BYTES, PART_S, digest_of
from rayguard.trainers.gang.kept.rank_files import path_of_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ray import ObjectRef
    from ray.actor import ActorHandle

    from rayguard.process.snapshot_slots import SlotPlace
    from rayguard.trainers.gang.kept.copy_choice import CopyTag

COPYING = "copying"  # the group of the thread that copies, one after the other; another one answers meanwhile


class CopyEnd(str, Enum):
    """How the making of a copy ended, where the keeper itself could do its part."""

    WHOLE = "whole"
    GONE = "gone"  # its slot was written over
    SILENT = "silent"  # the keeper on the rank's node does not answer


@dataclass(frozen=True, slots=True)
class OnNode:
    """What a node has: of which calls the states of the ranks there, and the copies with their sizes."""

    numbers: dict[int, frozenset[int]]
    copies: tuple[tuple[CopyTag, int], ...]


@dataclass(frozen=True, slots=True)
class _Copy:
    tag: CopyTag
    file: IO[bytes]
    size: int
    digests: tuple[bytes, ...]


class CopyKeeper:
    """Keeps what one node of a gang has. Only the thread that copies changes what is held."""

    def __init__(self, gang: str) -> None:
        self._gang = gang
        self._copies: tuple[_Copy, ...] = ()
        self._spare: list[IO[bytes]] = []  # of copies that are not needed any more: their pages are there

    # -- of the ranks on this node

    def standing(self, layout: int, ranks: Sequence[int]) -> OnNode:
        """Say what is here."""
        numbers = {rank: snapshot_slots.numbers_at(self._path(layout, rank)) for rank in ranks}
        return OnNode(numbers, tuple((one.tag, one.size) for one in self._copies))

    def hold(
        self, layout: int, ranks: Sequence[int], number: int, keep: int | None
    ) -> dict[int, SlotPlace | None]:
        """Have ranks hold their states of two numbers of calls; return where those of the first lie.

        That may be one that is still to come.
        """
        found: dict[int, SlotPlace | None] = {}
        for rank in ranks:
            snapshot_slots.hold(self._path(layout, rank), (number, keep))
            found[rank] = snapshot_slots.place_of(self._path(layout, rank), number)
        return found

    def read(self, layout: int, rank: int, place: SlotPlace, begin: int) -> tuple[bytes, bytes]:
        """Return a part of a rank's state and its digest; nothing where it is not there any more."""
        data = snapshot_slots.read_part(self._path(layout, rank), place, begin, PART_BYTES)
        return (b"", b"") if data is None else (data, digest_of(data))

    def _path(self, layout: int, rank: int) -> Path:
        return path_of_rank(self._gang, layout, rank)

    # -- of the ranks on other nodes

    def copy(self, tag: CopyTag, place: SlotPlace, source: ActorHandle, keep: int | None) -> CopyEnd:
        """Copy a state from the keeper of its node. Of the rank's others only that of ``keep`` calls stays.

        Raises:
            OSError: There is no room.
        """
        import ray  # noqa: PLC0415 - an actor runs here

        self._drop(tag, keep)
        file = self._spare.pop() if self._spare else _nameless()
        try:
            digests = tuple(_transferred(tag, place, source, file))
        except BaseException as error:
            file.close()
            if isinstance(error, _GoneError):
                return CopyEnd.GONE
            if isinstance(error, ray.exceptions.RayError):
                return CopyEnd.SILENT
            raise
        self._copies = (*self._copies, _Copy(tag, file, place.size, digests))
        return CopyEnd.WHOLE

    def part(self, tag: CopyTag, number: int) -> tuple[bytes, bytes]:
        """Return a part of a copy, and the digest that it had at its source.

        Raises:
            LookupError: There is no such copy.
        """
        found = next((one for one in self._copies if one.tag == tag), None)
        if found is None:
            raise LookupError(f"there is no copy of {tag}")
        return os.pread(found.file.fileno(), PART_BYTES, number * PART_BYTES), found.digests[number]

    def _drop(self, tag: CopyTag, keep: int | None) -> None:
        """Drop what is not needed any more when a copy for ``tag`` comes: all ranks have that of ``keep``.

        Of that number there may be several, one a generation: the last is enough.
        """
        last = [one for one in self._copies if (one.tag.rank, one.tag.number) == (tag.rank, keep)][-1:]
        others = (one for one in self._copies if one.tag.rank != tag.rank and one.tag.number >= (keep or 0))
        needed = tuple(one for one in (*others, *last) if one.tag.layout == tag.layout)
        dropped = [one.file for one in self._copies if one not in needed]
        self._copies = needed
        for file in (*self._spare, *dropped[1:]):
            file.close()
        self._spare = dropped[:1]


class _GoneError(Exception):
    """What is copied was written over."""


def _transferred(tag: CopyTag, place: SlotPlace, source: ActorHandle, file: IO[bytes]) -> Iterator[bytes]:
    """Write each part of a state into ``file``; return their digests. The next one comes meanwhile.

    Raises:
        _GoneError: It was written over.
        OSError: There is no room.
        RayError: The other keeper does not answer.
    """
    import ray  # noqa: PLC0415 - an actor runs here

    def asked(begin: int) -> list[ObjectRef]:
        read = source.read.options(num_returns=2)
        found: list[ObjectRef] = read.remote(tag.layout, tag.rank, place, begin)
        return found

    coming = asked(0)
    for begin in range(0, place.size, PART_BYTES):
        data, digest = ray.get(coming, timeout=PART_S)
        if begin + PART_BYTES < place.size:
            coming = asked(begin + PART_BYTES)
        if not data or digest_of(data) != digest:
            raise _GoneError
        _write(file, data, begin)
        yield digest


def _write(file: IO[bytes], data: bytes, begin: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file.fileno(), view, begin)
        view, begin = view[written:], begin + written


def _nameless() -> IO[bytes]:
    folder = snapshot_files.folder()
    os.close(open_private(folder))
    found: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed with its copy
    return found
