"""What this process can see of memory, in one sample: itself, its engines, its node, the store, disks, GPUs.

A source that is missing is said once in the log and then left out; nothing here raises. Reads only when
asked: the loop is the watcher's, the judgement is in ``rayguard.memory.pressure`` and
``rayguard.memory.forecast``.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.memory.probes.device import DeviceProbe, torch_reserved
from rayguard.memory.probes.files import FilesProbe
from rayguard.memory.probes.heap import python_heap
from rayguard.memory.probes.node import MonitorSettings, NodeProbe
from rayguard.memory.probes.process import TreeMemory
from rayguard.memory.probes.ray_node import own_ray_node, registered
from rayguard.memory.reading import MemorySample, Quantity, Reading
from rayguard.process.resident import resident
from rayguard.ray_internals.node_stats import StoreProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.process.identity import ProcessId

_LOG = logging.getLogger("rayguard")
_FAMILY_S = 60.0  # for children that an engine's processes may have: their roots are known
_DRIVER = "/dev/nvidiactl"
_SHM = "/dev/shm"  # noqa: S108 - looked at, not written to

Readings = tuple[Reading, ...]


@dataclass(slots=True, kw_only=True)
class Sources:
    """Where a process looks. Tests and commands put their own together."""

    tree: TreeMemory | None = None
    node: NodeProbe = field(default_factory=NodeProbe)
    store: StoreProbe | None = None
    shm: FilesProbe = field(default_factory=lambda: FilesProbe([_SHM]))
    disk: FilesProbe = field(default_factory=lambda: FilesProbe([]))
    devices: DeviceProbe | None = field(default_factory=lambda: DeviceProbe(visible_only=True))
    missing: dict[str, str] = field(default_factory=dict)  # name of a source -> why there is none


class Probes:
    """Samples what ``sources`` can see.

    ``engines`` names the roots of process trees that belong to this process (engine cores).
    """

    def __init__(
        self,
        sources: Sources | None = None,
        *,
        engines: Callable[[], Iterable[ProcessId]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sources = sources or sources_of_this_process()
        if engines is not None:
            self.sources.tree = TreeMemory(engines, again_s=_FAMILY_S)
        self._clock = clock
        self._said: set[str] = set()
        self._readers: dict[str, Callable[[], Iterable[Reading]]] = {
            "own memory": self._own,
            "Python's heap": self._heap,
            "engine processes": self._tree,
            "node memory": self._node,
            "object store": self._store,
            "shared memory": lambda: self._files(Quantity.SHM, self.sources.shm),
            "disk": lambda: self._files(Quantity.DISK, self.sources.disk),
            "GPUs": self._devices,
            "torch's allocator": self._torch,
        }
        for name, why in self.sources.missing.items():
            self._say(name, why)

    def quick(self, step: int = -1, *, node: bool = False) -> MemorySample:
        """Return only PRIVATE and MAPPED of this process, 15 us; with ``node`` also the node, 0.1 ms."""
        return self._sample(step, ("own memory", "node memory") if node else ("own memory",))

    def sample(self, step: int = -1) -> MemorySample:
        """Return everything that can be seen: 3-8 ms, most of it with the raylet."""
        return self._sample(step, self._readers)

    def kills_at(self) -> int | None:
        """Return the bytes of node use at which Ray kills workers now; None when it never does."""
        memory = self.sources.node.read()
        return None if memory is None else self.sources.node.settings.kills_at(memory.total)

    def close(self) -> None:
        """Give the driver back."""
        if self.sources.devices is not None:
            self.sources.devices.close()

    def _sample(self, step: int, names: Iterable[str]) -> MemorySample:
        at = self._clock()
        readings = tuple(reading for name in names for reading in self._take(name))
        return MemorySample(at=at, step=step, readings=readings)

    def _take(self, name: str) -> Readings:
        try:
            return tuple(self._readers[name]())
        except Exception as error:  # noqa: BLE001 - where the watcher runs a probe: it must not end for one
            self._say(name, repr(error))
            return ()

    def _say(self, name: str, why: str) -> None:
        if name not in self._said:
            self._said.add(name)
            _LOG.info("memory: no reading of %s: %s (said once)", name, why)

    def _own(self) -> Readings:
        found = resident(os.getpid())
        if found is None:
            self._say("own memory", "/proc cannot be read")
            return ()
        pid = os.getpid()
        return (
            Reading(quantity=Quantity.PRIVATE, used=found.private, pid=pid),
            Reading(quantity=Quantity.MAPPED, used=found.shared, pid=pid),
        )

    def _heap(self) -> Readings:
        heap, found = python_heap(), resident(os.getpid())
        if heap is None or found is None:
            self._say("Python's heap", "this interpreter does not tell")
            return ()
        pid, native = os.getpid(), max(0, found.private - heap.held)
        return (
            Reading(quantity=Quantity.HEAP, used=heap.used, pid=pid),
            Reading(quantity=Quantity.NATIVE, used=native, pid=pid),
        )

    def _tree(self) -> Readings:
        tree = self.sources.tree
        members = tree.read() if tree is not None else {}
        if tree is None or not members:
            return ()
        used = sum(found.private for found in members.values())
        roots = ", ".join(str(root.pid) for root in tree.roots)
        return (Reading(quantity=Quantity.ENGINE, used=used, who=f"processes {roots}"),)

    def _node(self) -> Readings:
        node, own = self.sources.node.read(), self.sources.node.own_cgroup()
        if node is None:
            self._say("node memory", "neither /proc/meminfo nor a cgroup can be read")
        found = [(node, ""), (own, own.source if own else "")]
        return tuple(
            Reading(quantity=Quantity.NODE, used=memory.used, limit=memory.total, who=who)
            for memory, who in found
            if memory is not None
        )

    def _store(self) -> Readings:
        if self.sources.store is None:
            return ()
        found = self.sources.store.read()
        if found is None:
            self._say("object store", f"the raylet at {self.sources.store.address} does not answer")
            return ()
        return (Reading(quantity=Quantity.STORE, used=found.used, limit=found.capacity),)

    def _files(self, quantity: Quantity, probe: FilesProbe) -> Readings:
        found = probe.read()
        for path in probe.hanging():
            self._say(f"{quantity.value} {path}", "its file system does not answer")
        return tuple(Reading(quantity=quantity, used=fs.used, limit=fs.total, who=fs.path) for fs in found)

    def _devices(self) -> Readings:
        readings: list[Reading] = []
        if self.sources.devices is None:
            return ()
        mine = {os.getpid(), *(p.pid for p in (self.sources.tree.members if self.sources.tree else ()))}
        for gpu in self.sources.devices.read():
            who = f"GPU {gpu.index}"
            readings.append(Reading(quantity=Quantity.DEVICE, used=gpu.used, limit=gpu.total, who=who))
            readings += [
                Reading(quantity=Quantity.DEVICE, used=used, limit=gpu.total, who=who, pid=pid)
                for pid, used in gpu.users.items()
                if pid in mine
            ]
        if self.sources.devices.missing:
            self._say("GPUs", self.sources.devices.missing)
        return tuple(readings)

    def _torch(self) -> Readings:
        return tuple(
            Reading(quantity=Quantity.TORCH, used=used, who=f"cuda:{index}", pid=os.getpid())
            for index, used in torch_reserved().items()
        )


def sources_of_an_actor() -> Sources:
    """Find what every actor should look at: without the object store and drivers that are not there.

    Asking the raylet needs gRPC for Python, 2 MB and more in each process, and tells each of them the same.
    """
    sources = sources_of_this_process()
    sources.store = None
    sources.missing.pop("object store", None)
    if not os.path.exists(_DRIVER):  # noqa: PTH110 - a device
        sources.devices = None
    return sources


def sources_of_this_process() -> Sources:
    """Find what this process can look at. In a Ray process one question to the GCS (3 ms); never raises."""
    sources = Sources()
    try:
        node = own_ray_node()
        known = registered(node) if node is not None else None
    except Exception as error:  # noqa: BLE001 - Ray's private parts may be other ones in another version
        sources.missing["object store"] = repr(error)
        return sources
    if node is None:
        sources.missing["object store"] = "this process belongs to no Ray node"
        return sources
    config = known.system_config if known is not None else {}
    sources.node = NodeProbe(MonitorSettings.of(node.environment or os.environ, config))
    spill = known.spill_dirs if known is not None else ()
    sources.shm = FilesProbe([node.shm_dir])
    sources.disk = FilesProbe(filter(None, [node.session_dir, *node.spill_dirs, *spill]))
    if known is None:
        sources.missing["object store"] = f"the GCS at {node.gcs_address} does not answer"
    else:
        sources.store = StoreProbe(known.address)
    return sources
