"""How a command ended, and which signal that speaks of. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

OWN_ERROR, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127  # as env, nohup and shells have them
_SIGNALS = frozenset(int(one) for one in signal.Signals)
# Of a child that a launcher passes on with sys.exit(returncode); -1 and -2 are plain failures as often.
_PASSED_ON = frozenset(
    int(one)
    for one in (
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
    )
)


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit code of a command as ``subprocess`` has it: below zero for a signal."""

    returncode: int

    @property
    def code(self) -> int:
        """Return what a shell makes of it: 128 and the signal's number where one ended the command."""
        return 128 - self.returncode if self.returncode < 0 else self.returncode

    @property
    def signal(self) -> int | None:
        """Return the signal that ended the command, or a process that it speaks for; None for none.

        A shell ends with 137 for a SIGKILL, a Python that calls ``sys.exit(-9)`` with 247.
        """
        if self.returncode < 0:
            return -self.returncode
        if self.returncode - 128 in _SIGNALS and self.returncode - 128 <= signal.SIGTERM:
            return self.returncode - 128
        return 256 - self.returncode if 256 - self.returncode in _PASSED_ON else None

    @property
    def told_to_go(self) -> int | None:
        """Return the signal by which a person or a scheduler ended it; None where that was not so."""
        return self.signal if self.signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) else None

    def __str__(self) -> str:
        number = self.signal
        if number is None:
            return f"ended with exit code {self.returncode}"
        name = signal.Signals(number).name if number in _SIGNALS else f"signal {number}"
        if self.returncode < 0:
            return f"was ended by {name}"
        return f"ended with exit code {self.returncode}, which speaks of {name}"
