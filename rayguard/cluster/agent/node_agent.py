"""The agent of a node: one detached actor that sees what no single process can, and tells it once.

It watches the node's Ray workers (``worker_deaths``, ``stalled_workers``), reads the node (``node_reading``),
takes away what the dead left, serves the numbers of all processes, and hands on the node's journal. All that
it must not forget is on the disk, so its own end changes nothing: Ray starts it again. It decides nothing
about anybody's work.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from dataclasses import asdict, replace
from functools import partial

from rayguard.cluster.actor_names import AGENT
from rayguard.cluster.agent import death_incident, journal_feed, state_files
from rayguard.cluster.agent.jobs_here import JobsHere
from rayguard.cluster.agent.node_reading import NodeLook
from rayguard.cluster.agent.peers import Peers
from rayguard.cluster.agent.periodic import PeriodicTasks
from rayguard.cluster.agent.stalled_workers import StalledWorkers
from rayguard.cluster.agent.worker_deaths import LOOK_S, Deaths
from rayguard.cluster.agent.worker_table import Worker, WorkerTable
from rayguard.config import Settings
from rayguard.harmless import harmless
from rayguard.home import home
from rayguard.metrics import sources
from rayguard.metrics.instruments.node import NODE_INSTRUMENTS
from rayguard.metrics.node.endpoint import NodeEndpoint
from rayguard.metrics.node.merged_numbers import NodeNumbers
from rayguard.metrics.node.numbers_file import NumbersPage
from rayguard.process.identity import ProcessId
from rayguard.ray_internals.cluster_state import ClusterOfAgent
from rayguard.recovery.journal import Journal
from rayguard.recovery.status import Who, read_pages

_WORKERS_S = 2.0
_RARELY_S = 15.0
_SHARE = 0.003  # of a core, at most, for looking at the workers: with a thousand of them, looks are rarer
_NODE_S = 5.0
_AROUND_S = 2.0
_REAP_S = 300.0
_END_S = 30.0
_LATE_S = 5.0  # between a look at the workers and what is kept of it
_QUIET_S = 3_600.0  # deaths are told of; there is nothing to look for
_PLUGIN = "rayguard.cluster.plugin"
_TOLD_OF_WORKERS = ("target", "title", "job_id", "actor_id", "state", "cpu_s")
_OURS = frozenset({"NodeAgent", "Supervisor"})  # they are no work of anybody's
_ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not chosen


class NodeAgent:
    """The actor's class."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._home = home()
        self._cluster = ClusterOfAgent(node_id)
        self._table = WorkerTable(int(os.environ.get("RAY_RAYLET_PID", "") or os.getppid()), self._home)
        self._workers: dict[ProcessId, Worker] = {}
        self._saved: list[tuple[object, ...]] = []
        self._look_s = _WORKERS_S
        self._known = journal_feed.KnownIncidents(self._home)
        self._node = NodeLook(self._home)
        tell = partial(death_incident.tell, self._cluster)
        self._jobs = JobsHere(self._cluster.job)
        seen = lambda: self._node.seen  # noqa: E731 - as of then
        self._deaths = Deaths(self._cluster, self._table, self._known, tell, seen, self._jobs)
        self._stalled = StalledWorkers(self._home, node_id, self._known, self._cluster.actor_with)
        self._peers = Peers(self._cluster, NodeAgent)
        self._numbers = NodeNumbers(self._home)
        self._endpoint: NodeEndpoint | None = None
        self._page = NumbersPage(self._home, Who(actor_class=type(self).__name__))
        self._tasks = PeriodicTasks()
        self._began = False
        self._worked_at = time.monotonic()
        with harmless("agent"):
            self._begin()

    # -- what others ask

    async def hello(self) -> dict[str, object]:
        """Say who this is and where it serves."""
        return {**self._hello(), "late": self._tasks.late()}

    async def pages(self) -> list[dict[str, object]]:
        """Return the status pages of the node's processes, newest first."""
        return [page.to_json() for page in await asyncio.to_thread(read_pages, self._home)]

    async def incidents(self, since: float = 0.0) -> list[dict[str, object]]:
        """Return the node's incidents that were detected since then (wall clock), each in its last state."""
        found = await asyncio.to_thread(Journal(self._home).read)
        return [one.to_json() for one in found if one.detected_at >= since]

    async def told(self, cursor: str = "") -> tuple[str, list[dict[str, object]]]:
        """Return the journal's records after ``cursor``, and the next cursor; ask again until none comes."""
        return await asyncio.to_thread(journal_feed.records_after, self._home, cursor)

    async def readings(self) -> dict[str, object]:
        """Return what is known of the node and its workers now."""
        node = self._node.reading
        workers = [
            {
                "pid": one.process.pid,
                "private_bytes": self._table.private_bytes(one.process),
                "guarded": one.marked,
                **{name: getattr(one, name) for name in _TOLD_OF_WORKERS},
            }
            for one in list(self._workers.values())
        ]
        # A node that was started with the plugin hands that down to its processes.
        plugin = _PLUGIN in os.environ.get("RAY_RUNTIME_ENV_PLUGINS", "")
        reading = asdict(replace(node, processes={}))
        return {**reading, **self._hello(), "plugin": plugin, "workers": workers}

    async def stop(self) -> None:
        """End all tasks and take away what this agent left but the journal; it can be ended then."""
        await asyncio.to_thread(self._stop)

    # -- what it does

    def _begin(self) -> None:
        """Start what there is to do. A part that fails is missing; the others work."""
        with harmless("agent_endpoint"):
            settings = Settings()
            self._endpoint = NodeEndpoint(
                [self._numbers],
                address=settings.metrics_address,
                port=settings.agent_port,
                token=settings.metrics_token(),
                targets=self._peers.targets,
            )
        self._deaths.news = lambda: self._tasks.kick("deaths")
        sources.show("node", NODE_INSTRUMENTS, lambda: self._node.reading)
        self._known.refresh()
        with harmless("agent_deaths"):
            self._recall()
        self._tasks.start("around", self._node.look_around, every_s=lambda: _AROUND_S)
        self._tasks.start("workers", self._look_at_workers, every_s=lambda: self._look_s)
        self._tasks.start(
            "deaths",
            self._deaths.look,
            every_s=lambda: LOOK_S if self._deaths.pending else _QUIET_S,
            deadline_s=60.0,
        )
        self._tasks.start("node", self._look_at_node, every_s=lambda: _NODE_S)
        self._tasks.start("peers", self._look_at_peers, every_s=lambda: self._peers.every_s, deadline_s=30.0)
        self._tasks.start("reap", self._node.reap, every_s=lambda: _REAP_S, deadline_s=60.0)
        listen = partial(self._cluster.listen, self._deaths.reported, self._tasks.stopped)
        self._tasks.start("gcs", listen, every_s=lambda: 1.0, deadline_s=float("inf"))
        state_files.write(self._home, self._node_id, url=self._endpoint.url if self._endpoint else "")

    def _look_at_workers(self) -> None:
        began = time.thread_time()
        workers = self._table.look()
        # Not what follows: an incident costs seconds once, and would put off the next look for minutes.
        self._look_s = min(_RARELY_S, max(_WORKERS_S, (time.thread_time() - began) / _SHARE))
        workers.pop(ProcessId.me(), None)
        if any(not one.idle and one.target not in _OURS for one in workers.values()):
            self._worked_at = time.monotonic()
        self._deaths.watch(workers)
        with harmless("agent_workers"):  # a disk that is full does not end the look
            self._keep()
        self._workers = workers
        if not self._began:
            self._stalled.adopt(workers)
            self._began = True
        self._stalled.look(workers, self._look_s)

    def _keep(self) -> None:
        """Note on the disk whose deaths are to be told, before anything is done that takes long."""
        known = [one.saved() for one in self._deaths.watched()]
        if known != self._saved and not self._tasks.stopped.is_set():  # `_stop` has taken the file away
            state_files.save(self._home, f"{self._node_id}.known.json", known)
            self._saved = known

    def _look_at_node(self) -> None:
        jobs = self._jobs.look(self._numbers.jobs())
        self._node.look(self._workers.values(), self._table.private_bytes, self._deaths.counts, jobs)
        self._page.publish()
        self._numbers.refresh()

    def _look_at_peers(self) -> None:
        self._peers.look(self._hello())
        if self._peers.should_leave(time.monotonic() - self._worked_at):
            self._stop()
            with harmless("agent_peers"):
                self._cluster.end(f"{AGENT}{self._node_id}")
                threading.Event().wait(_END_S)  # this process is killed meanwhile
            os._exit(1)  # Ray did not hear it: what stays would do nothing, its next life tries again

    def _recall(self) -> None:
        """Take up where an earlier life ended: who is gone since died unseen."""
        saved = state_files.load(self._home, f"{self._node_id}.known.json")
        before = [Worker.restored(one) for one in saved] if isinstance(saved, list) else []
        self._deaths.watch({one.process: one for one in before})
        # And who came after its last look and went with it: Ray's memory monitor kills several at once.
        last_at = state_files.last_at(self._home, self._node_id)
        if last_at is not None:
            for worker_id in self._cluster.gone_since(last_at - _LATE_S):
                self._deaths.reported(worker_id)

    def _hello(self) -> dict[str, object]:
        endpoint = self._endpoint
        return {
            "version": state_files.version(),
            "pid": os.getpid(),
            "node_id": self._node_id,
            "host": socket.gethostname(),
            "home": str(self._home),
            "url": endpoint.url if endpoint else "",
            "address": _address(endpoint) if endpoint else "",
        }

    def _stop(self) -> None:
        self._tasks.stop()
        self._deaths.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._page.close()
        self._node.close()
        self._known.close()
        with harmless("agent"):
            self._peers.forget()
        with harmless("agent"):
            state_files.forget(self._home, self._node_id)


def _address(endpoint: NodeEndpoint) -> str:
    """Return where Prometheus finds the endpoint: the node's address where it listens to all."""
    host = Settings().metrics_address
    if host in _ANYWHERE:
        import ray  # noqa: PLC0415 - only where Ray runs

        host = ray.util.get_node_ip_address()
    return f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"
