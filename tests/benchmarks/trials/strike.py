"""Brings one fault about, at its moment, while the batch runs.

The moment is told by the witness in the target's core, not by what reaches the pool: news travel in bunches,
and a blow right behind a bunch would find nothing left to lose. What a user does beside the batch is ``acts``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import ray

from rayguard.errors import RayguardError
from rayguard.process.identity import ProcessId, owned_by, owner_mark
from tests.benchmarks.trials.plan import Fault, Trial
from tests.benchmarks.trials.rollouts import fuse_of, witnesses
from tests.benchmarks.trials.witness import CoreWitness, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rayguard.testing.fuse import Fuse
    from tests.benchmarks.trials.acts import Act
    from tests.benchmarks.trials.observer import Notes
    from tests.benchmarks.trials.witness import SeenRequest

STATUS_S = 60.0
MOMENT_S = 240.0  # for the batch to come so far, on a machine that is very busy
_LOOK_S = 0.001
_DEATH_S = 30.0
_CHILD_S = 300  # the life of a forked child, if nobody ends it


@dataclass(slots=True)
class Target:
    """One engine of the pool, as it is before a trial."""

    name: str
    actor_id: str
    handle: Any
    actor: psutil.Process
    core: psutil.Process
    worker: psutil.Process
    witness: CoreWitness
    seen: int  # requests that its core had before
    fuse: Fuse

    @classmethod
    def of(cls, pool: Any, folder: Path, name: str, *, rank: int = 0) -> Target:
        """Look at an engine that serves; its worker is the one of ``rank``."""
        shown = pool.status()["engines"][name]
        handle = pool.handles[name]
        pids = ray.get(handle.engine_status.remote(), timeout=STATUS_S)["pids"]
        core = ProcessId.of(pids["core"])
        assert core is not None, f"{name} has no core"
        witness = CoreWitness(witnesses(folder) / name_of(core))
        return cls(
            name=name,
            actor_id=shown["actor_id"],
            handle=handle,
            actor=psutil.Process(shown["pid"]),
            core=psutil.Process(pids["core"]),
            worker=psutil.Process(pids["workers"][rank]),
            witness=witness,
            seen=witness.count,
            fuse=fuse_of(folder, shown["actor_id"]),
        )

    def tokens(self) -> int:
        """Return how many tokens its core made of this batch."""
        return sum(seen.now - seen.start for seen in self.witness.read(self.seen))

    def has(self, prefix: str) -> bool:
        """Say whether a request has come whose id begins so."""
        return any(seen.id.startswith(prefix) for seen in self.witness.read(self.seen))


@dataclass(slots=True)
class Blow:
    """What was done. ``at`` is monotonic; None: the batch was over too soon."""

    at: float | None = None
    wall: float = 0.0
    pid: int = 0
    pushed: str = ""  # the version that an interrupted push came to, or how it failed
    pushing: bool = False  # it was not over when it was struck
    push_s: float = 0.0
    child: int = 0
    died_s: float | None = None  # until a process that was killed was gone to its last thread
    # By the core of an actor that was hit, at that moment.
    seen: list[SeenRequest] = field(default_factory=list)

    def begin(self, pid: int) -> None:
        """It is done now, and will end the process ``pid``; 0: none."""
        self.pid, self.at, self.wall = pid, time.monotonic(), time.time()


@dataclass(slots=True)
class Means:
    """What a fault may need beside its target."""

    notes: Notes
    push: Callable[[], str]  # of other weights, to all engines
    act: Act


def strike(trial: Trial, target: Target, batch: threading.Thread, tokens: int, means: Means) -> Blow:
    """Wait for the moment, strike, and return when the push or the user's own act (if any) is over.

    ``tokens`` is what the target is expected to make of the batch.
    """
    blow, notes = Blow(), means.notes
    if not _moment(lambda: target.tokens() >= trial.part * tokens, batch):
        return blow
    if trial.fault is Fault.ASSERTION:
        target.fuse.light(after=trial.calls)
        return blow
    if trial.fault.acts:
        means.act.kill = lambda: _hit(trial.fault, target, blow)
        means.act.mark = blow.begin
        means.act.do(target)
        return blow
    if not trial.fault.pushes:
        _hit(trial.fault, target, blow)
        return blow
    pushing = _Push(means.push)
    pushing.start()
    if _moment(lambda: any(engine == target.name for _, engine in list(notes.pushes)), pushing):
        threading.Event().wait(trial.delay_s)
        blow.pushing = pushing.is_alive()
        _hit(trial.fault, target, blow)
    pushing.join(MOMENT_S)
    blow.push_s = time.monotonic() - min((at for at, _ in list(notes.pushes)), default=0.0)
    blow.pushed = pushing.told
    return blow


def _moment(has_come: Callable[[], bool], while_alive: threading.Thread) -> bool:
    pause, until = threading.Event(), time.monotonic() + MOMENT_S
    while while_alive.is_alive() and time.monotonic() < until:
        if has_come():
            return True
        pause.wait(_LOOK_S)
    return False


def _hit(fault: Fault, target: Target, blow: Blow) -> None:
    process = _struck(fault, target)
    death = os.pidfd_open(process.pid)
    if fault is Fault.SERVER_KILL_ACTOR:
        for server in servers_of(target.actor):
            server.kill()
    blow.begin(process.pid)
    if fault is Fault.RAY_KILL_ACTOR:  # by way of Ray's other processes, for which it waits a while
        threading.Thread(target=ray.kill, args=(target.handle,), kwargs={"no_restart": False}).start()
    else:
        process.send_signal(_sign(fault))
    if not fault.stops and select.select([death], [], [], _DEATH_S)[0]:
        blow.died_s = time.monotonic() - blow.at
        if fault is Fault.WAITING_KILL_ACTOR:
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end, where it cannot wait
                target.core.kill()
    os.close(death)
    if fault.of_actor:
        # Ray's kill takes up to a second to arrive, and an actor that it ends may read nothing more.
        end = blow.at + (blow.died_s or 0.0)
        blow.seen = target.witness.as_of(int(blow.at * 1e9), int(end * 1e9), target.seen)


def _struck(fault: Fault, target: Target) -> psutil.Process:
    if fault.of_actor:
        return target.actor
    in_worker = fault in {Fault.KILL_WORKER, Fault.STOP_WORKER, Fault.KILL_RANK}
    return target.worker if in_worker else target.core


def _sign(fault: Fault) -> signal.Signals:
    if fault.stops:
        return signal.SIGSTOP
    return signal.SIGTERM if fault is Fault.TERM_CORE else signal.SIGKILL


def servers_of(actor: psutil.Process) -> list[psutil.Process]:
    """Return the processes that fork an actor's engines."""
    owner = ProcessId.of(actor.pid)
    assert owner is not None
    every = psutil.process_iter(["cmdline"])  # None of one that has died
    servers = (one for one in every if "rayguard::prefork" in " ".join(one.info["cmdline"] or ()))
    found = [one for one in servers if owned_by(ProcessId.of(one.pid) or owner, owner_mark(owner))]
    assert found, "no server is the actor's"
    return found


class _Push(threading.Thread):
    """A weight update of the whole pool; it may fail where its engines are killed."""

    def __init__(self, push: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self._push = push
        self.told = "it did not end"

    def run(self) -> None:
        try:
            self.told = self._push()
        except RayguardError as error:
            self.told = f"{type(error).__name__}: {error}"


def burnt(target: Target) -> Blow:
    """After the batch: say when the scheduler failed; a fuse that did not burn is put out."""
    ashes, at = target.fuse.burnt(), target.witness.failed_at
    target.fuse.path.unlink(missing_ok=True)
    if ashes is None or at is None:
        return Blow()
    return Blow(at=at, wall=time.time() - time.monotonic() + at, pid=ashes[1])


def fork_child(pool: Any, name: str) -> int:
    """Let an actor fork a child that holds on to the actor's connection to Ray; return its pid."""
    child: int = ray.get(pool.handles[name].__ray_call__.remote(_forked), timeout=STATUS_S)
    return child


def _forked(_: Any) -> int:
    child = os.fork()
    if child == 0:
        select.select([], [], [], _CHILD_S)
        os._exit(0)
    return child
