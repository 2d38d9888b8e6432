"""What a pool owes and what it has answered, outside its process: for its owner's next life.

An append-only file of ``records``, one ``write`` each: what was written survives the process (not a
crash of the machine: nothing is synced). It is written anew, and put in its own place by a rename, when most
of it is void. Does not know where the file lies (``location``) nor what is done with what it holds
(``rayguard.pool.core``).
"""

from __future__ import annotations

import logging
import os
from array import array
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.pool.ledger import records
from rayguard.pool.ledger.file import SIZE, content, copy, locked, write_all
from rayguard.pool.ledger.records import Kept, Past, Replay
from rayguard.private import open_private

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rayguard.engine.generated import Generated
    from rayguard.pool.values.request import Request
    from rayguard.pool.values.result import Sample

_log = logging.getLogger("rayguard")
ANSWER_BYTES = 128 << 20  # of answers that are kept
_VOID_BYTES = 4 << 20  # below this nothing is written anew
_BUFFER_BYTES = 1 << 18
_NEW = ".new"
in_use: set[Path] = set()  # a file lock does not keep its own process out


class NoLedger:
    """For a pool whose owner has no further life: keeps nothing."""

    past = Past()

    def accepted(self, request: Request, fingerprint: str) -> None:
        """Do nothing."""

    def progressed(self, request_id: str, start: int, more: Generated) -> None:
        """Do nothing."""

    def afresh(self, request_id: str) -> None:
        """Do nothing."""

    def answered(self, request_id: str, fingerprint: str, sample: Sample) -> None:
        """Do nothing."""

    def gone(self, names: Iterable[str]) -> None:
        """Do nothing."""

    def logged(self, token_log: str, node: str) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self, *, remove: bool = False) -> None:
        """Do nothing."""


class RequestLedger(NoLedger):
    """The ledger at ``path``, for one pool at a time; ``past`` is what it held when it was opened.

    What is noted is written by ``flush``. After the constructor nothing raises: a file that cannot be written
    (a full disk) is said once and used no more.

    Invariants: the file begins with whole records; ``_owed`` and ``_answers`` say where those lie that count.

    Raises:
        ConfigError: Another pool uses it.
        OSError: It cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owed: dict[str, Kept] = {}
        self._answers: dict[str, Kept] = {}
        self._live = self._answer_bytes = 0
        self._buffer: list[tuple[Kept, bytes]] = []
        self._pieces: list[tuple[str, int, Generated]] = []
        self._buffered = self._end = 0
        self._void_bytes = _VOID_BYTES
        if path in in_use:
            raise ConfigError(f"the ledger {path} is used by another pool of this process")
        with ExitStack() as failed:
            self._folder = open_private(path.parent)
            failed.callback(os.close, self._folder)
            self._file = locked(self._folder, path.name, path)
            failed.callback(lambda: os.close(self._file))
            self.past = self._read()
            self._rewrite()
            failed.pop_all()
        in_use.add(path)
        self._writable = self._opened = True

    # -- what happens

    def accepted(self, request: Request, fingerprint: str) -> None:
        """Note a request that must be answered."""
        with harmless("ledger"):
            record = records.accepted(request, fingerprint)
            kept = self._owed[request.id] = Kept()
            self._put(kept, record)

    def progressed(self, request_id: str, start: int, more: Generated) -> None:
        """Note tokens of a request, from index ``start`` on."""
        if request_id in self._owed:
            self._pieces.append((request_id, start, more))

    def afresh(self, request_id: str) -> None:
        """Note that what is here of a request's tokens is void."""
        kept = self._owed.get(request_id)
        if kept is not None:
            self._pieces = [piece for piece in self._pieces if piece[0] != request_id]
            with harmless("ledger"):
                self._put(kept, records.afresh(request_id))

    def answered(self, request_id: str, fingerprint: str, sample: Sample) -> None:
        """Note an answer; what is here of the request's tokens is void."""
        if request_id not in self._owed:
            return
        with harmless("ledger"):
            record = records.answered(request_id, fingerprint, sample)
            self._live -= self._owed.pop(request_id).size
            kept = self._answers[request_id] = Kept()
            self._answer_bytes += len(record)
            self._put(kept, record)
            while self._answer_bytes > ANSWER_BYTES:
                self.gone((next(iter(self._answers)),))

    def logged(self, token_log: str, node: str) -> None:
        """Note where an actor keeps the tokens of what runs there, on which node; until it is ``gone``."""
        if token_log in self._owed:
            return
        with harmless("ledger"):
            kept = self._owed[token_log] = Kept()
            self._put(kept, records.logged(token_log, node))
        self.flush()

    def gone(self, names: Iterable[str]) -> None:
        """Note that nobody waits for these requests any more, or will ask; that these logs have no writer."""
        known = [name for name in names if name in self._owed or name in self._answers]
        if not known:
            return
        with harmless("ledger"):
            for name in known:
                self._answer_bytes -= self._answers[name].size if name in self._answers else 0
                self._live -= (self._owed if name in self._owed else self._answers).pop(name).size
            self._put(Kept(), records.gone(known), live=False)

    def flush(self) -> None:
        """Write what was noted."""
        pieces, self._pieces = self._pieces, []
        with harmless("ledger"):
            for request_id, start, more in pieces:
                kept = self._owed.get(request_id)
                if kept is not None:  # else it was answered in the same moment
                    self._put(kept, records.progressed(request_id, start, more))
        if self._buffer:
            self._write()

    def _write(self) -> None:
        buffer, self._buffer, self._buffered = self._buffer, [], 0
        if not self._writable or not self._wrote(b"".join([record for _, record in buffer])):
            return
        for kept, record in buffer:
            kept.places.append(self._end << 32 | len(record))
            self._end += len(record)
        void = self._end - self._live
        if void > max(self._void_bytes, self._live):
            self._void_bytes = 2 * void  # for one that fails: not again at once
            with harmless("ledger"):
                self._rewrite()
                self._void_bytes = _VOID_BYTES

    def close(self, *, remove: bool = False) -> None:
        """Write and close it; ``remove``: it will not be needed."""
        if not self._opened:
            return
        with harmless("ledger"):
            self.flush()
        self._opened = self._writable = False
        with harmless("ledger"):
            if remove:
                os.unlink(self.path.name, dir_fd=self._folder)
        in_use.discard(self.path)
        os.close(self._file)
        os.close(self._folder)

    def _put(self, kept: Kept, record: bytes, *, live: bool = True) -> None:
        self._buffer.append((kept, record))
        self._buffered += len(record)
        if live:
            kept.size += len(record)
            self._live += len(record)
        if self._buffered > _BUFFER_BYTES:
            self._write()

    # -- the file

    def _read(self) -> Past:
        """Take in what is there, and note where."""
        replay = Replay()
        for at, size, values in records.whole(content(self._file)):
            try:
                replay.add(values, at, size)
            except Exception as error:  # noqa: BLE001, PERF203 - of another version; what it means is not known
                _log.warning("rayguard: a record of the ledger %s cannot be read: %r", self.path, error)
        self._owed, self._answers = replay.owed, replay.answers
        return replay.past()

    def _wrote(self, data: bytes) -> bool:
        """Append ``data``, all of it or nothing."""
        try:
            write_all(self._file, data)
        except OSError as error:
            self._writable = False
            with harmless("ledger"):
                os.ftruncate(self._file, self._end)
            _log.error("rayguard: the ledger %s cannot be written; it ends here: %r", self.path, error)
            return False
        return True

    def _rewrite(self) -> None:
        """Put a file in the place of this one that has only what counts."""
        name = self.path.name
        new = locked(self._folder, name + _NEW, self.path)
        try:
            os.ftruncate(new, 0)
            write_all(new, records.HEADER)
            end, places = len(records.HEADER), []
            for kept in (*self._owed.values(), *self._answers.values()):
                moved = array("Q")
                for place in kept.places:
                    moved.append(end << 32 | place & SIZE)
                    end += place & SIZE
                places.append((kept, moved))
            copy(self._file, new, (place for kept, _ in places for place in kept.places))
            os.rename(name + _NEW, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            os.close(new)
            raise
        os.close(self._file)
        self._file, self._end = new, end
        for kept, moved in places:
            kept.places = moved
        self._answer_bytes = sum(kept.size for kept in self._answers.values())
        self._live = self._answer_bytes + sum(kept.size for kept in self._owed.values())
