"""The loop of a job's supervisor: hears Ray and the agents, asks the decision, carries it out.

One event at a time; what takes time (a question to Ray, an agent, the disk) goes on aside, each with a
deadline. Nothing that fails in here ends it. What follows from an event is ``supervisor_state``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from rayguard.cluster import supervisor_hands as hands
from rayguard.cluster.gcs_events import GcsLine, listen
from rayguard.cluster.supervisor_events import (
    Action,
    AskDeath,
    DeathTold,
    Event,
    JobOver,
    Leave,
    NodesDraining,
    Readmit,
    Shun,
    StopActor,
    Stopped,
    Tick,
    Told,
    WriteIncident,
)
from rayguard.cluster.supervisor_memory import restored, saved
from rayguard.cluster.supervisor_state import handle
from rayguard.metrics.job_instruments import JobReading
from rayguard.recovery.harmless import counted, harmless
from rayguard.recovery.incident import Incident

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from rayguard.cluster.job_state import JobState
    from rayguard.cluster.supervisor_policy import SupervisorPolicy

TICK_S = 1.0
PULL_S = 2.0  # between two questions to one agent
_NODES_PER_S = 25  # so many agents are asked in a second, at most
_SOON_S = 0.3  # after the end of a process its agent has something to tell
_AGENT_S = 10.0
_HAND_S = 10.0
_DEATH_S = (0.2, 0.5, 2.0)  # Ray notes how a process ended a moment after it says that its actor starts again
_LOADS = 3
_SAVE_S = 2.0
_SAVE_SHARE = 50  # saving takes no more than a fiftieth of the time
_IDLE_SAVE_S = 30.0
_LAST_WORDS_S = 3.0  # for what the processes of a job that ended still have to tell
_NOT_UNDER = "it is not under rayguard, as far as can be proved"


class Rounds:
    """Supervises one job, until it is over or ``stop`` is called. ``left`` is called when the job is over.

    ``me``: its own actor and node.
    """

    def __init__(
        self,
        job_id: str,
        policy: SupervisorPolicy,
        address: str,
        left: Callable[[], None] = lambda: None,
        me: tuple[str, str] = ("", ""),
    ) -> None:
        self.job_id = job_id
        self.reading = JobReading()
        self.state: JobState | None = None
        self._policy = policy
        self._address = address
        self._left = left
        self._me = me
        self._cursors: dict[str, str] = {}
        self._due: dict[str, float] = {}  # when an agent is asked next, monotonic
        self._agents: dict[str, Any] = {}
        self._up: dict[str, bool] = {}
        self._aside: set[asyncio.Task[None]] = set()
        self._pulling: set[str] = set()
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
            await self._hand(hands.sweep)
        parts = (
            listen(lambda: GcsLine(self._address, self.job_id), self.take, self._wake),
            self._ticking(),
            self._writing(),
        )
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in [*tasks, *self._aside]:
                task.cancel()
            await asyncio.gather(*tasks, *self._aside, return_exceptions=True)
            await self._line.close()

    def take(self, event: Event) -> None:
        """Take one event, and begin to do what follows from it."""
        if self.state is None:
            return
        if isinstance(event, JobOver) and not self._over:
            self._over = True
            self._begin(self._end())
            return
        if isinstance(event, NodesDraining) and self._should_move(event):
            self._begin(self._move())
        with harmless("supervisor"):
            self._dirty = self._dirty or not isinstance(event, Tick)
            for action in handle(self.state, event):
                self._act(action)

    async def save(self) -> None:
        """Keep the state beyond this process."""
        async with self._saving:
            if self.state is None or self.state.over:  # what was kept of a job that is over is taken away
                return
            with harmless("supervisor"):  # what is kept as told is told: this process may end at any time
                await asyncio.wait_for(self._written.join(), _HAND_S)
            began, self._save_s = time.monotonic(), _IDLE_SAVE_S  # an outage is not asked every other second
            self._saved_at, self._dirty, kept = began, False, False
            with harmless("supervisor"):
                await self._hand(hands.save, self.job_id, saved(self.state, self._cursors))
                self._save_s, kept = max(_SAVE_S, _SAVE_SHARE * (time.monotonic() - began)), True
            self._dirty = self._dirty or not kept

    async def end_actor(self, *, again: bool = False) -> None:
        """End this actor, for good unless ``again``: Ray starts again what ends by itself."""
        with harmless("supervisor"):
            await asyncio.wait_for(self._line.kill(self._me[0], again=again), _HAND_S)

    def _should_move(self, event: NodesDraining) -> bool:
        """Say whether this actor keeps a node that will go from being idle, and there is another one."""
        assert self.state is not None
        return self._me[1] in event.deadlines and bool(self.state.nodes.keys() - event.deadlines.keys())

    async def _move(self) -> None:
        """Have Ray start this actor again, on a node that stays."""
        await self.save()
        await self.end_actor(again=True)

    async def _recall(self, began_at: float) -> None:
        values: dict[str, Any] = {}
        for _ in range(_LOADS):  # who begins from nothing saves that over what is kept
            with harmless("supervisor"):
                values = await self._hand(hands.load, self.job_id)
                break
            await asyncio.sleep(TICK_S)
        try:
            self.state, self._cursors = restored(values, self.job_id, self._policy, began_at)
        except (KeyError, TypeError, ValueError, AttributeError):  # of another version, or torn
            with harmless("supervisor"):
                raise
            self.state, self._cursors = restored({}, self.job_id, self._policy, began_at)

    async def _ticking(self) -> None:
        while True:
            with harmless("supervisor"):
                await self._tick()
            await asyncio.sleep(TICK_S)

    async def _tick(self) -> None:
        assert self.state is not None
        now = time.monotonic()
        nodes = self.state.nodes
        for known in (self._due, self._agents, self._up, self._cursors):
            for node in [one for one in known if one not in nodes]:
                del known[node]
        for node in nodes:
            if self._due.setdefault(node, now) <= now:
                self._pull(node)
        up = sum(self._up.get(node, False) for node in nodes)
        missing = sum(self._up.get(node) is False for node in nodes)
        self.take(Tick(at=time.time(), agents=(up, missing)))
        self.reading = self.state.reading()
        if now - self._saved_at >= (self._save_s if self._dirty else _IDLE_SAVE_S):
            await self.save()

    def _wake(self, node: str) -> None:
        """Ask the agent of ``node`` soon: a process ended there."""
        if node in self._due:
            self._due[node] = min(self._due[node], time.monotonic() + _SOON_S)

    def _pull(self, node: str) -> None:
        assert self.state is not None
        if node in self._pulling:
            return
        self._pulling.add(node)
        self._due[node] = time.monotonic() + max(PULL_S, len(self.state.nodes) / _NODES_PER_S)
        self._begin(self._pulled(node))

    async def _pulled(self, node: str) -> None:
        try:
            while await asyncio.wait_for(self._told(node), _AGENT_S):
                pass
            self._up[node] = True
        except Exception as error:  # noqa: BLE001 - an agent that is gone, busy or of another version
            if self._up.get(node):  # once for each time that it is lost; it is asked again
                counted("agent", error)
            self._up[node] = False
            self._agents.pop(node, None)
        finally:
            self._pulling.discard(node)

    async def _told(self, node: str) -> bool:
        """Take what an agent has to tell; say whether there may be more."""
        if node not in self._agents:
            self._agents[node] = await asyncio.to_thread(hands.agent_of, node)
        asked = self._agents[node].told.remote(self._cursors.get(node, ""))
        cursor, rows = await asyncio.wrap_future(asked.future())
        incidents = []
        for row in rows:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # of a newer rayguard
                incidents.append(Incident.from_json(row))
        if incidents:
            self.take(Told(incidents=tuple(incidents), at=time.time()))
        self._cursors[node] = cursor  # after they were taken, and saved with them
        return bool(rows)

    def _act(self, action: Action) -> None:
        match action:  # mypy rejects an unhandled action
            case WriteIncident():
                self._written.put_nowait(action.incident)
            case AskDeath():
                self._begin(self._death(action))
            case StopActor():
                self._begin(self._stop_actor(action.actor_id))
            case Shun():
                self._begin(self._hand(hands.shun, action.node, action.until, action.why, self.job_id))
            case Readmit():
                self._begin(self._hand(hands.readmit, action.node))
            case Leave():
                if action.incident is not None:
                    self._written.put_nowait(action.incident)

    async def _writing(self) -> None:
        """Write in the order in which it was decided: an incident opens before it closes."""
        while True:
            incident = await self._written.get()
            with harmless("supervisor"):
                await self._hand(hands.write, incident)
            self._written.task_done()

    async def _death(self, asked: AskDeath) -> None:
        told = DeathTold(actor_id=asked.actor_id, at=time.time())
        for wait_s in _DEATH_S:
            await asyncio.sleep(wait_s)
            with harmless("supervisor"):
                told = await self._line.death(asked.actor_id, asked.worker)
            if told.exit:
                break
        self.take(told)

    async def _stop_actor(self, actor_id: str) -> None:
        """End an actor that is provably under rayguard, and tell what came of it."""
        done, why = False, _NOT_UNDER
        try:
            if await self._is_ours(actor_id):
                await asyncio.wait_for(self._line.kill(actor_id), _HAND_S)
                done, why = True, ""
        except Exception as error:  # noqa: BLE001 - it must be told in any case
            why = f"it could not be stopped: {type(error).__name__}"
        self.take(Stopped(actor_id=actor_id, at=time.time(), done=done, why=why))

    async def _is_ours(self, actor_id: str) -> bool:
        if await self._hand(hands.marked, actor_id):
            return True
        for agent in list(self._agents.values()):
            with contextlib.suppress(Exception):
                asked = asyncio.wrap_future(agent.pages.remote().future())
                pages = await asyncio.wait_for(asked, _AGENT_S)
                if any(page.get("who", {}).get("actor_id") == actor_id for page in pages):
                    return True
        return False

    async def _end(self) -> None:
        """Hear the last words of the job, write the last line, and leave."""
        assert self.state is not None
        with harmless("supervisor"):
            await asyncio.sleep(_LAST_WORDS_S)
            for node in list(self.state.nodes):
                self._pull(node)
            await asyncio.sleep(_LAST_WORDS_S / 2)
            for action in handle(self.state, JobOver(at=time.time())):
                self._act(action)
            await asyncio.wait_for(self._written.join(), _HAND_S)
        async with self._saving:  # a late one would stay for ever
            with harmless("supervisor"):
                await self._hand(hands.forget, self.job_id)
        self._left()

    async def _hand(self, do: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.wait_for(asyncio.to_thread(do, *arguments), _HAND_S)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        async def aside() -> None:
            with harmless("supervisor"):
                await work

        task = asyncio.ensure_future(aside())
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
