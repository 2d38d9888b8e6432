"""What is measured of a node by its agent: a part of ``rayguard.metrics.instruments.process``, which see.

Reading the node is ``rayguard.cluster.agent.node_reading``; here are the values and their names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rayguard.metrics.instruments.instrument import Instrument, Labelled, Merge, by, counter, gauge, one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


JOB_OVER = "rayguard_job_over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes of one thing with a limit; ``name`` is a disk's use (session, spill, home) or a device."""

    name: str
    used: int
    limit: int

    @property
    def free(self) -> int:
        """What is left."""
        return max(0, self.limit - self.used)


class Whose(NamedTuple):
    """What one death is counted under: its kind, and the class (or function) and the job of the dead."""

    kind: str
    actor_class: str
    ray_job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The living processes of one class or function in one job."""

    count: int = 0
    largest_bytes: int = 0  # of their private memory
    stopped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """A node at one moment. None is unknown; counts are since the start of the agent's process."""

    memory: Usage | None = None
    stalled_ratio: float | None = None  # PSI: share of the last ten seconds
    shm: Usage | None = None
    disks: tuple[Usage, ...] = ()
    store: Usage | None = None
    spilled_bytes: int = 0
    devices: tuple[Usage, ...] = ()
    processes: Mapping[tuple[str, str], Processes] = field(default_factory=dict)  # by class, job
    deaths: Mapping[Whose, int] = field(default_factory=dict)  # unexpected ones
    jobs_over: Mapping[str, bool] = field(default_factory=dict)  # those with numbers here
    reaped: Mapping[str, int] = field(default_factory=dict)  # by sort
    reaped_bytes: Mapping[str, int] = field(default_factory=dict)
    agent_cpu_s: float = 0.0
    refresh_s: float = 0.0
    version: str = ""
    ray_version: str = ""


def _place(
    which: Callable[[NodeReading], Usage | None], number: Callable[[Usage], int]
) -> Labelled[NodeReading]:
    return one(lambda node: None if (place := which(node)) is None else number(place))


def _places(
    label: str, which: Callable[[NodeReading], Iterable[Usage]], number: Callable[[Usage], int]
) -> Labelled[NodeReading]:
    return Labelled((label,), lambda node: [((place.name,), number(place)) for place in which(node)])


def _processes(number: Callable[[Processes], int]) -> Labelled[NodeReading]:
    labels = ("actor_class", "ray_job")
    return Labelled(labels, lambda node: [(whose, number(those)) for whose, those in node.processes.items()])


NODE_INSTRUMENTS: tuple[Instrument[NodeReading], ...] = (
    gauge(
        "rayguard_node_memory_used_bytes",
        "Memory of the node, or of its container, that is in use, as Ray's memory monitor counts it.",
        _place(lambda node: node.memory, lambda place: place.used),
    ),
    gauge(
        "rayguard_node_memory_limit_bytes",
        "Memory that the node, or its container, can have.",
        _place(lambda node: node.memory, lambda place: place.limit),
    ),
    gauge(
        "rayguard_node_memory_stalled_ratio",
        "Share of the last ten seconds in which something waited for memory (PSI); absent where not told.",
        one(lambda node: node.stalled_ratio),
        unit="0 to 1",
        merge=Merge.MAX,
    ),
    gauge(
        "rayguard_node_shm_used_bytes",
        "Shared memory (/dev/shm) in use, the object store's included.",
        _place(lambda node: node.shm, lambda place: place.used),
    ),
    gauge(
        "rayguard_node_shm_limit_bytes",
        "Size of the shared memory.",
        _place(lambda node: node.shm, lambda place: place.limit),
    ),
    gauge(
        "rayguard_node_disk_free_bytes",
        "What is free on the disk under Ray's session, spilled objects, rayguard's home.",
        _places("place", lambda node: node.disks, lambda place: place.free),
    ),
    gauge(
        "rayguard_node_disk_size_bytes",
        "Size of that disk.",
        _places("place", lambda node: node.disks, lambda place: place.limit),
    ),
    gauge(
        "rayguard_node_object_store_used_bytes",
        "Ray's object store of the node: in use.",
        _place(lambda node: node.store, lambda place: place.used),
    ),
    gauge(
        "rayguard_node_object_store_limit_bytes",
        "Size of Ray's object store of the node.",
        _place(lambda node: node.store, lambda place: place.limit),
    ),
    counter(
        "rayguard_node_object_store_spilled_bytes_total",
        "Written to disk because the object store was full, since the agent looks.",
        one(lambda node: node.spilled_bytes),
    ),
    gauge(
        "rayguard_node_device_memory_used_bytes",
        "Memory of a GPU in use, by whomever.",
        _places("device", lambda node: node.devices, lambda place: place.used),
    ),
    gauge(
        "rayguard_node_device_memory_limit_bytes",
        "Memory of a GPU.",
        _places("device", lambda node: node.devices, lambda place: place.limit),
    ),
    gauge(
        "rayguard_processes",
        "Ray workers that have work, by class or function.",
        _processes(lambda those: those.count),
    ),
    gauge(
        "rayguard_process_memory_max_bytes",
        "Private memory of the largest of them.",
        _processes(lambda those: those.largest_bytes),
        merge=Merge.MAX,
    ),
    counter(
        "rayguard_process_deaths_total",
        "Ends of Ray workers and drivers that nobody had asked for, by cause, class or function, and job.",
        Labelled(("kind", "actor_class", "ray_job"), lambda node: node.deaths.items()),
    ),
    gauge(
        "rayguard_processes_stopped",
        "Of them, those that stand still (SIGSTOP) now: Ray takes them for alive.",
        _processes(lambda those: those.stopped),
        unit="processes",
    ),
    gauge(
        JOB_OVER,
        "1 once Ray says that the job has ended, and its alerts stop; 0 before. Of jobs with numbers here.",
        by("ray_job", lambda node: node.jobs_over),
        unit="",
        merge=Merge.MAX,
    ),
    counter(
        "rayguard_leftovers_reaped_total",
        "What dead processes had left and the agent took away, by sort.",
        by("kind", lambda node: node.reaped),
        unit="leftovers",
    ),
    counter(
        "rayguard_leftovers_reaped_bytes_total",
        "What that gave back.",
        by("kind", lambda node: node.reaped_bytes),
    ),
    counter(
        "rayguard_agent_cpu_seconds_total",
        "Processor time of the node's agent.",
        one(lambda node: node.agent_cpu_s),
    ),
    gauge(
        "rayguard_agent_refresh_seconds",
        "How long the agent's last look at the node took.",
        one(lambda node: node.refresh_s),
        merge=Merge.MAX,
    ),
    gauge(
        "rayguard_agent_info",
        "Always 1; its labels say which rayguard the agent is of, and which Ray it runs on.",
        Labelled(("version", "ray_version"), lambda node: [((node.version, node.ray_version), 1.0)]),
        unit="",
        merge=Merge.MAX,
    ),
)
