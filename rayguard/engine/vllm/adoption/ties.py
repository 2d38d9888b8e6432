"""Whose end ends a process of an engine; and how a core outlives its owner where it has a lease.

A worker ends with its core. A core ends with its owner and with the process that forked it. A core whose
owner said so (``ADOPTABLE_ENV``) and left a lease (``rayguard.engine.adoption.lease``) waits for an heir
instead: at least ``PROMISE_S``, up to the lease's ``keep_s`` while Ray says that the actor comes back, and
longer while an heir that has said that it wants it is on its way. An actor that died with its pool's owner
comes back as another one, if that owner does.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import psutil

from rayguard.engine.adoption import lease as leases
from rayguard.engine.adoption.actor_fate import NOBODY_KNOWS, UNKNOWN, ActorFate
from rayguard.engine.adoption.arguments import ADOPTABLE_ENV
from rayguard.engine.deadline import bounded
from rayguard.home import home
from rayguard.memory.probes.node import NodeProbe
from rayguard.process.cleanup import belongings
from rayguard.process.deaths import DeathWatch
from rayguard.process.identity import OWNER_ENV, ProcessId, claim, owner_mark, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.adoption.lease import EngineLease

PROMISE_S = 3.0  # until Ray has said that its actor comes back
ASKED_S = 15.0  # for Ray's answer, which takes 1.5 s on a machine that does nothing else
HEIR_S = 600.0  # for an heir that has come, and imports or loads what its engine's client needs
_log = logging.getLogger("rayguard")
_PR_SET_PDEATHSIG = 1
_TIDY_S = 5.0  # milliseconds, but for a home that hangs or a machine that is overrun
_LOOK_S = 0.25
_SHORT_SHARE = 0.95  # of the machine, or a cgroup: who died for memory has not been the one that held it
_GOES_ON = frozenset({"RESTARTING", "ALIVE", "PENDING_CREATION", "DEPENDENCIES_UNREADY"})


class Ties:
    """Of the calling process. A forked child makes its own."""

    def __init__(self, mark: str, owner: ProcessId, *, core: bool) -> None:
        self._owner = owner
        self._turn = threading.Condition()
        self._waiting = False
        self._deaths = DeathWatch("rayguard-tie")
        adoptable, parent = bool(os.environ.get(ADOPTABLE_ENV)), os.getppid()
        self._waits = adoptable and core
        # A worker of an adoptable core is the core's: that may have another owner tomorrow.
        of_core = ProcessId.of(parent) if adoptable and not core else None
        self._claim = claim(mark if of_core is None else owner_mark(of_core))
        if self._waits:  # not the server's that forked it, which ends with the owner
            self._end_with(owner)
            return
        if _starts_from_main_thread(parent, owner):
            _arm_death_signal()
        for pid in {parent} if of_core is not None else {owner.pid, maker() or owner.pid, parent}:
            self._end_with(owner if pid == owner.pid else ProcessId.of(pid))
        if os.getppid() != parent:  # it died before the death signal was armed
            _exit(owner)

    def _end_with(self, tie: ProcessId | None) -> None:
        # One who began after us has the pid of someone who died before we looked.
        if tie is None or tie.started > ProcessId.me().started:
            _exit(self._owner)
        self._watch(tie)
        if not tie.alive():  # dead already: the watch's thread tells us too, but later than what comes next
            _exit(self._owner)

    def forked(self) -> None:
        """Put down in a child what its parent claims."""
        os.close(self._claim)

    def _watch(self, tie: ProcessId) -> None:
        self._deaths.watch(tie, self._owner_died if self._waits else _exit)

    def taken(self, mark: str) -> None:
        """Belong to the owner that ``mark`` names from now on."""
        owner = owner_of(mark)
        if owner is None:
            raise ValueError(f"{mark!r} names no process")
        with self._turn:
            before, self._owner, self._waiting = self._owner, owner, False
            os.environ[OWNER_ENV] = mark
            self._claim_for(mark)
            self._deaths.unwatch(before)
            self._watch(owner)
            self._turn.notify_all()

    def _owner_died(self, owner: ProcessId) -> None:
        left = leases.read(home(), ProcessId.me())
        if left is None:  # its owner took it away, or never left one: it ends on purpose
            self._end()
        if _memory_is_short():
            _log.warning("rayguard: this engine ends with its actor: memory is short, although that is dead")
            self._end()
        with self._turn:
            if self._owner != owner or self._waiting:
                return
            self._waiting = True
            for stop in stops:
                stop()
            self._claim_for(owner_mark(ProcessId.me()))  # of nobody dead: who tidies up leaves it alone
        # Not here: this is the thread that is told of the next death.
        threading.Thread(target=self._wait, args=(left,), name="rayguard-heir", daemon=True).start()

    def _wait(self, left: EngineLease) -> None:
        fate = None
        try:
            if left.gcs_address and left.actor_id:
                with contextlib.suppress(OSError):
                    fate = ActorFate(left.gcs_address, left.actor_id, *left.pool_owner())
            began, state = time.monotonic(), UNKNOWN
            while True:
                with self._turn:
                    if self._turn.wait_for(lambda: not self._waiting, _LOOK_S):
                        return
                now = leases.read(home(), ProcessId.me())
                state = NOBODY_KNOWS if fate is None else fate.state
                if now is None or time.monotonic() - began > _limit_s(now, state):
                    break
            said = "its lease was taken away" if now is None else f"Ray says of it: {state or 'nothing'}"
            waited_s = time.monotonic() - began
            _log.warning("rayguard: this engine ends, %.1f s after its actor's death: %s", waited_s, said)
        finally:
            if fate is not None:
                fate.close()
        self._end()

    def _end(self) -> NoReturn:
        with contextlib.suppress(Exception):
            leases.remove(home(), ProcessId.me())
        _exit(self._owner)

    def _claim_for(self, mark: str) -> None:
        before, self._claim = self._claim, claim(mark)
        os.close(before)


def _limit_s(left: EngineLease, state: str) -> float:
    """Return how long an engine waits whose actor is in ``state``, as Ray names it."""
    if left.raylet is not None and not left.raylet.alive():
        return 0.0
    if left.awaited():
        return max(HEIR_S, left.keep_s)
    if state == UNKNOWN:
        return ASKED_S
    return left.keep_s if state in _GOES_ON else PROMISE_S


_of_this_process: list[Ties] = []
stops: list[Callable[[], None]] = []  # each ends what this core works on, when nobody is there to hear of it


def tie(mark: str, owner: ProcessId, *, core: bool) -> None:
    """Let the calling process end with whom it belongs to; once."""
    while _of_this_process:
        _of_this_process.pop().forked()
    _of_this_process.append(Ties(mark, owner, core=core))


def here() -> Ties:
    """Return the ties of the calling process."""
    return _of_this_process[0]


def _memory_is_short() -> bool:
    """Say whether memory is short although the owner is gone: then it is the engine's that is needed."""
    return any(limit.used > _SHORT_SHARE * limit.total for limit in NodeProbe().limits())


def maker() -> int | None:
    """Return the pid of who made this process; not always its parent, which may be a prefork server."""
    maker = multiprocessing.parent_process()
    return None if maker is None else maker.pid


def _starts_from_main_thread(parent: int, owner: ProcessId) -> bool:
    """Say whether the death signal can be armed: it comes when the parent's *thread* that forked us ends.

    A core forks workers, and a prefork server (a child of the owner that is not our maker) forks cores,
    from the main thread. An owner starts engines from any thread, its rebuild thread above all, which
    ends when the engine is up: the signal would kill each rebuilt engine at once.
    """
    if parent == owner.pid:
        return False
    if parent == maker():
        return True
    try:
        return psutil.Process(parent).ppid() == owner.pid
    except psutil.Error:
        return False


def _arm_death_signal() -> None:
    """Ask for SIGKILL with the parent's end: ends us even when native code never lets a thread run."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        _log.warning("no death signal for process %d: errno %d", os.getpid(), ctypes.get_errno())


def _exit(_: ProcessId) -> NoReturn:
    """End at once: nobody is left to answer, and a clean shutdown may wait for the dead."""
    with contextlib.suppress(Exception):
        owner = owner_of(os.environ.get(OWNER_ENV, ""))
        if owner is not None and not owner.alive():  # else it tidies up itself
            bounded(lambda: belongings.unlink_own(owner, home()), _TIDY_S)
    os._exit(1)
