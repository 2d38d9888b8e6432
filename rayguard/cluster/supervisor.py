"""The supervisor of a job: one detached actor that joins what happens to it into stories, and keeps count.

It restarts nothing itself, and the job does not notice its end: Ray starts it again, and it goes on from what
it saved. Made by ``rayguard.cluster.installation``; its loop is ``supervisor_rounds``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from typing import TYPE_CHECKING, Any

from rayguard.actors.pool.background import Background
from rayguard.cluster import agent_marker, agent_ray
from rayguard.cluster import supervisor_hands as hands
from rayguard.cluster.supervisor_policy import SupervisorPolicy
from rayguard.cluster.supervisor_rounds import Rounds
from rayguard.errors import ConfigError
from rayguard.home import home
from rayguard.metrics import sources
from rayguard.metrics.job_instruments import JOB_INSTRUMENTS
from rayguard.metrics.numbers import NumbersPage
from rayguard.recovery.harmless import harmless
from rayguard.recovery.status import Who

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("rayguard")
POLICY = "RAYGUARD_SUPERVISOR"  # JSON, as SupervisorPolicy.of takes it; of the node where it runs
_STOP_S = 5.0


class Supervisor:
    """The actor's class. ``policy`` is as ``SupervisorPolicy.of`` takes it; without, as the node says."""

    def __init__(self, job_id: str, policy: Mapping[str, Any] | None = None) -> None:
        import ray  # noqa: PLC0415 - only where Ray runs

        context = ray.get_runtime_context()
        self._node_id = context.get_node_id()
        self._background = Background("rayguard-supervisor")
        me = context.get_actor_id(), self._node_id
        self._rounds = Rounds(job_id, _policy(policy), context.gcs_address, self._left, me)
        self._running = self._background.begin(self._supervise())
        self._page: NumbersPage | None = None
        with harmless("supervisor"):
            sources.show("job", JOB_INSTRUMENTS, lambda: self._rounds.reading)
            self._page = NumbersPage(home(), Who(actor_class=type(self).__name__, job_id=job_id))
            self._page.start()
        with harmless("supervisor"):
            agent_ray.say(f"{hands.NAME_KEY}{job_id}", self._hello())

    async def hello(self) -> dict[str, Any]:
        """Say who this is."""
        return self._hello()

    async def state(self) -> dict[str, Any]:
        """Return what is known of the job, in plain JSON types; empty until it has begun."""

        async def shown() -> dict[str, Any]:
            return self._rounds.state.shown() if self._rounds.state is not None else {}

        return await asyncio.wrap_future(self._background.begin(shown()))

    async def stop(self) -> None:
        """Save and do no more; it can be ended then."""
        if not self._running.done():
            saving = asyncio.wrap_future(self._background.begin(self._rounds.save()))
            with harmless("supervisor"):
                await asyncio.wait_for(saving, _STOP_S)
            self._running.cancel()
        if self._page is not None:
            sources.hide("job")
            await asyncio.to_thread(self._page.close)

    async def _supervise(self) -> None:
        with harmless("supervisor"):  # private interfaces of Ray: one that is missing is said and counted
            await self._rounds.run()

    def _hello(self) -> dict[str, Any]:
        return {
            "version": agent_marker.version(),
            "pid": os.getpid(),
            "node_id": self._node_id,
            "job_id": self._rounds.job_id,
            "url": "",
        }

    def _left(self) -> None:
        """End this actor: its job is over."""
        if self._page is not None:
            self._page.close()
        self._background.begin(self._rounds.end_actor())


def _policy(said: Mapping[str, Any] | None) -> SupervisorPolicy:
    """Return the policy; one that cannot be used is said, and the usual one taken: the job goes on."""
    try:
        return SupervisorPolicy.of(json.loads(os.environ.get(POLICY) or "{}") if said is None else said)
    except (ConfigError, ValueError, AttributeError) as error:
        _log.error("rayguard: %s; the usual policy is taken", error)
        return SupervisorPolicy()
