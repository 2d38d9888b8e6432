"""From what was named on a command line to bytes that hold lines: files, folders, Ray sessions, pipes.

Finds, orders and opens; decompresses and turns UTF-16 into UTF-8. What may be wrong with a file is told in
``notes`` and never raised: a log is read because something else is broken. What the lines say is
``rayguard.logs.scan`` and ``rayguard.logs.many_files``.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.logs.encoding import archive_form, encoding_of, inflated, is_packed, recoded
from rayguard.logs.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BLOCK_BYTES = 1 << 20

# Ray's own names. The process is told apart by its pid; a worker's other file has the same.
_WORKER = re.compile(r"^(?:worker-[0-9a-f]{8,}-\w+-|python-core-(?:worker|driver)-[0-9a-f]{8,}_)(\d+)\.")
# The order in which files are read and shown: who fails first, who sees it, who merely watches.
_ORDER = tuple(
    re.compile(pattern)
    for pattern in (
        r"^worker-.*\.err",
        r"^worker-",
        r"^python-core-",
        r"^raylet\b",
        r"^gcs_server\b",
        r"^job-driver",
        r"^runtime_env",
        r"^event_",
        r"^(?!dashboard|monitor|log_monitor|ray_client_server|agent-)",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One source of lines. ``process`` is whose they are where they do not say; no path is standard input."""

    name: str
    path: Path | None = None
    process: str = ""
    size_bytes: int = 0
    written_at: float = 0.0


@dataclass(slots=True)
class FoundLogs:
    """The files to read, in order, and what a person should know about those that are not read."""

    files: list[LogFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find(arguments: Sequence[str]) -> FoundLogs:
    """Return what ``arguments`` name: files, folders, ``-``. Raises ``ConfigError`` for a wrong one."""
    found = FoundLogs()
    seen: set[tuple[int, int]] = set()
    for argument in arguments:
        if argument == "-":
            found.files.append(LogFile(name="stdin"))
            continue
        path = Path(argument)
        status = _status(path)
        if stat.S_ISDIR(status.st_mode):
            folder = Folder(seen)
            within = folder.read(path)
            found.notes += folder.notes(str(path))
            found.files += sorted((_file(one, status) for one, status in within), key=_rank)
            if not within:
                found.notes.append(f"{path}: there is no log in this folder")
        elif (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            found.files.append(_file(path, status))
    return found


def _status(path: Path) -> os.stat_result:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot read {path}: {reason}") from error
    if stat.S_ISSOCK(status.st_mode):
        raise ConfigError(f"cannot read {path}: it is a socket")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"cannot read {path}: permission denied")
    return status


def _file(path: Path, status: os.stat_result) -> LogFile:
    return LogFile(
        name=str(path),
        path=path,
        process=process_of(path.name),
        size_bytes=status.st_size if stat.S_ISREG(status.st_mode) else 0,
        written_at=status.st_mtime,
    )


def process_of(name: str) -> str:
    """Return whose file this is: ``worker pid=12`` for Ray's worker files, else the name itself."""
    worker = _WORKER.match(name)
    return f"worker pid={worker[1]}" if worker else name.partition(".")[0]


def _rank(file: LogFile) -> tuple[int, str]:
    name = file.path.name if file.path else ""
    return next((rank for rank, form in enumerate(_ORDER) if form.match(name)), len(_ORDER)), file.name


def blocks(
    file: LogFile, notes: list[str], advance: Callable[[int], object] | None = None
) -> Iterator[bytes]:
    """Yield the text of ``file`` as UTF-8, in blocks of any size; ``advance`` is told of the bytes read."""
    with ExitStack() as opened:
        try:
            stream = sys.stdin.buffer if file.path is None else opened.enter_context(file.path.open("rb"))
        except OSError as error:
            notes.append(f"{file.name}: cannot be read: {error.strerror}")
            return
        raw = _raw(stream, file, notes, advance)
        first = next(raw, b"")
        whole: Iterator[bytes] = chain([first], raw)
        if is_packed(first):
            whole = inflated(whole, file.name, notes)
            first = next(whole, b"")
            whole = chain([first], whole)
        if archive := archive_form(first):
            notes.append(f"{file.name}: {archive}")
        encoding = encoding_of(first)
        yield from whole if encoding is None else recoded(whole, encoding)


def _raw(
    stream: IO[bytes], file: LogFile, notes: list[str], advance: Callable[[int], object] | None
) -> Iterator[bytes]:
    while True:
        try:
            block = stream.read(BLOCK_BYTES)
        except (OSError, ValueError) as error:  # a disk or mount that fails half-way
            notes.append(f"{file.name}: reading stopped half-way: {error}")
            return
        if not block:
            return
        if advance is not None:
            advance(len(block))
        yield block
