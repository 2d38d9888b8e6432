"""What is measured of a node by its agent: a part of ``rayguard.metrics.instruments``, which see.

Reading the node is ``rayguard.cluster.agent_node``; here are the values and their names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.metrics.instrument import Instrument, Merge, MetricType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rayguard.metrics.instrument import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Bytes of one thing with a limit; ``name`` is a disk's use (session, spill, home) or a device."""

    name: str
    used: int
    limit: int

    @property
    def free(self) -> int:
        """What is left."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The living processes of one class or function in one job."""

    count: int = 0
    largest_bytes: int = 0  # of their private memory
    stopped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """A node at one moment. None is unknown; counts are since the start of the agent's process."""

    memory: Place | None = None
    stalled_ratio: float | None = None  # PSI: share of the last ten seconds
    shm: Place | None = None
    disks: tuple[Place, ...] = ()
    store: Place | None = None
    spilled_bytes: int = 0
    devices: tuple[Place, ...] = ()
    processes: Mapping[tuple[str, str], Processes] = field(default_factory=dict)  # by class, job
    deaths: Mapping[str, int] = field(default_factory=dict)  # unexpected ones, by kind
    reaped: Mapping[str, int] = field(default_factory=dict)  # by sort
    reaped_bytes: Mapping[str, int] = field(default_factory=dict)
    agent_cpu_s: float = 0.0
    refresh_s: float = 0.0
    version: str = ""
    ray_version: str = ""


def _place(
    which: Callable[[NodeReading], Place | None], number: Callable[[Place], int]
) -> Callable[[NodeReading], Iterable[tuple[Values, float]]]:
    def read(node: NodeReading) -> Iterable[tuple[Values, float]]:
        place = which(node)
        return [] if place is None else [((), number(place))]

    return read


def _places(
    which: Callable[[NodeReading], Iterable[Place]], number: Callable[[Place], int]
) -> Callable[[NodeReading], Iterable[tuple[Values, float]]]:
    return lambda node: [((place.name,), number(place)) for place in which(node)]


def _processes(
    number: Callable[[Processes], int],
) -> Callable[[NodeReading], Iterable[tuple[Values, float]]]:
    return lambda node: [(whose, number(those)) for whose, those in node.processes.items()]


def _counts(
    which: Callable[[NodeReading], Mapping[str, int]],
) -> Callable[[NodeReading], Iterable[tuple[Values, float]]]:
    return lambda node: [((kind,), count) for kind, count in which(node).items()]


def _gauge(
    name: str,
    help: str,  # noqa: A002 - as everywhere in Prometheus
    read: Callable[[NodeReading], Iterable[tuple[Values, float]]],
    *labels: str,
    unit: str = "bytes",
    merge: Merge = Merge.SUM,
) -> Instrument[NodeReading]:
    return Instrument(
        name=name, type=MetricType.GAUGE, help=help, read=read, labels=labels, unit=unit, merge=merge
    )


def _counter(
    name: str,
    help: str,  # noqa: A002 - as everywhere in Prometheus
    read: Callable[[NodeReading], Iterable[tuple[Values, float]]],
    *labels: str,
    unit: str,
) -> Instrument[NodeReading]:
    return Instrument(name=name, type=MetricType.COUNTER, help=help, read=read, labels=labels, unit=unit)


_OF_CLASS = ("actor_class", "ray_job")

NODE_INSTRUMENTS: tuple[Instrument[NodeReading], ...] = (
    _gauge(
        "rayguard_node_memory_used_bytes",
        "Memory of the node, or of its container, that is in use, as Ray's memory monitor counts it.",
        _place(lambda node: node.memory, lambda place: place.used),
    ),
    _gauge(
        "rayguard_node_memory_limit_bytes",
        "Memory that the node, or its container, can have.",
        _place(lambda node: node.memory, lambda place: place.limit),
    ),
    _gauge(
        "rayguard_node_memory_stalled_ratio",
        "Share of the last ten seconds in which something waited for memory (PSI); absent where not told.",
        lambda node: [] if node.stalled_ratio is None else [((), node.stalled_ratio)],
        unit="0 to 1",
        merge=Merge.MAX,
    ),
    _gauge(
        "rayguard_node_shm_used_bytes",
        "Shared memory (/dev/shm) in use, the object store's included.",
        _place(lambda node: node.shm, lambda place: place.used),
    ),
    _gauge(
        "rayguard_node_shm_limit_bytes",
        "Size of the shared memory.",
        _place(lambda node: node.shm, lambda place: place.limit),
    ),
    _gauge(
        "rayguard_node_disk_free_bytes",
        "What is free on the disk under Ray's session, spilled objects, rayguard's home.",
        _places(lambda node: node.disks, lambda place: place.free),
        "place",
    ),
    _gauge(
        "rayguard_node_disk_size_bytes",
        "Size of that disk.",
        _places(lambda node: node.disks, lambda place: place.limit),
        "place",
    ),
    _gauge(
        "rayguard_node_object_store_used_bytes",
        "Ray's object store of the node: in use.",
        _place(lambda node: node.store, lambda place: place.used),
    ),
    _gauge(
        "rayguard_node_object_store_limit_bytes",
        "Size of Ray's object store of the node.",
        _place(lambda node: node.store, lambda place: place.limit),
    ),
    _counter(
        "rayguard_node_object_store_spilled_bytes_total",
        "Written to disk because the object store was full, since the agent looks.",
        lambda node: [((), node.spilled_bytes)],
        unit="bytes",
    ),
    _gauge(
        "rayguard_node_device_memory_used_bytes",
        "Memory of a GPU in use, by whomever.",
        _places(lambda node: node.devices, lambda place: place.used),
        "device",
    ),
    _gauge(
        "rayguard_node_device_memory_limit_bytes",
        "Memory of a GPU.",
        _places(lambda node: node.devices, lambda place: place.limit),
        "device",
    ),
    _gauge(
        "rayguard_processes",
        "Ray workers that have work, by class or function.",
        _processes(lambda those: those.count),
        *_OF_CLASS,
        unit="processes",
    ),
    _gauge(
        "rayguard_process_memory_max_bytes",
        "Private memory of the largest of them.",
        _processes(lambda those: those.largest_bytes),
        *_OF_CLASS,
        merge=Merge.MAX,
    ),
    _counter(
        "rayguard_process_deaths_total",
        "Ends of Ray workers that nobody had asked for, by cause.",
        _counts(lambda node: node.deaths),
        "kind",
        unit="deaths",
    ),
    _gauge(
        "rayguard_processes_stopped",
        "Of them, those that stand still (SIGSTOP) now: Ray takes them for alive.",
        _processes(lambda those: those.stopped),
        *_OF_CLASS,
        unit="processes",
    ),
    _counter(
        "rayguard_leftovers_reaped_total",
        "What dead processes had left and the agent took away, by sort.",
        _counts(lambda node: node.reaped),
        "kind",
        unit="leftovers",
    ),
    _counter(
        "rayguard_leftovers_reaped_bytes_total",
        "What that gave back.",
        _counts(lambda node: node.reaped_bytes),
        "kind",
        unit="bytes",
    ),
    _counter(
        "rayguard_agent_cpu_seconds_total",
        "Processor time of the node's agent.",
        lambda node: [((), node.agent_cpu_s)],
        unit="seconds",
    ),
    _gauge(
        "rayguard_agent_refresh_seconds",
        "How long the agent's last look at the node took.",
        lambda node: [((), node.refresh_s)],
        unit="seconds",
        merge=Merge.MAX,
    ),
    _gauge(
        "rayguard_agent_info",
        "Always 1; its labels say which rayguard the agent is of, and which Ray it runs on.",
        lambda node: [((node.version, node.ray_version), 1.0)],
        "version",
        "ray_version",
        unit="",
        merge=Merge.MAX,
    ),
)
