"""The loop of a job's supervisor: hears Ray and the agents, asks the decision, carries it out.

One event at a time; what takes time (a question to Ray, an agent, the disk) is a task beside it, each with a
deadline. Nothing that fails in here ends it. What follows from an event is ``job_machine``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rayguard.actors.life import incidents
from rayguard.actors.life.retries import is_restored
from rayguard.cluster.plugin import unmatched_paths
from rayguard.cluster.supervisor import effects, events
from rayguard.cluster.supervisor.agents import AgentsOfNodes
from rayguard.cluster.supervisor.gcs_events import GcsLine, listen
from rayguard.cluster.supervisor.job_machine import handle
from rayguard.cluster.supervisor.snapshot import restored, saved
from rayguard.harmless import harmless
from rayguard.metrics.instruments.job import JobReading
from rayguard.ray_internals.gcs_subscription import all_at_once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rayguard.cluster.supervisor.job_state import JobState
    from rayguard.cluster.supervisor.policy import SupervisorPolicy
    from rayguard.recovery.incident import Incident

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("rayguard")
TICK_S = 1.0
_EFFECT_S = 10.0
_DEATH_S = (0.2, 0.5, 2.0)  # Ray notes how a process ended a moment after it says that its actor starts again
_LOADS = 3
_SAVE_S = 2.0
_SAVE_SHARE = 50  # saving takes no more than a fiftieth of the time
_IDLE_SAVE_S = 30.0
_LAST_WORDS_S = 3.0  # for what the processes of a job that ended still have to tell
_NOT_OURS = "its user asked Ray for its restarts: nobody told that rayguard restores it"


class SupervisorLoop:
    """Supervises one job, until it is over (then ``when_over`` is called) or cancelled.

    ``me``: its own actor and node.
    """

    def __init__(
        self,
        job_id: str,
        policy: SupervisorPolicy,
        address: str,
        when_over: Callable[[], None] = lambda: None,
        me: tuple[str, str] = ("", ""),
    ) -> None:
        self.job_id = job_id
        self.reading = JobReading()
        self.state: JobState | None = None
        self._policy = policy
        self._address = address
        self._when_over = when_over
        self._me = me
        self._agents = AgentsOfNodes(self.take, self._begin)
        self._tasks: set[asyncio.Task[None]] = set()
        self._written: asyncio.Queue[Incident] = asyncio.Queue()
        self._dirty = False
        self._saved_at = float("-inf")
        self._save_s = _SAVE_S
        self._saving = asyncio.Lock()
        self._over = False

    async def run(self) -> None:
        """Supervise until cancelled."""
        self._line = GcsLine(self._address, self.job_id)
        began_at = time.time()
        with harmless("supervisor"):
            began_at = await self._line.began_at()
        await self._recall(began_at)
        with harmless("supervisor"):
            await self._in_thread(effects.sweep)
        hearing = listen(lambda: GcsLine(self._address, self.job_id), self.take, self._agents.wake)
        try:
            await all_at_once(hearing, self._ticking(), self._writing())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._line.close()

    def take(self, event: events.Event) -> None:
        """Take one event, and begin to do what follows from it."""
        if self.state is None:
            return
        if isinstance(event, events.JobOver) and not self._over:
            self._over = True
            self._begin(self._end())
            return
        if isinstance(event, events.NodesDraining) and self._should_move(event):
            self._begin(self._move())
        with harmless("supervisor"):
            self._dirty = self._dirty or not isinstance(event, events.Tick)
            for action in handle(self.state, event):
                self._act(action)

    async def save(self) -> None:
        """Keep the state beyond this process."""
        async with self._saving:
            if self.state is None or self.state.over:  # what was kept of a job that is over is taken away
                return
            with harmless("supervisor"):  # what is kept as told is told: this process may end at any time
                await asyncio.wait_for(self._written.join(), _EFFECT_S)
            began, self._save_s = time.monotonic(), _IDLE_SAVE_S  # an outage is not asked every other second
            self._saved_at, self._dirty, kept = began, False, False
            with harmless("supervisor"):
                await self._in_thread(effects.save, self.job_id, saved(self.state, self._agents.cursors))
                self._save_s, kept = max(_SAVE_S, _SAVE_SHARE * (time.monotonic() - began)), True
            self._dirty = self._dirty or not kept

    async def end_actor(self, *, again: bool = False) -> None:
        """End this actor, for good unless ``again``: Ray starts again what ends by itself."""
        with harmless("supervisor"):
            await asyncio.wait_for(self._line.kill(self._me[0], again=again), _EFFECT_S)

    def _should_move(self, event: events.NodesDraining) -> bool:
        """Say whether this actor keeps a node that will go from being idle, and there is another one."""
        assert self.state is not None
        return self._me[1] in event.deadlines and bool(self.state.nodes.keys() - event.deadlines.keys())

    async def _move(self) -> None:
        """Have Ray start this actor again, on a node that stays."""
        await self.save()
        await self.end_actor(again=True)

    async def _recall(self, began_at: float) -> None:
        values: dict[str, object] = {}
        for _ in range(_LOADS):  # who begins from nothing saves that over what is kept
            with harmless("supervisor"):
                values = await self._in_thread(effects.load, self.job_id)
                break
            await asyncio.sleep(TICK_S)
        try:
            self.state, self._agents.cursors = restored(values, self.job_id, self._policy, began_at)
        except (KeyError, TypeError, ValueError, AttributeError):  # of another version, or torn
            with harmless("supervisor"):
                raise
            self.state, self._agents.cursors = restored({}, self.job_id, self._policy, began_at)

    async def _ticking(self) -> None:
        while True:
            with harmless("supervisor"):
                await self._tick()
            await asyncio.sleep(TICK_S)

    async def _tick(self) -> None:
        assert self.state is not None
        self.take(events.Tick(at=time.time(), agents=self._agents.tick(self.state.nodes)))
        self.reading = self.state.reading()
        if time.monotonic() - self._saved_at >= (self._save_s if self._dirty else _IDLE_SAVE_S):
            await self.save()

    def _act(self, action: events.Action) -> None:
        match action:  # mypy rejects an unhandled action
            case events.WriteIncident():
                self._written.put_nowait(action.incident)
            case events.AskDeath():
                self._begin(self._death(action))
            case events.StopActor():
                self._begin(self._stop_actor(action.actor_id))
            case events.QuarantineNode():
                known = action.node, action.until, action.why, self.job_id
                self._begin(self._in_thread(effects.quarantine, *known))
            case events.Readmit():
                self._begin(self._in_thread(effects.readmit, action.node))
            case events.Log():
                _log.info("rayguard: %s", action.text)

    async def _writing(self) -> None:
        """Write in the order in which it was decided: an incident opens before it closes."""
        while True:
            incident = await self._written.get()
            with harmless("supervisor"):
                await self._in_thread(incidents.record, incident)
            self._written.task_done()

    async def _death(self, asked: events.AskDeath) -> None:
        report = events.DeathReported(actor_id=asked.actor_id, at=time.time())
        for wait_s in _DEATH_S:
            await asyncio.sleep(wait_s)
            with harmless("supervisor"):
                report = await self._line.death(asked.actor_id, asked.worker)
            if report.exit:
                break
        self.take(report)

    async def _stop_actor(self, actor_id: str) -> None:
        """End an actor if its restarts are rayguard's, and tell what came of it."""
        done, why = False, _NOT_OURS
        try:
            if await self._in_thread(is_restored, actor_id):
                await asyncio.wait_for(self._line.kill(actor_id), _EFFECT_S)
                done, why = True, ""
        except Exception as error:  # noqa: BLE001 - it must be told in any case
            why = f"it could not be stopped: {type(error).__name__}"
        self.take(events.Stopped(actor_id=actor_id, at=time.time(), done=done, why=why))

    async def _end(self) -> None:
        """Hear the last words of the job, log the last line, and leave."""
        assert self.state is not None
        with harmless("supervisor"):
            await asyncio.sleep(_LAST_WORDS_S)
            for node in list(self.state.nodes):
                self._agents.ask(node, len(self.state.nodes))
            await asyncio.sleep(_LAST_WORDS_S / 2)
            for action in handle(self.state, events.JobOver(at=time.time())):
                self._act(action)
            await asyncio.wait_for(self._written.join(), _EFFECT_S)
        with harmless("supervisor"):
            named, seen = await self._line.named_and_seen()
            await self._in_thread(unmatched_paths.tell, named, seen, self.job_id)
        async with self._saving:  # a late one would stay for ever
            with harmless("supervisor"):
                await self._in_thread(effects.forget, self.job_id)
        self._when_over()

    async def _in_thread(self, do: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await asyncio.wait_for(asyncio.to_thread(do, *arguments, **named), _EFFECT_S)

    def _begin(self, work: Awaitable[object]) -> None:
        async def harmlessly() -> None:
            with harmless("supervisor"):
                await work

        task = asyncio.ensure_future(harmlessly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
