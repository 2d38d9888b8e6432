"""Carrying what a command prints to where rayguard's own output goes: byte for byte, as it comes.

A terminal stays one (a pseudo-terminal stands in for it), pipes and files become pipes; stdout and stderr
stay apart where they are. Each stream has a thread, so that a slow reader of one does not hold up the other.
What is typed reaches the command line by line; Ctrl-C stays a signal to rayguard, which passes it on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import termios
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_WRITE_S, _TYPED_S = 5.0, 0.2
_LOCAL, _OUTPUT = 3, 1  # places in what tcgetattr returns
_END_OF_FILE = b"\x04"


class Streams:
    """Stdin, stdout and stderr of one child, between ``child_files`` and ``end``."""

    def __init__(self, keep: Callable[[int, bytes], None]) -> None:
        self._keep = keep
        self._threads: list[threading.Thread] = []
        self._theirs: list[int] = []  # descriptors that are the child's alone
        self._terminal: int | None = None  # our end of the pseudo-terminal
        self._shown = False  # what the child shows on it has its thread
        self._done = threading.Event()
        self.reader_gone = False  # who reads our output went: the command was told by a closed pipe

    def child_files(self) -> tuple[int | None, int, int]:
        """Return what the child gets as its first three descriptors; None: ours."""
        terminals = [one for one in (1, 2, 0) if os.isatty(one)]
        slave = self._open_terminal(terminals[0]) if terminals else None
        out = self._stream(1, slave)
        same = os.path.sameopenfile(1, 2)
        error = out if same else self._stream(2, slave)
        typed = slave if slave is not None and os.isatty(0) else None
        return typed, out, error

    def begin(self) -> None:
        """Carry, now that the child has its own descriptors."""
        for file in set(self._theirs):
            os.close(file)
        self._theirs.clear()
        if self._terminal is not None and os.isatty(0):
            self._threads.append(_thread(self._carry_typed, self._terminal))
        for thread in self._threads:
            thread.start()

    def resize(self) -> None:
        """Give the pseudo-terminal the size of ours."""
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(_a_terminal(), termios.TIOCGWINSZ, b"\0" * 8)
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def end(self, within_s: float) -> None:
        """Wait until all was carried; after ``within_s`` what still holds the other ends is left alone."""
        self._done.set()
        deadline = time.monotonic() + within_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _stream(self, target: int, slave: int | None) -> int:
        """Return the child's end of a stream whose bytes go to our descriptor ``target``."""
        if slave is not None and os.isatty(target):
            assert self._terminal is not None
            if not self._shown:
                self._shown = True
                shown = os.dup(self._terminal)
                self._threads.append(_thread(self._carry_shown, shown, target))
            return slave
        ours, theirs = os.pipe()
        with contextlib.suppress(OSError):  # more than a user may have
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._theirs.append(theirs)
        self._threads.append(_thread(self._carry, ours, target))
        return theirs

    def _open_terminal(self, like: int) -> int:
        ours, theirs = os.openpty()
        with contextlib.suppress(termios.error):
            attributes = termios.tcgetattr(like)
            attributes[_OUTPUT] &= ~termios.OPOST  # ours makes the ends of lines
            attributes[_LOCAL] &= ~termios.ECHO  # and shows what is typed
            termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        self._terminal = ours
        self._theirs.append(theirs)
        self.resize()
        return theirs

    def _carry(self, source: int, target: int) -> None:
        """Carry until the last writer has gone, or nobody reads what we write."""
        try:
            while chunk := _read(source):
                if not _write(target, chunk):
                    self.reader_gone = True
                    return  # closed below: the command's next write fails, as it would have without us
                self._keep(target, chunk)
        finally:
            os.close(source)

    def _carry_shown(self, source: int, target: int) -> None:
        """The same of the pseudo-terminal, also without a reader: that a terminal goes is told by SIGHUP."""
        try:
            while chunk := _read(source):
                self.reader_gone = self.reader_gone or not _write(target, chunk)
                self._keep(target, chunk)
        finally:
            os.close(source)

    def _carry_typed(self, terminal: int) -> None:
        """Carry what is typed, while rayguard is in the foreground: elsewhere reading would stop it."""
        while not self._done.is_set():
            with contextlib.suppress(OSError, ValueError):
                if os.tcgetpgrp(0) == os.getpgrp() and select.select([0], [], [], _TYPED_S)[0]:
                    os.write(terminal, os.read(0, _BLOCK_BYTES) or _END_OF_FILE)
                    continue
            self._done.wait(_TYPED_S)


def _thread(carry: Callable[..., None], *descriptors: int) -> threading.Thread:
    return threading.Thread(target=carry, args=descriptors, name="rayguard-stream", daemon=True)


def open_all() -> None:
    """Open on nothing what is closed of our first three descriptors: what is opened next would be them."""
    for number in (0, 1, 2):
        if not _is_open(number):
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _a_terminal() -> int:
    return next(one for one in (1, 2, 0) if os.isatty(one))


def _read(source: int) -> bytes:
    try:
        return os.read(source, _BLOCK_BYTES)
    except OSError:  # EIO: the last one let go of the pseudo-terminal
        return b""


def _write(target: int, chunk: bytes) -> bool:
    """Write all of ``chunk``; False where nobody takes it any more."""
    left = memoryview(chunk)
    while left:
        count = _written(target, left)
        if count is None:
            return False
        left = left[count:]
    return True


def _written(target: int, chunk: memoryview) -> int | None:
    try:
        return os.write(target, chunk)
    except BlockingIOError:  # whoever gave it to us does not want to wait
        select.select([], [target], [], _WRITE_S)
        return 0
    except OSError:
        return None
