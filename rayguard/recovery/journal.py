"""The append-only file of incidents: written by many processes at once, readable after any of them died.

One line of JSON per record, in ``incidents.jsonl`` and, rotated by size, ``incidents.1.jsonl`` and older. An
incident is written when it opens and again, with the same id, when it closes. What an incident *is* stands in
``rayguard.recovery.incident``; reading the files is ``rayguard.recovery.tail``.

How a line survives: a record is one ``write`` with ``O_APPEND``, which a local file system does not mix with
another one; a process killed in the middle leaves a line without end, and the next writer begins a new one.
A network file system promises neither.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.harmless import is_news
from rayguard.private import OPEN_OURS, locked, open_private
from rayguard.recovery.tail import CURRENT, Tail, folded, rotated
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from rayguard.recovery.incident import Incident

_LOG = logging.getLogger("rayguard")
_LOCK = "incidents.lock"
# Long enough for any writer that lives (a write and its fsync take milliseconds), short enough for a caller.
_LOCK_DEADLINE_S = 1.0


class Journal:
    """The incidents of one directory. Holds no open file, so that a fork shares nothing.

    ``keep`` rotated files are kept beside the current one, each of about ``max_bytes``.
    """

    def __init__(self, directory: Path | str, *, max_bytes: int = 8 << 20, keep: int = 4) -> None:
        if max_bytes < 1 or keep < 1:
            raise ConfigError(f"a journal needs max_bytes >= 1 and keep >= 1, got {max_bytes} and {keep}")
        self.directory = Path(directory).absolute()
        self._max_bytes = max_bytes
        self._names = (CURRENT, *(rotated(n) for n in range(1, keep + 1)))
        self._said: set[str] = set()

    def write(self, incident: Incident) -> bool:
        """Append ``incident`` durably. Never raises: False is a record that is (perhaps) not on the disk."""
        try:
            line = json.dumps(incident.to_json(), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            # "replace": a message read from a broken log may hold half a character, which no reader accepts
            self._append(line.encode(errors="replace"))
        except Exception as error:  # noqa: BLE001 - runs inside a user's failing call, and may copy their objects
            self._failed(error)
            return False
        return True

    def read(self) -> list[Incident]:
        """Return every incident once, in its last state, oldest first."""
        return self.read_with_errors()[0]

    def read_with_errors(self) -> tuple[list[Incident], int]:
        """Return the incidents, and how many lines were skipped because they are torn or not ours."""
        with Tail(self.directory) as tail:
            found = folded((*tail.poll(), *tail.unfinished()))
            return found, tail.errors

    def follow(self, stop: threading.Event, *, poll_s: float = 0.25) -> Iterator[Incident]:
        """Yield each record that is written after this call, until ``stop`` is set."""
        tail = Tail(self.directory)
        tail.poll()
        return _follow(tail, stop, poll_s)

    def _append(self, line: bytes) -> None:
        directory = open_private(self.directory)
        try:
            with locked(directory, _LOCK, _LOCK_DEADLINE_S) as alone:
                if alone:
                    self._rotate(directory, len(line))
                _append_line(directory, line, alone=alone)
        finally:
            os.close(directory)

    def _rotate(self, directory: int, more: int) -> None:
        """Make room. Killed between two renames, it leaves a gap in the numbers and loses nothing."""
        try:
            size = os.stat(CURRENT, dir_fd=directory, follow_symlinks=False).st_size
        except FileNotFoundError:
            return
        if size == 0 or size + more < self._max_bytes:
            return
        there = set(os.listdir(directory))
        last = len(self._names) - 1
        # Only up to the first gap: shifting all of them after an interrupted rotation drops a file too many.
        end = next((n for n, name in enumerate(self._names) if name not in there), last)
        for n in range(end, 0, -1):
            os.replace(self._names[n - 1], self._names[n], src_dir_fd=directory, dst_dir_fd=directory)

    def _failed(self, error: Exception) -> None:
        TALLY.guard_error("journal")
        number = error.errno if isinstance(error, OSError) else None
        reason = errno.errorcode.get(number, str(number)) if number else type(error).__name__
        if reason not in self._said:  # a full disk fails once for each incident: say it once
            self._said.add(reason)
            if isinstance(error, OSError) and not is_news(error, self.directory):
                return  # the page or the recorder has said it
            _LOG.error("the incident journal in %s cannot be written: %r", self.directory, error)


def _append_line(directory: int, line: bytes, *, alone: bool) -> None:
    file = os.open(CURRENT, OPEN_OURS | os.O_APPEND, 0o600, dir_fd=directory)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, f"{CURRENT} is no regular file")
        # Without the lock a writer that is killed right now may still leave a torn line: always begin anew.
        torn = found.st_size > 0 and os.pread(file, 1, found.st_size - 1) != b"\n"
        record = (b"\n" if torn or not alone else b"") + line + b"\n"
        if os.write(file, record) != len(record):
            raise OSError(errno.ENOSPC, "only a part of the record could be written")
        os.fsync(file)
    finally:
        os.close(file)


def _follow(tail: Tail, stop: threading.Event, poll_s: float) -> Iterator[Incident]:
    with tail:
        while not stop.wait(poll_s):
            yield from tail.poll()
        yield from tail.poll()  # what came while the last ones were looked at


def default_journal() -> Journal:
    """Return this process's journal, in the ``home`` of ``rayguard.config``. Never raises.

    Call it once when the guard starts: the first call imports pydantic-settings (a fifth of a second and
    more), which is better spent then than while an engine is down.
    """
    from rayguard.config import Settings  # noqa: PLC0415 - see above; a worker without faults never pays it

    try:
        settings = Settings()
    except ConfigError as error:
        _settings_unusable(os.getpid(), str(error))
        settings = Settings.model_construct()
    return _journal(os.getpid(), settings.home, settings.journal_max_bytes, settings.journal_keep)


@lru_cache(maxsize=8)
def _journal(pid: int, home: Path, max_bytes: int, keep: int) -> Journal:  # noqa: ARG001 - a fork has its own
    return Journal(home, max_bytes=max_bytes, keep=keep)


@lru_cache(maxsize=8)
def _settings_unusable(pid: int, report: str) -> None:  # noqa: ARG001 - once in each process
    TALLY.guard_error("config")
    _LOG.error("%s. The incident journal goes to its default place", report)
