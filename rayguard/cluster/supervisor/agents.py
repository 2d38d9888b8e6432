"""The nodes' agents, as the supervisor of a job asks them for what is new in their journals.

Each is asked by itself, with a deadline: one that hangs or is gone holds up no other, and is asked again. A
cursor says how far a journal was read; it is kept with what was made of it (``snapshot``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from rayguard.cluster.actor_names import AGENT, AgentHandle
from rayguard.cluster.supervisor.events import JournalRecords
from rayguard.harmless import counted
from rayguard.ray_internals.rows import OURS
from rayguard.recovery.incident import Incident

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection


PULL_S = 2.0  # between two questions to one agent
_NODES_PER_S = 25  # so many agents are asked in a second, at most
_SOON_S = 0.3  # after the end of a process its agent has something to tell
_AGENT_S = 10.0


class AgentsOfNodes:
    """Asks agents: ``take`` gets what they tell, ``begin`` starts a task beside the loop."""

    def __init__(
        self, take: Callable[[JournalRecords], None], begin: Callable[[Awaitable[None]], None]
    ) -> None:
        self.cursors: dict[str, str] = {}
        self._take, self._begin = take, begin
        self._due: dict[str, float] = {}  # when one is asked next, monotonic
        self._handles: dict[str, AgentHandle] = {}
        self._up: dict[str, bool] = {}
        self._asking: set[str] = set()

    def tick(self, nodes: Collection[str]) -> tuple[int, int]:
        """Ask those whose turn it is, forget other nodes; return how many answer, and how many do not."""
        now = time.monotonic()
        for known in (self._due, self._handles, self._up, self.cursors):
            for node in [one for one in known if one not in nodes]:
                del known[node]
        for node in nodes:
            if self._due.setdefault(node, now) <= now:
                self.ask(node, len(nodes))
        up = sum(self._up.get(node, False) for node in nodes)
        return up, sum(self._up.get(node) is False for node in nodes)

    def wake(self, node: str) -> None:
        """Ask the agent of ``node`` soon: a process ended there."""
        if node in self._due:
            self._due[node] = min(self._due[node], time.monotonic() + _SOON_S)

    def ask(self, node: str, of_nodes: int) -> None:
        """Ask the agent of ``node`` now, unless it is being asked."""
        if node not in self._asking:
            self._asking.add(node)
            self._due[node] = time.monotonic() + max(PULL_S, of_nodes / _NODES_PER_S)
            self._begin(self._ask(node))

    async def _ask(self, node: str) -> None:
        try:
            while await asyncio.wait_for(self._read(node), _AGENT_S):
                pass
            self._up[node] = True
        except Exception as error:  # noqa: BLE001 - an agent that is gone, busy or of another version
            if self._up.get(node):  # once for each time that it is lost; it is asked again
                counted("agent", error)
            self._up[node] = False
            self._handles.pop(node, None)
        finally:
            self._asking.discard(node)

    async def _read(self, node: str) -> bool:
        """Take what an agent has to tell; say whether there may be more."""
        if node not in self._handles:
            import ray  # noqa: PLC0415 - only where Ray runs

            name = f"{AGENT}{node}"
            self._handles[node] = await asyncio.to_thread(ray.get_actor, name, namespace=OURS)
        asked = self._handles[node].told.remote(self.cursors.get(node, ""))
        cursor, rows = await asyncio.wrap_future(asked.future())
        incidents = []
        for row in rows:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # of a newer rayguard
                incidents.append(Incident.from_json(row))
        if incidents:
            self._take(JournalRecords(incidents=tuple(incidents), at=time.time()))
        self.cursors[node] = cursor  # after they were taken, and saved with them
        return bool(rows)
