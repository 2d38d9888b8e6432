"""The supervisor of a job: one detached actor that joins what happens to it into stories, and keeps count.

It restarts nothing itself, and the job does not notice its end: Ray starts it again, and it goes on from what
it saved. Made by ``rayguard.cluster.install.installation``; its loop is ``loop``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os

from rayguard.cluster.actor_names import SUPERVISOR_KEY
from rayguard.cluster.agent import state_files
from rayguard.cluster.supervisor.loop import SupervisorLoop
from rayguard.cluster.supervisor.policy import SupervisorPolicy
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.home import home
from rayguard.metrics import sources
from rayguard.metrics.instruments.job import JOB_INSTRUMENTS
from rayguard.metrics.node.numbers_file import NumbersPage
from rayguard.pool.background_loop import Background
from rayguard.ray_internals import kv
from rayguard.recovery.status import Who

_log = logging.getLogger("rayguard")
POLICY = "RAYGUARD_SUPERVISOR"  # JSON, as SupervisorPolicy.of takes it; of the node where it runs
_STOP_S = 5.0


class Supervisor:
    """The actor's class."""

    def __init__(self, job_id: str) -> None:
        import ray  # noqa: PLC0415 - only where Ray runs

        context = ray.get_runtime_context()
        self._node_id = context.get_node_id()
        self._background = Background("rayguard-supervisor")
        me = context.get_actor_id(), self._node_id
        self._loop = SupervisorLoop(job_id, _policy(), context.gcs_address, self._end, me)
        self._running = self._background.begin(self._supervise())
        self._page: NumbersPage | None = None
        with harmless("supervisor"):
            sources.show("job", JOB_INSTRUMENTS, lambda: self._loop.reading)
            self._page = NumbersPage(home(), Who(actor_class=type(self).__name__, job_id=job_id))
            self._page.start()
        with harmless("supervisor"):
            kv.put_record(f"{SUPERVISOR_KEY}{job_id}", self._hello())

    async def hello(self) -> dict[str, object]:
        """Say who this is."""
        return self._hello()

    async def state(self) -> dict[str, object]:
        """Return what is known of the job, in plain JSON types; empty until it has begun."""

        async def shown() -> dict[str, object]:
            return self._loop.state.shown() if self._loop.state is not None else {}

        return await asyncio.wrap_future(self._background.begin(shown()))

    async def stop(self) -> None:
        """Save and do no more; it can be ended then."""
        if not self._running.done():
            saving = asyncio.wrap_future(self._background.begin(self._loop.save()))
            with harmless("supervisor"):
                await asyncio.wait_for(saving, _STOP_S)
            self._running.cancel()
        if self._page is not None:
            sources.hide("job")
            await asyncio.to_thread(self._page.close)

    async def _supervise(self) -> None:
        with harmless("supervisor"):  # private interfaces of Ray: one that is missing is said and counted
            await self._loop.run()

    def _hello(self) -> dict[str, object]:
        return {
            "version": state_files.version(),
            "pid": os.getpid(),
            "node_id": self._node_id,
            "job_id": self._loop.job_id,
            "url": "",
        }

    def _end(self) -> None:
        """End this actor: its job is over."""
        if self._page is not None:
            self._page.close()
        self._background.begin(self._loop.end_actor())


def _policy() -> SupervisorPolicy:
    """Return the policy; one that cannot be used is said, and the usual one taken: the job goes on."""
    try:
        return SupervisorPolicy.of(json.loads(os.environ.get(POLICY) or "{}"))
    except (ConfigError, ValueError, AttributeError) as error:
        _log.error("rayguard: %s; the usual policy is taken", error)
        return SupervisorPolicy()
