"""Signals to rayguard while it runs a command: kept in order for who waits, or raised where nobody does.

A signal that was ignored when rayguard started (nohup, a job of a script in the background) stays so, for
the command too.
"""

from __future__ import annotations

import contextlib
import queue
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from typing_extensions import Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)  # to the command alone, as without us
FOUND = 0  # no signal: who watches the command has found something
_OTHERS = (signal.SIGTSTP, signal.SIGWINCH)


class StoppedError(BaseException):
    """A signal to end came while no command ran; as with KeyboardInterrupt, no handler of errors takes it.

    Field: ``number``.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """The signals that came, one after the other; ``None`` among them says that the command has ended."""

    def __init__(self) -> None:
        self.came: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # its put may interrupt another one
        self.held = False  # a command is there to get them
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (*ENDING, *PASSED_ON, *_OTHERS):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def next(self, within_s: float) -> int | None:
        """Return the next signal, None where the command has ended.

        Raises:
            queue.Empty: Nothing came.
        """
        return self.came.get(timeout=within_s)

    def late(self) -> int | None:
        """Return a signal to end that came as the command had ended; from now on they are raised."""
        self.held, found = False, None
        with contextlib.suppress(queue.Empty):
            while True:
                number = self.came.get_nowait()
                found = number if number in ENDING else found
        return found

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.held:
            self.came.put(number)
        elif number in ENDING:
            raise StoppedError(number)
