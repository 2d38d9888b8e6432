"""One look at a node: its memory, disks, object store, devices and workers, as one ``NodeReading``.

Costs a few milliseconds, most of it waiting for the raylet. A source that fails is left out and counted.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeVar

from rayguard.actors.life import snapshot_files
from rayguard.cluster.agent.state_files import version
from rayguard.harmless import harmless
from rayguard.memory.probes.device import DeviceProbe
from rayguard.memory.probes.files import FilesProbe
from rayguard.memory.probes.sample import Sources, sources_of_this_process
from rayguard.metrics.instruments.node import NodeReading, Processes, Usage
from rayguard.process.cleanup import reaper
from rayguard.process.cleanup.verdict import Fate
from rayguard.process.flight.readings import Machine, MachineReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from rayguard.cluster.agent.worker_table import Worker
    from rayguard.metrics.instruments.node import Whose
    from rayguard.process.identity import ProcessId

T = TypeVar("T")

_REAP_S = 20.0


class NodeLook:
    """What the agent can see of its node. Needs a connected Ray for the object store."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._sources: Sources = sources_of_this_process()
        self._sources.devices = DeviceProbe()  # all of the node, not those that are visible to the agent
        self._disks = {
            name: FilesProbe([path])
            for name, path in zip(("session", "spill"), self._sources.disk.paths, strict=False)
        }
        self._disks.setdefault("session", FilesProbe(["/"]))
        self._disks.setdefault("spill", self._disks["session"])  # as Ray does unless it was told otherwise
        self._disks["home"] = FilesProbe([home])
        self._machine = Machine()
        self._spilled_before: int | None = None
        self._reaped: Counter[str] = Counter()
        self._reaped_bytes: Counter[str] = Counter()
        self.seen: tuple[float, MachineReading | None] = (0.0, None)
        self.reading = NodeReading(version=version(), ray_version=_ray_version())

    def look(
        self,
        workers: Iterable[Worker],
        private_bytes: Callable[[ProcessId], int],
        deaths: Mapping[Whose, int],
        jobs_over: Mapping[str, bool],
    ) -> None:
        """Read everything anew into ``reading``, and put what others know beside it."""
        began = time.perf_counter()
        memory = _read(self._sources.node.read)
        stall = _read(self._sources.node.stall)
        store, spilled = self._store()
        self.reading = NodeReading(
            memory=None if memory is None else Usage(name="", used=memory.used, limit=memory.total),
            stalled_ratio=None if stall is None else stall.some_10s_ratio,
            shm=next(iter(_places("", self._sources.shm)), None),
            disks=tuple(place for name, probe in self._disks.items() for place in _places(name, probe)),
            store=store,
            spilled_bytes=spilled,
            devices=self._devices(),
            processes=processes(workers, private_bytes),
            deaths=dict(deaths),
            jobs_over=jobs_over,
            reaped=dict(self._reaped),
            reaped_bytes=dict(self._reaped_bytes),
            agent_cpu_s=time.process_time(),
            refresh_s=time.perf_counter() - began,
            version=self.reading.version,
            ray_version=self.reading.ray_version,
        )

    def look_around(self) -> None:
        """Note how full memory is and whom the kernel has killed: 0.1 ms. For who asks why a process died."""
        with harmless("agent_node"):
            self.seen = (time.time(), self._machine.read())

    def reap(self) -> None:
        """Take away what dead processes left on this node, as far as it is proved."""
        for one in reaper.reap_home(self._home, explain=False, deadline_s=_REAP_S):
            if one.fate is Fate.REAPED:
                self._reaped[one.sort.value] += 1
                self._reaped_bytes[one.sort.value] += one.size_bytes
        with harmless("snapshot"):
            snapshot_files.sweep()

    def close(self) -> None:
        """Give the driver back."""
        if self._sources.devices is not None:
            self._sources.devices.close()

    def _store(self) -> tuple[Usage | None, int]:
        """Return the object store, and what was spilled since the first look: a counter begins at zero."""
        found = None if self._sources.store is None else _read(self._sources.store.read)
        if found is None:
            return None, self.reading.spilled_bytes
        if self._spilled_before is None or found.spilled_total < self._spilled_before:
            self._spilled_before = found.spilled_total
        spilled = max(self.reading.spilled_bytes, found.spilled_total - self._spilled_before)
        return Usage(name="", used=found.used, limit=found.capacity), spilled

    def _devices(self) -> tuple[Usage, ...]:
        probe = self._sources.devices
        found = None if probe is None else _read(probe.read)
        return tuple(Usage(name=str(gpu.index), used=gpu.used, limit=gpu.total) for gpu in found or ())


def processes(
    workers: Iterable[Worker], private_bytes: Callable[[ProcessId], int]
) -> dict[tuple[str, str], Processes]:
    """Return the workers that have work, by class (or function) and job."""
    whose: dict[tuple[str, str], list[Worker]] = defaultdict(list)
    for worker in workers:
        if not worker.idle:
            whose[worker.target, worker.job_id].append(worker)
    return {
        key: Processes(
            count=len(those),
            largest_bytes=max(private_bytes(one.process) for one in those),
            stopped=sum(one.state == "T" for one in those),
        )
        for key, those in whose.items()
    }


def _places(name: str, probe: FilesProbe) -> list[Usage]:
    return [Usage(name=name, used=fs.used, limit=fs.total) for fs in _read(probe.read) or ()]


def _read(read: Callable[[], T]) -> T | None:
    """Return what ``read()`` returns, None where it fails."""
    with harmless("agent_node"):
        return read()
    return None


def _ray_version() -> str:
    import ray  # noqa: PLC0415 - only where Ray runs

    return str(ray.__version__)
