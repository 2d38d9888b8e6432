"""The token log as it is, a mapped file, beside the same on sqlite3: what a flush costs an engine's frontend.

Both keep the same tokens through the same calls (``begin``, ``append`` every eight tokens, ``end``), one after
the other in turns, on the same file system. sqlite3 runs as lightly as it may and still survive a SIGKILL of
its writer: WAL, no sync. The last line is JSON: by requests that run, microseconds for one flush of each, and
how many times as long sqlite3 takes (median of the rounds). It fails where that would be no more than once.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path

from rayguard.engine.generated import Generated
from rayguard.engine.tokens import frames
from rayguard.engine.tokens.log import TokenLog

RUNNING = (8, 32, 64, 128, 256)
STEPS, FLUSHES, ROUNDS = 8, 16, 15  # tokens of a flush, flushes of a request, rounds of both in turns


class SqliteLog:
    """What a token log on sqlite3 would be: a row for each entry."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("CREATE TABLE request (id TEXT PRIMARY KEY, fingerprint TEXT) WITHOUT ROWID")
        self._db.execute("CREATE TABLE entry (id TEXT, start INT, body BLOB)")
        self._db.execute("CREATE INDEX of_request ON entry (id)")
        self._tokens: dict[str, int] = {}

    def begin(self, request_id: str, fingerprint: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO request VALUES (?, ?)", (request_id, fingerprint))
        self._tokens[request_id] = 0

    def append(self, entries: list[tuple[str, Generated]]) -> None:
        rows = []
        for name, more in entries:
            start = self._tokens[name]
            rows.append((name, start, frames.entry(0, start, more)))
            self._tokens[name] = start + len(more)
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO entry VALUES (?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def end(self, names: tuple[str, ...]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("DELETE FROM entry WHERE id = ?", [(name,) for name in names])
        self._db.executemany("DELETE FROM request WHERE id = ?", [(name,) for name in names])
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


def life(log: TokenLog | SqliteLog, names: tuple[str, ...], width: int) -> float:
    """Let these requests begin, run and end; return microseconds for one flush, their share of both ends in it."""
    rows = STEPS * width
    more = Generated(
        tokens=array("i", range(STEPS)),
        width=width,
        ids=array("i", range(rows)),
        logprobs=array("f", [-1.0] * rows),
        ranks=array("i", [1] * STEPS if width else []),
        versions=(("7", 0),),
    )
    entries = [(name, more) for name in names]
    began = time.perf_counter()
    for name in names:
        log.begin(name, "0123456789abcdef0123456789abcdef")
    for _ in range(FLUSHES):
        log.append(entries)
    log.end(names)
    return (time.perf_counter() - began) / FLUSHES * 1e6


def compared(folder: Path, running: int, width: int) -> dict[str, float]:
    """Return what a flush of ``running`` requests costs either way, in turns."""
    names = tuple(f"step1/p{n}" for n in range(running))
    mapped, sqlite = TokenLog(folder / f"{running}-{width}.log"), SqliteLog(folder / f"{running}-{width}.db")
    rounds = []
    for number in range(ROUNDS + 2):
        order = (mapped, sqlite) if number % 2 else (sqlite, mapped)
        took = {id(log): life(log, names, width) for log in order}
        rounds.append((took[id(mapped)], took[id(sqlite)]))
    mapped.close()
    sqlite.close()
    rounds = rounds[2:]  # the first ones grow the files
    return {
        "mapped_us": round(statistics.median(one for one, _ in rounds), 1),
        "sqlite_us": round(statistics.median(other for _, other in rounds), 1),
        "ratio": round(statistics.median(other / one for one, other in rounds), 2),
    }


def main() -> int:
    """Print the figures; 1 where sqlite3 keeps up."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            f"{running} requests{', 2 logprobs' if width else ''}": compared(Path(folder), running, width)
            for width in (0, 2)
            for running in RUNNING
        }
    for name, told in found.items():
        print(f"{name}: {told}")
    print(json.dumps(found))
    return int(any(told["ratio"] <= 1.0 for told in found.values()))


if __name__ == "__main__":
    sys.exit(main())
