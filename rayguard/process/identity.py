"""Which process this is, whether it still is, and whether it is ours.

Does not end processes or wait for their death; that is ``tree`` and ``deaths``.

Plain ``/proc`` instead of psutil here: one read gives state, CPU time and the raw start ticks in 7 us
(psutil: 35 us for the same three), a watchdog asks every few hundred milliseconds for every process of
every engine, and psutil's start time is a float computed from a clock that an administrator can step.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNER_ENV = "RAYGUARD_OWNER"
_CLAIM = "rayguard-owner:"  # prefix of the memory file that carries the mark
_SHOWN_CLAIM = re.compile(rf"/memfd:{_CLAIM}(.*) \(deleted\)")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_GONE_STATES = frozenset("ZXx")
_REMEMBERED = 256

# Where the fields stand after the command name, which may itself hold spaces and parentheses.
_STATE, _FLAGS, _UTIME, _STIME, _STARTED, _EXIT_STATUS = 0, 6, 11, 12, 19, 49
_PF_EXITING = 0x4  # linux/sched.h


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for ever: ``started`` (clock ticks since boot) tells it from a later one with its pid."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the identity of what runs as ``pid`` now (zombies included), or None."""
        stat = _stat(pid)
        return None if stat is None else cls(pid, int(stat[_STARTED]))

    @classmethod
    def me(cls) -> ProcessId:
        """Return the identity of the calling process."""
        this = cls.of(os.getpid())
        assert this is not None
        return this

    @property
    def started_s(self) -> float:
        """Return when it started, in seconds since boot (CLOCK_BOOTTIME)."""
        return self.started / _TICKS_PER_S

    def alive(self) -> bool:
        """Say whether this very process still runs; a zombie does not, a stopped one does."""
        return self.state() not in _GONE_STATES | {""}

    def state(self) -> str:
        """Return the kernel's letter (R, S, D, T, t, Z ...), or '' when this process is gone."""
        stat = self._own_stat()
        return "" if stat is None else stat[_STATE]

    def exiting(self) -> bool:
        """Say whether the kernel is ending it: it runs no code any more, and may still hold what it had."""
        stat = self._own_stat()
        return stat is not None and bool(int(stat[_FLAGS]) & _PF_EXITING)

    def exitcode(self) -> int | None:
        """Return how it ended, as ``multiprocessing`` says it; None when that is not known.

        The kernel tells only until its parent has asked, often a few ms: ask at once; what was seen then is
        remembered. None for 0 as well: the kernel also shows 0 to those whom it does not tell.
        """
        stat = self._own_stat()
        if stat is not None and stat[_STATE] in _GONE_STATES and int(stat[_EXIT_STATUS]):
            self.ended_with(os.waitstatus_to_exitcode(int(stat[_EXIT_STATUS])))
        return _seen_to_end.get(self)

    def ended_with(self, exitcode: int) -> None:
        """Remember how it ended, told by somebody to whom the kernel said so: also 0."""
        _seen_to_end[self] = exitcode
        while len(_seen_to_end) > _REMEMBERED:
            del _seen_to_end[next(iter(_seen_to_end))]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its threads so far; 0 when it is gone."""
        stat = self._own_stat()
        return 0.0 if stat is None else (int(stat[_UTIME]) + int(stat[_STIME])) / _TICKS_PER_S

    def _own_stat(self) -> list[str] | None:
        stat = _stat(self.pid)
        return stat if stat is not None and int(stat[_STARTED]) == self.started else None


_seen_to_end: dict[ProcessId, int] = {}


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # gone before the open (ENOENT) or during the read (ESRCH)
        return None
    return text[text.rfind(b")") + 2 :].decode("ascii").split()


def owner_mark(p: ProcessId) -> str:
    """Return the text that the processes of owner ``p`` carry."""
    return f"{p.pid}-{p.started}"


def owner_of(mark: str) -> ProcessId | None:
    """Return the owner that ``mark`` names, alive or not; None when it is no mark."""
    pid, _, started = mark.partition("-")
    return ProcessId(int(pid), int(started)) if pid.isdecimal() and started.isdecimal() else None


def mark_environment(mark: str) -> dict[str, str]:
    """Return what an owner puts into the environment before it starts processes.

    ``SPT_NOENV`` keeps setproctitle, which vLLM calls in each engine process, from overwriting the
    environment block with its title: without it ``/proc/<pid>/environ`` reads as zeros and the mark is
    gone (measured with vLLM 0.32).
    """
    return {OWNER_ENV: mark, "SPT_NOENV": "1"}


def claim(mark: str) -> int:
    """Make the calling process carry ``mark``, and return the file descriptor that holds it.

    For processes that were forked and not executed: the kernel shows them with the environment of the
    program they were forked from, where the mark may be missing. The kernel shows an open memory file by
    its name; it is inherited by a fork, closed by an exec, and cannot outlive the process.
    """
    return os.memfd_create(_CLAIM + mark, os.MFD_CLOEXEC)


def owned_by(p: ProcessId, mark: str) -> bool:
    """Say whether ``p`` provably carries ``mark`` and runs as our user; False when it cannot be read."""
    if not mark:
        return False
    try:
        same_user = Path(f"/proc/{p.pid}").stat().st_uid == os.geteuid()
        carries = same_user and (mark == inherited_mark(p.pid) or mark in claimed_marks(p.pid))
    except OSError:
        return False
    # Asked last: had the pid been reused while we read, we would have read a stranger's mark.
    return carries and ProcessId.of(p.pid) == p


def inherited_mark(pid: int) -> str:
    """Return the mark in the environment of a process, '' for none; raises ``OSError``."""
    prefix = f"{OWNER_ENV}=".encode()
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = next((one for one in variables if one.startswith(prefix)), prefix)
    return found.removeprefix(prefix).decode("ascii", "replace")


def claimed_marks(pid: int) -> set[str]:
    """Return the marks that a process claims (``claim``), as the kernel shows them; raises ``OSError``."""
    shown = (name for _, name in open_files(pid))
    claims = (_SHOWN_CLAIM.fullmatch(name) for name in shown)
    return {claim[1] for claim in claims if claim is not None}


def open_files(pid: int) -> Iterator[tuple[Path, str]]:
    """Yield the descriptors of a process and what the kernel shows for each; raises ``OSError``."""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed while we looked
            yield fd, str(fd.readlink())
