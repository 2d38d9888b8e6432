"""A pool's ledger on the standard library's sqlite3, as far as ``bench_ledger`` needs it: to be measured beside.

The best of the layouts that were tried: the same records, as rows; those of one request lie side by side, so
that what is void goes in one range. WAL (a commit is an append), the lock kept for the life of the
connection (no shared memory, so it would work on NFS), ``synchronous=OFF`` (as the pool's own ledger, which
syncs nothing: what was committed survives the process, not the machine). Not made for use: it looks at no
owner, no link, no damage, no fork.
"""

from __future__ import annotations

import itertools
import sqlite3
from operator import itemgetter
from typing import TYPE_CHECKING

from rayguard.pool.ledger import records
from rayguard.pool.ledger.records import Replay
from rayguard.pool.ledger.request_ledger import NoLedger

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rayguard.engine.generated import Generated
    from rayguard.pool.values.request import Request
    from rayguard.pool.values.result import Sample

_PARTS = 1 << 24
_SETTINGS = """
PRAGMA page_size = 1024;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
PRAGMA wal_autocheckpoint = 4000;
CREATE TABLE IF NOT EXISTS owed (place INTEGER PRIMARY KEY, body BLOB);
CREATE TABLE IF NOT EXISTS answers (place INTEGER PRIMARY KEY, body BLOB);
"""
_NOTE, _ANSWER = "INSERT INTO owed VALUES (?, ?)", "INSERT INTO answers VALUES (?, ?)"
_VOID, _FORGET = "DELETE FROM owed WHERE place >= ? AND place < ?", "DELETE FROM answers WHERE place = ?"


class SqliteLedger(NoLedger):
    """Does what ``RequestLedger`` does, while all is well."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owed: dict[str, int] = {}  # the place of the next piece
        self._answers: dict[str, int] = {}
        self._staged: list[tuple[str, tuple[object, ...]]] = []
        self._pieces: list[tuple[str, int, Generated]] = []
        self._db = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        self._db.executescript(_SETTINGS)
        replay, data = Replay(), records.HEADER
        for table in ("owed", "answers"):
            rows = self._db.execute(f"SELECT body FROM {table} ORDER BY place")
            data += b"".join(body for (body,) in rows)
        for at, size, values in records.whole(data):
            replay.add(values, at, size)
        self.past = replay.past()
        self._number = itertools.count(1)

    def accepted(self, request: Request, fingerprint: str) -> None:
        """Note a request that must be answered."""
        place = next(self._number) * _PARTS
        self._owed[request.id] = place + 1
        self._staged.append((_NOTE, (place, records.accepted(request, fingerprint))))

    def progressed(self, request_id: str, start: int, more: Generated) -> None:
        """Note tokens of a request."""
        if request_id in self._owed:
            self._pieces.append((request_id, start, more))

    def afresh(self, request_id: str) -> None:
        """Note that what is here of a request's tokens is void."""
        place = self._owed[request_id]
        self._staged.append((_VOID, (place // _PARTS * _PARTS + 1, place)))

    def answered(self, request_id: str, fingerprint: str, sample: Sample) -> None:
        """Note an answer."""
        if request_id in self._owed:
            self._end(request_id)
            place = self._answers[request_id] = next(self._number)
            self._staged.append((_ANSWER, (place, records.answered(request_id, fingerprint, sample))))

    def gone(self, request_ids: Iterable[str]) -> None:
        """Note that nobody waits for these any more."""
        for name in request_ids:
            if name in self._owed:
                self._end(name)
            elif name in self._answers:
                self._staged.append((_FORGET, (self._answers.pop(name),)))

    def _end(self, request_id: str) -> None:
        place = self._owed.pop(request_id)
        self._staged.append((_VOID, (place // _PARTS * _PARTS, place)))

    def flush(self) -> None:
        """Commit what was noted."""
        pieces, self._pieces = self._pieces, []
        for request_id, start, more in pieces:
            place = self._owed.get(request_id)
            if place is not None:
                self._owed[request_id] = place + 1
                self._staged.append((_NOTE, (place, records.progressed(request_id, start, more))))
        staged, self._staged = self._staged, []
        if staged:
            self._db.execute("BEGIN IMMEDIATE")
            for statement, group in itertools.groupby(staged, itemgetter(0)):
                self._db.executemany(statement, [values for _, values in group])
            self._db.execute("COMMIT")

    def close(self, *, remove: bool = False) -> None:
        """Commit and close it."""
        self.flush()
        self._db.close()
        if remove:
            self.path.unlink()
