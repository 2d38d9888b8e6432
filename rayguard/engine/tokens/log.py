"""The tokens of requests in flight, kept outside the fate of engine and actor: a mapped file per process.

The process that samples writes it; anyone who may read the file reads it, most of all after the writer was
killed. What is in it is in flight: an answered request is forgotten. The bytes are ``frames``, the
mapping is ``file``; sending tokens to another node and continuing a request are done elsewhere.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from array import array
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from rayguard.engine.tokens import frames
from rayguard.engine.tokens.file import LIMIT_BYTES_MAX, TokenLogFile, read_valid
from rayguard.errors import ConfigError
from rayguard.process import owned_files
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from rayguard.engine.generated import Generated
    from rayguard.engine.tokens.frames import Logged

_log = logging.getLogger("rayguard")
_LIMIT_BYTES_MIN = 4_096
_STEP_BYTES = 1 << 20  # a file grows by this, in 80 us where it is in memory
_SIZE = (1 << 32) - 1


@dataclass(slots=True)
class _Live:
    """One request in flight.

    Invariant: ``size`` is what its two frames take in a file that is written anew; ``places`` are its
    entries in order, each as offset << 32 | size.
    """

    number: int
    begun: bytes
    size: int
    tokens: int = 0
    places: array[int] = field(default_factory=lambda: array("Q"))
    cut: bool = False  # tokens of it could not be logged, so none behind them may be


class TokenLog:
    """The log of this process, for one thread at a time. It replaces what lies at ``path``.

    After the constructor nothing raises for want of room: ``refused`` counts requests that were not taken,
    ``cut`` those of which only the first tokens are kept. A child forked from the writer writes nothing.

    Invariant: behind the last frame there is room for the end of each request, so ``end`` never fails.
    """

    def __init__(self, path: Path, *, limit_bytes: int = 64 << 20) -> None:
        if not _LIMIT_BYTES_MIN <= limit_bytes <= LIMIT_BYTES_MAX:
            raise ConfigError(
                f"a token log of {_LIMIT_BYTES_MIN} to {LIMIT_BYTES_MAX} bytes, not {limit_bytes}"
            )
        self.path = path
        self.refused = 0
        self.cut = 0
        self._limit = limit_bytes
        self._step = min(_STEP_BYTES, limit_bytes // 8)
        self._pid = os.getpid()
        self._mark = owner_mark(ProcessId.me())
        self._numbers = count(1)
        self._live: dict[str, _Live] = {}
        self._live_bytes = 0
        self._said: set[str] = set()
        self._open = True
        self._file, _ = self._new_file()

    def begin(self, request_id: str, fingerprint: str) -> None:
        """Note a request in flight; of one that is known already the tokens are forgotten."""
        if not self._ours():
            return
        self.end((request_id,))
        number = next(self._numbers)
        begun = frames.begun(number, request_id, fingerprint)
        size = len(begun) + 2 * frames.FRAME_BYTES
        # The last quarter is for those that run: a request that is refused costs less than one that is cut.
        if self._live_bytes + size > self._limit * 3 // 4 or not self._room(
            frames.FRAME_BYTES + len(begun) + frames.END_BYTES
        ):
            self.refused += 1
            return
        self._file.put(frames.BEGIN, begun)
        self._live[request_id] = _Live(number, begun, size)
        self._live_bytes += size

    def append(self, entries: Sequence[tuple[str, Generated]]) -> None:
        """Note what came since the last time, for all requests of one flush in one frame."""
        flush = self._packed(entries) if self._ours() else []
        if not flush or self._put(flush):
            return
        for one in flush:  # a large one must not take the others with it
            if not one[0].cut and not self._put([one]):
                self._cut(one[0])

    def end(self, request_ids: Iterable[str]) -> None:
        """Forget requests that were answered or aborted."""
        if not self._ours():
            return
        ended = [live for name in request_ids if (live := self._live.pop(name, None)) is not None]
        if not ended:
            return
        self._live_bytes -= sum(live.size for live in ended)
        if self._live:
            self._file.put(frames.END, frames.ended(live.number for live in ended))
        else:
            self._tried(partial(self._file.clear, frames.HEADER_BYTES + self._step))

    def behind(self, tokens: int) -> None:
        """Note how many tokens reached this process and were not handed to ``append`` yet. Takes 0.3 us."""
        if self._ours():
            self._file.behind(tokens)

    def close(self) -> None:
        """Remove the file: nothing is in flight any more."""
        if self._open:
            if self._ours():
                self._tried(self._file.remove)
            self._open = False
            self._file.release()

    def _ours(self) -> bool:
        return self._open and os.getpid() == self._pid

    def _packed(self, entries: Sequence[tuple[str, Generated]]) -> list[tuple[_Live, bytes]]:
        flush = []
        for name, more in entries:
            live = self._live.get(name)
            if live is None or live.cut or not more.tokens:
                continue
            try:
                flush.append((live, frames.entry(live.number, live.tokens, more)))
            except (ValueError, struct.error) as error:
                self._failed(error)
                self._cut(live)
            live.tokens += len(more.tokens)
        return flush

    def _put(self, flush: list[tuple[_Live, bytes]]) -> bool:
        body = b"".join([entry for _, entry in flush])
        if not self._room(frames.FRAME_BYTES + len(body)):
            return False
        at = self._file.put(frames.APPEND, body)
        for live, entry in flush:
            size = len(entry)
            live.places.append(at << 32 | size)
            live.size += size
            at += size
        self._live_bytes += len(body)
        return True

    def _cut(self, live: _Live) -> None:
        live.cut = True
        self.cut += 1

    # -- room ----------------------------------------------------------------------------------------------

    def _room(self, need: int) -> bool:
        """Say whether ``need`` bytes can be written, after making room where that is worth its cost."""
        need += frames.END_BYTES * len(self._live)
        if self._file.end + need <= self._file.allocated:
            return True
        if self._worth_rewriting(need):
            self._tried(self._rewrite)
        end, file = self._file.end + need, self._file
        return end <= file.allocated or (end <= self._limit and self._tried(partial(self._grow, end)))

    def _worth_rewriting(self, need: int) -> bool:
        """Say so when at least as much is garbage as must be copied; at the limit an eighth of it will do."""
        garbage = self._file.end - frames.HEADER_BYTES - self._live_bytes
        if self._file.end + need <= self._limit:
            return garbage > self._live_bytes
        return garbage > self._limit // 8 and frames.HEADER_BYTES + self._live_bytes + need <= self._limit

    def _grow(self, end: int) -> None:
        self._file.allocate(min(self._limit, max(end, self._file.allocated + self._step)))

    def _rewrite(self) -> None:
        """Put a file in the place of this one that has only what is in flight."""
        old = self._file
        self._file, places = self._new_file()
        for live, place in zip(self._live.values(), places, strict=True):
            live.places = place
        old.release()

    def _new_file(self) -> tuple[TokenLogFile, list[array[int]]]:
        """Return a file in its place, and where it has the entries of each request. Or leave no trace."""
        need = frames.HEADER_BYTES + self._live_bytes + frames.END_BYTES * len(self._live)
        allocate = min(self._limit, need + self._step)
        new = TokenLogFile(self.path, limit_bytes=self._limit, allocate_bytes=allocate, mark=self._mark)
        try:
            places = [self._copied(live, new) for live in self._live.values()]
            new.publish()
        except BaseException:
            new.remove()
            new.release()
            raise
        return new, places

    def _copied(self, live: _Live, new: TokenLogFile) -> array[int]:
        new.put(frames.BEGIN, live.begun)
        if not live.places:
            return live.places
        body = b"".join([self._file.read(place >> 32, place & _SIZE) for place in live.places])
        return array("Q", [new.put(frames.APPEND, body) << 32 | len(body)])

    def _tried(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except OSError as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        TALLY.guard_error("token_log")
        number = error.errno if isinstance(error, OSError) else None
        reason = errno.errorcode.get(number or 0, type(error).__name__)
        if reason not in self._said:  # a full disk fails at each flush: say it once
            self._said.add(reason)
            _log.error("the token log %s does not keep everything: %r", self.path, error)


def log_path(directory: Path, writer: ProcessId | None = None) -> Path:
    """Return where ``writer`` (the calling process by default) keeps its log; the name says who it is."""
    return owned_files.path_of(directory, "tokens", "log", writer)


def sweep(directory: Path, *, older_than_s: float = 600.0) -> list[Path]:
    """Remove the logs of writers that are provably dead (``rayguard.process.owned_files``); return which.

    Whoever continues the requests of a dead writer needs the time after its death.
    """
    return owned_files.sweep(directory, "tokens", "log", older_than_s=older_than_s)


def read_log(path: Path) -> dict[str, Logged]:
    """Return what was in flight when the writer of ``path`` wrote last; nothing where there is no log.

    Raises nothing, whatever the file holds. Of a file that was damaged it returns what stood before that.
    """
    return read_left(path)[0]


def read_left(path: Path) -> tuple[dict[str, Logged], int | None]:
    """Do as ``read_log``; say too how many tokens had reached the writer and are not in it (None: no log)."""
    data = read_valid(path)
    return frames.parse(data), frames.behind(data)
