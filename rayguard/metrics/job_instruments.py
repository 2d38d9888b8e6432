"""What is measured of a job by its supervisor: a part of ``rayguard.metrics.instruments``, which see.

Whose job it is, the label ``ray_job`` says, which a node adds to all that a process shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.metrics.instrument import Instrument, Merge, MetricType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rayguard.metrics.instrument import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReading:
    """One job at one moment. Totals are since the start of the supervisor's process.

    What is by kind and scope has the values of ``rayguard.faults.diagnosis``.
    """

    wall_s: float = 0.0
    interrupted_s: float = 0.0
    budget_left: float = 1.0  # share, 0 to 1
    stories: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by kind and scope
    stories_open: int = 0
    actors: Mapping[str, int] = field(default_factory=dict)  # by state
    crash_loops: int = 0  # actors that were stopped for it
    nodes: Mapping[str, int] = field(default_factory=dict)  # by state
    agents: Mapping[str, int] = field(default_factory=dict)  # by state
    events: Mapping[str, int] = field(default_factory=dict)  # by kind


def _one(number: Callable[[JobReading], float]) -> Callable[[JobReading], Iterable[tuple[Values, float]]]:
    return lambda job: [((), number(job))]


def _by(
    numbers: Callable[[JobReading], Mapping[str, int]],
) -> Callable[[JobReading], Iterable[tuple[Values, float]]]:
    return lambda job: [((label,), count) for label, count in numbers(job).items()]


JOB_INSTRUMENTS: tuple[Instrument[JobReading], ...] = (
    Instrument(
        name="rayguard_job_wall_seconds_total",
        type=MetricType.COUNTER,
        help="How long the job has run.",
        unit="seconds",
        read=_one(lambda job: job.wall_s),
    ),
    Instrument(
        name="rayguard_job_interrupted_seconds_total",
        type=MetricType.COUNTER,
        help="Time of it in which at least one incident of the job was open.",
        unit="seconds",
        read=_one(lambda job: job.interrupted_s),
    ),
    Instrument(
        name="rayguard_job_restart_budget_ratio",
        type=MetricType.GAUGE,
        help="Share of the restarts that the whole job may have which is left, from 0 to 1.",
        unit="ratio",
        merge=Merge.MIN,
        read=_one(lambda job: job.budget_left),
    ),
    Instrument(
        name="rayguard_job_stories_total",
        type=MetricType.COUNTER,
        help="Stories: incidents that had one cause count once, by its kind and scope, some seconds later.",
        labels=("kind", "scope"),
        unit="stories",
        read=lambda job: [(key, count) for key, count in job.stories.items()],
    ),
    Instrument(
        name="rayguard_job_stories_open",
        type=MetricType.GAUGE,
        help="Stories that are not over: something is broken now.",
        unit="stories",
        read=_one(lambda job: job.stories_open),
    ),
    Instrument(
        name="rayguard_job_actors",
        type=MetricType.GAUGE,
        help="Actors of the job, by state; the dead as far as Ray remembers them.",
        labels=("state",),
        unit="actors",
        read=_by(lambda job: job.actors),
    ),
    Instrument(
        name="rayguard_job_crash_loops",
        type=MetricType.GAUGE,
        help="Actors that were stopped for good because they restarted again and again for one cause.",
        unit="actors",
        read=_one(lambda job: job.crash_loops),
    ),
    Instrument(
        name="rayguard_nodes",
        type=MetricType.GAUGE,
        help="Nodes of the cluster, as the job's supervisor sees them; each is in one state.",
        labels=("state",),
        unit="nodes",
        merge=Merge.MAX,
        read=_by(lambda job: job.nodes),
    ),
    Instrument(
        name="rayguard_agents",
        type=MetricType.GAUGE,
        help="Agents of the nodes that are alive, as the job's supervisor reaches them.",
        labels=("state",),
        unit="agents",
        merge=Merge.MAX,
        read=_by(lambda job: job.agents),
    ),
    Instrument(
        name="rayguard_supervisor_events_total",
        type=MetricType.COUNTER,
        help="What the supervisor was told by Ray and by the agents, by kind.",
        labels=("kind",),
        unit="events",
        read=_by(lambda job: job.events),
    ),
)
