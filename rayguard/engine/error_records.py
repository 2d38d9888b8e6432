"""What the engine's own processes write about their failures, and what the owner reads.

vLLM tells its caller only that the engine is dead; the true exception is logged in another process.
Here it is put on disk, before that process says anything to anybody. Who installs the handler where is
``vllm/plugin.py``; what the records mean is decided in ``rayguard.faults``.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.faults.fault import ExceptionFact, Frame, Role, facts_of
from rayguard.harmless import is_news
from rayguard.redact import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RECORDS_ENV = "RAYGUARD_RECORDS"  # where an engine's processes write; set by their owner
MAX_LINE_BYTES = 64 * 1024
MAX_FILE_BYTES = 4 * 1024 * 1024  # an engine that logs an error at each step must not fill the disk
MAX_TEXT_CHARS = 2_000
_SUFFIX, _OLDER_SUFFIX = ".jsonl", ".jsonl.1"


@dataclass(frozen=True, slots=True)
class EngineRecords:
    """What was read: exceptions oldest first (a cause before what it caused), and log lines oldest first."""

    exceptions: tuple[ExceptionFact, ...] = ()
    log: tuple[str, ...] = ()


class RecordWriter:
    """Appends to ``<directory>/<role>-<pid>.jsonl``, one line and one write per event.

    The file is opened for each event: events are rare, and nothing is held that a fork could share, that
    ``logging.config`` could close, or that a full descriptor table could make worse.
    """

    def __init__(self, directory: str | os.PathLike[str], role: Role, pid: int) -> None:
        self.role = role
        self.pid = pid
        self.path = Path(directory) / f"{role.value}-{pid}{_SUFFIX}"

    def write(self, message: str, error: BaseException | None = None) -> None:
        """Put one event on the disk; it is there when this returns.

        Raises:
            OSError: it could not be written.
        """
        at = time.time()
        chain = () if error is None else facts_of(error, role=self.role, at=at)
        line = _line(message, tuple(dataclasses.replace(fact, pid=self.pid) for fact in chain), at)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            if os.fstat(fd).st_size + len(line) > MAX_FILE_BYTES:
                # The descriptor now means the older file: this line is its last.
                self.path.replace(self.path.with_suffix(_OLDER_SUFFIX))
            os.write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)


def _line(message: str, chain: tuple[ExceptionFact, ...], at: float) -> bytes:
    """Return one JSON line, cut until it fits: source text first, then outer frames, then outer links."""
    message = without_secrets(message[:MAX_TEXT_CHARS])
    chain = tuple(map(_without_secrets, chain))
    cuts = (chain, _without_code(chain, 24), _without_code(chain, 4), _without_code(chain[-2:], 1))
    line = b""
    for cut in cuts:
        event = {"at": at, "message": message, "chain": [dataclasses.asdict(f) for f in cut]}
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        # It begins on a line of its own, even after one that a full disk or a kill has torn.
        line = b"\n" + text.encode(errors="backslashreplace") + b"\n"
        if len(line) <= MAX_LINE_BYTES:
            break
    return line


def _without_secrets(fact: ExceptionFact) -> ExceptionFact:
    """Leave long quotes in: its owner has yet to diagnose by its words."""
    frames = (dataclasses.replace(frame, code=without_secrets(frame.code)) for frame in fact.frames)
    return dataclasses.replace(fact, message=without_secrets(fact.message), frames=tuple(frames))


def _without_code(chain: Iterable[ExceptionFact], frames: int) -> tuple[ExceptionFact, ...]:
    return tuple(
        dataclasses.replace(
            fact, frames=tuple(dataclasses.replace(frame, code="") for frame in fact.frames[-frames:])
        )
        for fact in chain
    )


class RecordingHandler(logging.Handler):
    """Writes what is logged as an error, with the exception if there is one. Never raises."""

    def __init__(self, writer: RecordWriter) -> None:
        super().__init__(logging.ERROR)
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Write ``record``; a failure to do so goes to stderr, as ``logging`` handles its own errors."""
        try:
            self.writer.write(_message(record), record.exc_info[1] if record.exc_info else None)
        except OSError as error:  # a full disk: each step may log an error, and nobody needs each traceback
            if is_news(error, self.writer.path.parent):
                sys.stderr.write(f"rayguard: what fails in this process is not kept: {error}\n")
        except Exception:  # noqa: BLE001 - an engine must not die of its obituary (disk full, broken __str__)
            self.handleError(record)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # arguments that do not fit: no reason to lose the exception
        return str(record.msg)


def read_records(directory: str | os.PathLike[str], since: float) -> EngineRecords:
    """Return what was written at ``since`` (wall clock, seconds) or later; torn lines are skipped."""
    events = sorted(
        (event for path in _files(directory) for event in _events(path) if event.at >= since),
        key=lambda event: event.at,
    )
    return EngineRecords(
        # Within one chain the innermost was raised first.
        exceptions=tuple(fact for event in events for fact in reversed(event.chain)),
        log=tuple(event.message for event in events if event.message),
    )


def clear(directory: str | os.PathLike[str]) -> None:
    """Remove all records; a process that still runs begins a new file."""
    for path in _files(directory):
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Event:
    at: float
    message: str
    chain: tuple[ExceptionFact, ...]


def _files(directory: str | os.PathLike[str]) -> list[Path]:
    found = sorted(Path(directory).glob("*"))  # none where the directory is gone
    return [p for p in found if p.name.endswith((_SUFFIX, _OLDER_SUFFIX)) and not p.is_symlink()]


def _events(path: Path) -> Iterator[_Event]:
    with suppress(OSError):  # removed meanwhile
        yield from filter(None, map(_event, path.read_bytes().splitlines()))


def _event(line: bytes) -> _Event | None:
    try:
        data = json.loads(line)
        return _Event(float(data["at"]), str(data["message"]), tuple(_fact(f) for f in data["chain"]))
    except (ValueError, TypeError, KeyError, AttributeError):  # torn, or not ours
        return None


def _fact(data: dict[str, Any]) -> ExceptionFact:
    frames = tuple(Frame(**frame) for frame in data["frames"])
    return ExceptionFact(**{**data, "frames": frames, "role": Role(data["role"])})
