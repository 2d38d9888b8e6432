"""The numbers of all processes of a node as one: reads the files of ``numbers_file``, and folds up the dead.

``refresh`` is for the agent's loop and reads only what changed; a scrape shows what it left. A process is
dead when its pid, start time, boot and pid namespace prove it; everything else counts as alive. Its counters
go over to ``departed``, its gauges vanish. How numbers of several processes become one is ``merging``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import stat
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from rayguard.metrics.families import Family, family
from rayguard.metrics.instruments.node import JOB_OVER
from rayguard.metrics.node import departed as departed_file
from rayguard.metrics.node.abandoned import Abandoned
from rayguard.metrics.node.departed import Departed
from rayguard.metrics.node.merging import Places, bounded, counted, jobs_in, merged, placed
from rayguard.metrics.node.numbers_file import VERSION, directory_of
from rayguard.metrics.node.tables import ACTOR_CLASS, RAY_JOB, decode, labels_of
from rayguard.metrics.sources import known
from rayguard.private import closed_after, open_private, replace_file
from rayguard.process.cleanup.verdict import ProcessLife
from rayguard.process.identity import owner_of
from rayguard.process.pid_namespace import life_of, world
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rayguard.metrics.node.tables import Instruments, Table

_LOG = logging.getLogger("rayguard")
_NAME = re.compile(r"\d{1,10}-\d{1,19}\.json")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES = 1 << 20
_TRIES = 3
_MAX_SAID = 100
# Where clocks of files tick by the second, two contents can have one time and one size until it is over.
_SETTLED_S = 2.0

Stamp = tuple[int, int, int]  # inode, time of change in ns, size
_NONE: Stamp = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class _File:
    """One process's numbers as they were read last; ``table`` is None where there are none to show."""

    stamp: Stamp
    settled: bool  # what has this stamp later is what was read
    life: ProcessLife
    table: Table | None


class NodeNumbers(Collector):
    """Shows the merged numbers of the processes that keep their state in ``home``.

    ``generation`` grows when they changed. Two at once (an agent that is not quite gone) show the same: one
    of them folds, under a lock.
    """

    def __init__(
        self,
        home: Path | str,
        *,
        instruments: Instruments | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory_of(home)
        self._instruments = known() if instruments is None else instruments
        self._clock = clock
        self._file = departed_file.file_of(world())
        self._abandoned = Abandoned(self._file)
        self._files: dict[str, _File] = {}
        self._departed: tuple[bytes, Departed | None] = (b"", Departed())  # as written, and what it says
        self._places: dict[str, Places] = {}
        self._seen: object = None
        self._shown: Table = {}
        self._said: set[str] = set()
        self.generation = 0

    def collect(self) -> Iterator[Family]:
        """Yield what the last refresh left."""
        for name, series in self._shown.items():
            instrument = self._instruments[name]
            yield family(instrument, labels_of(instrument), series.items())

    def describe(self) -> Iterator[Family]:
        """Yield the names of all that may be shown."""
        return (family(one, labels_of(one)) for one in self._instruments.values())

    def jobs(self) -> set[str]:
        """Return the Ray jobs that have numbers here, of living and of dead processes."""
        return self._jobs_in(self._shown)

    def _jobs_in(self, table: Table) -> set[str]:
        """Return the jobs in ``table``, without those that are only said to be over: that keeps none here."""
        return jobs_in(
            {name: series for name, series in table.items() if name != JOB_OVER}, self._instruments
        )

    def refresh(self) -> None:
        """Read what changed, and fold up who died. What goes wrong is logged and counted; never raises."""
        try:
            with closed_after(open_private(self._directory)) as folder, _sole(folder, self._file) as lock:
                self._refresh(folder, may_fold=lock is not None)
                if lock is not None:
                    self._abandoned.look(folder, lock)
        except BlockingIOError:
            _LOG.debug("numbers in %s: another agent folds them up", self._directory)
        except (OSError, ValueError) as error:
            self._failed("cannot be opened, read or folded up", error)

    def _refresh(self, folder: int, *, may_fold: bool) -> None:
        departed = self._look(folder)
        past = departed or Departed()
        there = {name: file for name, file in self._files.items() if name not in past.folded}
        tables = {name: file.table for name, file in there.items() if file.table is not None}
        dead = {
            name: counted(table, self._instruments)
            for name, table in tables.items()
            if there[name].life is ProcessLife.DEAD
        }
        seen = past, {name: (there[name].life, table) for name, table in tables.items()}  # mostly identical
        if seen != self._seen:
            self._show([past.table, *(dead.get(name, table) for name, table in tables.items())])
            self._seen = seen
        if may_fold and departed is not None:
            living = [table for name, table in tables.items() if name not in dead]
            jobs = map(self._jobs_in, living)
            expired = departed.expired(lambda: set().union(*jobs), self._clock())
            self._fold(folder, departed, dead, expired=expired)

    def _show(self, tables: list[Table]) -> None:
        whole = merged(tables, self._instruments)
        self._places = placed(whole, self._places)
        self._shown = bounded(whole, self._places, self._instruments)
        self.generation += 1

    def _fold(self, folder: int, departed: Departed, dead: dict[str, Table], *, expired: set[str]) -> None:
        if dead or expired:
            # Names are forgotten when their file is gone, and not before: until then they say "counted".
            left = Departed(departed.table, departed.folded & self._files.keys(), departed.seen)
            departed = left.after(
                dead,
                expired=expired,
                places=self._places,
                instruments=self._instruments,
                now=self._clock(),
            )
            replace_file(self._directory, self._file, departed.to_json(world(), self._instruments))
        for name in departed.folded & self._files.keys():
            if self._files[name].life is ProcessLife.DEAD:
                for one in (name, f".{name.removesuffix('.json')}.tmp"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(one, dir_fd=folder)

    def _look(self, folder: int) -> Departed | None:
        """Read departed and the files so that they belong together; None for a sum of a later version.

        Raises ``BlockingIOError`` when another agent folded each time while we read: what we show stays.
        """
        for _ in range(_TRIES):
            before = self._departed_content(folder)
            self._files = dict(self._scan(folder))
            if before == self._departed_content(folder):
                if before != self._departed[0]:
                    self._departed = (before, self._parsed_departed(before))
                return self._departed[1]
        raise BlockingIOError("another agent is at work")

    def _departed_content(self, folder: int) -> bytes:
        try:
            return _content(folder, self._file, departed_file.MAX_BYTES)
        except FileNotFoundError:
            return b""

    def _parsed_departed(self, content: bytes) -> Departed | None:
        try:
            return departed_file.parsed(content, self._instruments) if content else Departed()
        except ValueError as error:
            self._failed(f"{self._file} is begun anew", error)
            return Departed()

    def _scan(self, folder: int) -> Iterator[tuple[str, _File]]:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
        for name in names:
            # Asked before it is read: what a dead process has left is read to its end.
            life = life_of(owner_of(name.removesuffix(".json")), world())
            now, stamp = self._clock(), _stamp_at(folder, name)
            before = self._files.get(name)
            if stamp == _NONE:
                continue
            if before is not None and before.settled and before.stamp == stamp:
                yield name, before if before.life is life else replace(before, life=life)
            else:
                table = self._read(folder, name, before, stamp)
                yield name, _File(stamp, now - stamp[1] / 1e9 > _SETTLED_S, life, table)

    def _read(self, folder: int, name: str, before: _File | None, stamp: Stamp) -> Table | None:
        """Return the numbers in a file. One that cannot be read shows what it had: no counter falls."""
        try:
            table = self._parsed(_content(folder, name, _MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if before is None or before.stamp != stamp:
                self._failed(f"{name} is left out", error)
            return before.table if before else None
        return before.table if before and before.table == table else table

    def _parsed(self, content: bytes) -> Table | None:
        page: Any = json.loads(content)
        try:
            if page["version"] > VERSION:
                raise ValueError(f"version {page['version']} is later than {VERSION}")
            if page["world"] != world():  # its pid means another process here
                return None
            who = page["who"]
            whose = {RAY_JOB: str(who["job_id"]), ACTOR_CLASS: str(who["actor_class"])}
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the numbers of a process: {error!r}") from error
        return decode(page["families"], self._instruments, whose)

    def _failed(self, what: str, error: Exception) -> None:
        TALLY.guard_error("numbers")
        if what not in self._said and len(self._said) < _MAX_SAID:
            self._said.add(what)
            _LOG.warning("numbers in %s: %s: %r", self._directory, what, error)


def _stamp_at(folder: int, name: str) -> Stamp:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return _NONE
    return found.st_ino, found.st_mtime_ns, found.st_size


def _content(folder: int, name: str, limit: int) -> bytes:
    file = os.open(name, _OPEN, dir_fd=folder)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(file)  # open() does not where it is a directory
        raise PermissionError(f"{name} is no file of ours")
    with open(file, "rb") as stream:  # noqa: PTH123 - a descriptor, not a path
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"larger than {limit} bytes")
    return content


@contextlib.contextmanager
def _sole(folder: int, name: str) -> Iterator[int | None]:
    """Give the lock if we alone may fold, until the end of the block. The kernel ends it with our process."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(f".{name.removesuffix('.json')}.lock", flags, 0o600, dir_fd=folder)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock
    finally:
        os.close(lock)
