"""Everything there is to see on a node at one moment, for people: its totals, and all its processes.

For commands, not for a watcher: every process of the machine is read (60 us each, 1-3 ms more with ``pss``).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.memory.holders import Process
from rayguard.memory.probes.device import DeviceMemory, DeviceProbe
from rayguard.memory.probes.files import FilesProbe, FileSystem
from rayguard.memory.probes.node import MonitorSettings, NodeMemory, NodeProbe, Stall
from rayguard.memory.probes.process import pss as pss_of
from rayguard.memory.probes.ray_node import RayNode, Registered, ray_nodes, registered
from rayguard.process.resident import resident
from rayguard.ray_internals.node_stats import StoreMemory, StoreProbe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Names = Mapping[tuple[int, int], str]  # by pid and start in clock ticks

_PROC = Path("/proc")
_SHM = "/dev/shm"  # noqa: S108 - looked at, not written to
_PARENT, _STARTED = 1, 19  # fields of stat after the command name
_MAX_ARGUMENTS = 8
_ASK_S = 2.0  # a person waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The object store of one Ray node here; ``memory`` is None where its raylet does not answer."""

    node: RayNode
    memory: StoreMemory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """One look at a node. ``kills_at``: the bytes of ``node`` above which Ray kills workers."""

    node: NodeMemory | None = None
    own_cgroup: NodeMemory | None = None
    kills_at: int | None = None
    stall: Stall | None = None
    oom_kills: int | None = None
    stores: tuple[Store, ...] = ()
    shm: tuple[FileSystem, ...] = ()
    disks: tuple[FileSystem, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    no_devices: str = ""  # why
    processes: tuple[Process, ...] = ()
    notes: tuple[str, ...] = field(default=())  # what could not be looked at, in words


class Observer:
    """Takes one census after the other; keeps descriptors between them."""

    def __init__(self, *, proc: Path = _PROC) -> None:
        self._proc = proc
        self._devices = DeviceProbe()
        self._stores: dict[tuple[int, str], tuple[Registered, StoreProbe]] = {}
        self._files: dict[tuple[str, ...], FilesProbe] = {}  # kept: a dead mount is asked once
        self._notes: list[str] = []

    def look(
        self, *, pss: bool = False, guarded: Names | None = None, watched: Names | None = None
    ) -> Census:
        """Return what there is now. ``guarded`` and ``watched`` name processes (``Names``)."""
        self._notes = []
        nodes = ray_nodes(self._proc)
        modes = {node.environment.get("RAY_AUTH_MODE") for node in nodes}
        if "token" in modes:  # else Ray's clients send none; a cluster that asks for none ignores it
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        for gone in self._stores.keys() - {(node.pid, node.node_id) for node in nodes}:
            del self._stores[gone]
        stores = tuple(Store(node=node, memory=self._store(node)) for node in nodes)
        # Several clusters share a machine in tests only: the first one's settings and folders are shown.
        config = next((known.system_config for known, _ in self._stores.values()), {})
        probe = NodeProbe(MonitorSettings.of(nodes[0].environment if nodes else {}, config), proc=self._proc)
        node, devices = probe.read(), self._devices.read()
        shm = {_SHM, *(node.shm_dir for node in nodes)}
        folders = [folder for one in nodes for folder in (one.session_dir, *one.spill_dirs) if folder]
        folders += [folder for known, _ in self._stores.values() for folder in known.spill_dirs]
        found = tuple(self._processes(pss, guarded or {}, watched or {}, stores, devices))
        return Census(
            node=node,
            own_cgroup=probe.own_cgroup(),
            kills_at=probe.settings.kills_at(node.total) if node is not None and nodes else None,
            stall=probe.stall(),
            oom_kills=probe.oom_kills(),
            stores=stores,
            shm=self._full(sorted(shm)),
            disks=self._full(folders or ["/tmp"]),  # noqa: S108 - the disk that Ray would use
            devices=devices,
            no_devices=self._devices.missing,
            processes=found,
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def close(self) -> None:
        """Give the driver back."""
        self._devices.close()

    def _full(self, paths: Iterable[str]) -> tuple[FileSystem, ...]:
        probe = self._files.setdefault(tuple(paths), FilesProbe(paths))
        found = probe.read()
        self._notes += [f"the file system of {path} does not answer" for path in probe.hanging()]
        return found

    def _store(self, node: RayNode) -> StoreMemory | None:
        try:
            key = (node.pid, node.node_id)
            if key not in self._stores:
                known = registered(node)
                if known is None:
                    self._notes.append(f"the GCS at {node.gcs_address} does not answer")
                    return None
                self._stores[key] = (known, StoreProbe(known.address, deadline_s=_ASK_S))
            found = self._stores[key][1].read(detail=True)
        except Exception as error:  # noqa: BLE001 - Ray is missing, or another version with other private parts
            self._notes.append(f"the object store cannot be asked: {error!r}")
            return None
        if found is None:
            self._notes.append(f"the raylet {node.pid} does not answer; is it another user's cluster?")
            del self._stores[node.pid, node.node_id]
        return found

    def _processes(
        self,
        pss: bool,  # noqa: FBT001 - a private function
        guarded: Names,
        watched: Names,
        stores: Iterable[Store],
        devices: Iterable[DeviceMemory],
    ) -> Iterable[Process]:
        users = {user.pid: user for store in stores if store.memory for user in store.memory.users}
        on_devices: dict[int, int] = {}
        for device in devices:
            for pid, used in device.users.items():
                on_devices[pid] = on_devices.get(pid, 0) + used
        unknown = 0
        for process in processes(self._proc):
            user = users.get(process.pid)
            found = pss_of(process.pid, proc=self._proc) if pss and process.private is not None else None
            unknown += pss and process.private is not None and found is None
            yield replace(
                process,
                pss=found,
                device=on_devices.get(process.pid, 0),
                objects=user.owned_bytes if user is not None else 0,
                driver=user is not None and user.driver,
                guarded=guarded.get((process.pid, process.started), ""),
                watched=watched.get((process.pid, process.started), ""),
            )
        if unknown:
            self._notes.append(f"the PSS of {unknown} processes cannot be read: other users', or just ended")


def processes(proc: Path = _PROC) -> Iterable[Process]:
    """Yield the processes that hold memory, as far as the kernel shows them, without its own threads."""
    for entry in sorted((e for e in proc.iterdir() if e.name.isdecimal()), key=lambda e: int(e.name)):
        with contextlib.suppress(OSError, IndexError, ValueError):  # it ended while we read
            found = _process(entry)
            if found is not None:
                yield found


def _process(directory: Path) -> Process | None:
    pid = int(directory.name)
    stat = (directory / "stat").read_bytes()
    fields = stat[stat.rfind(b")") + 2 :].split()
    parent, started = int(fields[_PARENT]), int(fields[_STARTED])
    try:
        command = (directory / "cmdline").read_bytes()
        forbidden = False
    except PermissionError:  # /proc mounted with hidepid
        command, forbidden = b"", True
    memory = resident(pid, proc=directory.parent)
    if memory is None and not forbidden:
        return None
    words = command.rstrip(b"\0 ").decode("utf-8", "replace").split("\0")[:_MAX_ARGUMENTS]
    name = stat[stat.find(b"(") + 1 : stat.rfind(b")")].decode("utf-8", "replace")
    return Process(
        pid=pid,
        parent=parent,
        arguments=tuple(words) if words[0] else (name,),
        started=started,
        private=memory.private if memory is not None else None,
        shared=memory.shared if memory is not None else 0,
    )
