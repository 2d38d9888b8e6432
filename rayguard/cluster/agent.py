"""The agent of a node: one detached actor that sees what no single process can, and tells it once.

It watches the node's Ray workers (``deaths``, ``stillness``), reads the node (``agent_node``), takes away
what the dead left, serves the numbers of all processes, and hands on the node's journal. All that it must
not forget is on the disk, so its own end changes nothing: Ray starts it again. It decides nothing about
anybody's work.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rayguard.cluster import agent_marker, agent_told
from rayguard.cluster.agent_node import NodeLook
from rayguard.cluster.agent_peers import Peers
from rayguard.cluster.agent_ray import ClusterOfAgent
from rayguard.cluster.agent_rounds import Rounds
from rayguard.cluster.death_report import Reporter
from rayguard.cluster.deaths import LOOK_S, Deaths
from rayguard.cluster.installation import AGENT
from rayguard.cluster.roster import Roster, Worker
from rayguard.cluster.stillness import Stillness
from rayguard.config import Settings
from rayguard.home import home
from rayguard.metrics import sources
from rayguard.metrics.endpoint import NodeEndpoint
from rayguard.metrics.node_instruments import NODE_INSTRUMENTS
from rayguard.metrics.node_numbers import NodeNumbers
from rayguard.metrics.numbers import NumbersPage
from rayguard.process.identity import ProcessId
from rayguard.process.recording_reader import read_recording, recordings
from rayguard.recovery.harmless import harmless
from rayguard.recovery.journal import Journal
from rayguard.recovery.status import Who, read_pages

if TYPE_CHECKING:
    from pathlib import Path

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
_MAX_RECORDINGS = 100
_OURS = frozenset({"NodeAgent", "Supervisor"})  # they are no work of anybody's
_ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not chosen


class NodeAgent:
    """The actor's class. ``settings`` are ``RAYGUARD_...`` variables that count more than the node's own."""

    def __init__(self, node_id: str, settings: dict[str, str] | None = None) -> None:
        settings = {k: v for k, v in (settings or {}).items() if k.startswith("RAYGUARD_")}
        os.environ.update(settings)
        self._node_id = node_id
        self._home = home()
        self._cluster = ClusterOfAgent(node_id)
        self._roster = Roster(int(os.environ.get("RAY_RAYLET_PID", "") or os.getppid()), self._home)
        self._workers: dict[ProcessId, Worker] = {}
        self._saved: list[Any] = []
        self._look_s = _WORKERS_S
        self._known = agent_told.Known(self._home)
        self._node = NodeLook(self._home)
        tell = Reporter(self._cluster).tell
        self._deaths = Deaths(self._cluster, self._roster, self._known, tell, lambda: self._node.seen)
        self._stillness = Stillness(self._home, node_id, self._known, self._cluster.actor_with)
        self._peers = Peers(self._cluster, settings)
        self._numbers = NodeNumbers(self._home)
        self._endpoint: NodeEndpoint | None = None
        self._page = NumbersPage(self._home, Who(actor_class=type(self).__name__))
        self._rounds = Rounds()
        self._began = False
        self._worked_at = time.monotonic()
        with harmless("agent"):
            self._begin()

    # -- what others ask

    async def hello(self) -> dict[str, Any]:
        """Say who this is and where it serves."""
        return {**self._hello(), "late": self._rounds.late()}

    async def pages(self) -> list[dict[str, Any]]:
        """Return the status pages of the node's processes, newest first."""
        return [page.to_json() for page in await asyncio.to_thread(read_pages, self._home)]

    async def incidents(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Return the node's incidents that were detected since then (wall clock), each in its last state."""
        found = await asyncio.to_thread(Journal(self._home).read)
        return [one.to_json() for one in found if one.detected_at >= since]

    async def told(self, cursor: str = "") -> tuple[str, list[dict[str, Any]]]:
        """Return the journal's records after ``cursor``, and the next cursor; ask again until none comes."""
        return await asyncio.to_thread(agent_told.told, self._home, cursor)

    async def readings(self) -> dict[str, Any]:
        """Return what is known of the node and its workers now."""
        node = self._node.reading
        workers = [
            {
                "pid": one.process.pid,
                "target": one.target,
                "title": one.title,
                "job_id": one.job_id,
                "actor_id": one.actor_id,
                "state": one.state,
                "private_bytes": self._roster.private_bytes(one.process),
                "cpu_s": one.cpu_s,
                "guarded": one.marked,
            }
            for one in list(self._workers.values())
        ]
        return {
            **asdict(replace(node, processes={})),
            **self._hello(),
            "plugin": _has_plugin(),
            "workers": workers,
        }

    async def recordings(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Return what the flight recordings of processes say that died since then, newest first."""
        return await asyncio.to_thread(self._recordings, since)

    async def stop(self) -> None:
        """End all rounds and take away what this agent left but the journal; it can be ended then."""
        await asyncio.to_thread(self._stop)

    # -- what it does

    def _begin(self) -> None:
        """Start what there is to do. A part that fails is missing; the others work."""
        with harmless("agent_endpoint"):
            said = Settings()
            self._endpoint = NodeEndpoint(
                [self._numbers],
                address=said.metrics_address,
                port=said.agent_port,
                token=said.metrics_token(),
                targets=self._peers.targets,
            )
        self._deaths.news = lambda: self._rounds.kick("deaths")
        sources.show("node", NODE_INSTRUMENTS, lambda: self._node.reading)
        self._known.refresh()
        with harmless("agent_deaths"):
            self._recall()
        self._rounds.start("around", self._node.look_around, every_s=lambda: _AROUND_S)
        self._rounds.start("workers", self._look_at_workers, every_s=lambda: self._look_s)
        self._rounds.start("deaths", self._look_at_deaths, every_s=self._until_next_death, deadline_s=60.0)
        self._rounds.start("node", self._look_at_node, every_s=lambda: _NODE_S)
        self._rounds.start("peers", self._look_at_peers, every_s=lambda: self._peers.every_s, deadline_s=30.0)
        self._rounds.start("reap", self._node.reap, every_s=lambda: _REAP_S, deadline_s=60.0)
        self._rounds.start("gcs", self._listen, every_s=lambda: 1.0, deadline_s=float("inf"))
        agent_marker.write(self._home, self._node_id, url=self._endpoint.url if self._endpoint else "")

    def _look_at_workers(self) -> None:
        began = time.thread_time()
        workers = self._roster.look()
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
            self._stillness.adopt(workers)
            self._began = True
        self._stillness.look(workers, self._look_s)

    def _keep(self) -> None:
        """Note on the disk whose deaths are to be told, before anything is done that takes long."""
        known = [_kept(one) for one in self._deaths.watched()]
        if known != self._saved and not self._rounds.stopped.is_set():  # `_stop` has taken the file away
            agent_marker.save(self._home, f"{self._node_id}.known.json", known)
            self._saved = known

    def _look_at_deaths(self) -> None:
        self._deaths.look()

    def _until_next_death(self) -> float:
        return LOOK_S if self._deaths.pending else _QUIET_S

    def _look_at_node(self) -> None:
        self._node.look(self._workers.values(), self._roster.private_bytes, self._deaths.counts)
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

    def _listen(self) -> None:
        self._cluster.listen(self._deaths.reported, self._rounds.stopped)

    def _recall(self) -> None:
        """Take up where an earlier life ended: who is gone since died unseen."""
        saved = agent_marker.load(self._home, f"{self._node_id}.known.json")
        before = [_worker(one) for one in saved or ()]
        self._deaths.watch({one.process: one for one in before})
        # And who came after its last look and went with it: Ray's memory monitor kills several at once.
        last_at = agent_marker.last_at(self._home, self._node_id)
        if last_at is not None:
            for worker_id in self._cluster.gone_since(last_at - _LATE_S):
                self._deaths.reported(worker_id)

    def _hello(self) -> dict[str, Any]:
        endpoint = self._endpoint
        return {
            "version": agent_marker.version(),
            "pid": os.getpid(),
            "node_id": self._node_id,
            "host": socket.gethostname(),
            "home": str(self._home),
            "url": endpoint.url if endpoint else "",
            "address": _address(endpoint) if endpoint else "",
        }

    def _recordings(self, since: float) -> list[dict[str, Any]]:
        found = []
        for path in reversed(recordings(self._home)):
            with harmless("agent_recordings"):
                one = _recording(path, since)
                if one is not None:
                    found.append(one)
            if len(found) >= _MAX_RECORDINGS:
                break
        return found

    def _stop(self) -> None:
        self._rounds.stop()
        self._deaths.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._page.close()
        self._node.close()
        self._known.close()
        with harmless("agent"):
            self._peers.forget()
        with harmless("agent"):
            agent_marker.forget(self._home, self._node_id)


def _recording(path: Path, since: float) -> dict[str, Any] | None:
    one = read_recording(path)
    if one is None or one.alive or one.last_at < since:
        return None
    return {
        "pid": one.process.pid,
        "title": one.title,
        "actor_id": one.actor_id,
        "began_at": one.began_at,
        "last_at": one.last_at,
        "step": one.step,
        "ending": one.ending,
        "grew": one.sentence(),
        "path": str(path),
    }


def _address(endpoint: NodeEndpoint) -> str:
    """Return where Prometheus finds the endpoint: the node's address where it listens to all."""
    host = Settings().metrics_address
    if host in _ANYWHERE:
        import ray  # noqa: PLC0415 - only where Ray runs

        host = ray.util.get_node_ip_address()
    return f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"


def _has_plugin() -> bool:
    """Say whether the node was started with the plugin: its processes inherit that."""
    return _PLUGIN in os.environ.get("RAY_RUNTIME_ENV_PLUGINS", "")


def _kept(one: Worker) -> list[Any]:
    return [
        one.process.pid,
        one.process.started,
        one.title,
        one.target,
        one.job_id,
        one.leads,
        one.marked,
        one.layout,
    ]


def _worker(said: list[Any]) -> Worker:
    pid, started, title, target, job_id, leads, marked, layout = said
    return Worker(
        process=ProcessId(pid, started),
        title=title,
        target=target,
        job_id=job_id,
        leads=leads,
        marked=marked,
        layout=tuple(layout),
    )
