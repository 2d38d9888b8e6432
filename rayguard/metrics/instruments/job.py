"""What is measured of a job by its supervisor: a part of ``rayguard.metrics.instruments.process``, which see.

Whose job it is, the label ``ray_job`` says, which a node adds to all that a process shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.metrics.instruments.instrument import Instrument, Labelled, Merge, by, counter, gauge, one

if TYPE_CHECKING:
    from collections.abc import Mapping


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


JOB_INSTRUMENTS: tuple[Instrument[JobReading], ...] = (
    counter("rayguard_job_wall_seconds_total", "How long the job has run.", one(lambda job: job.wall_s)),
    counter(
        "rayguard_job_interrupted_seconds_total",
        "Time of it in which at least one incident of the job was open.",
        one(lambda job: job.interrupted_s),
    ),
    gauge(
        "rayguard_job_restart_budget_ratio",
        "Share of the restarts that the whole job may have which is left, from 0 to 1.",
        one(lambda job: job.budget_left),
        merge=Merge.MIN,
    ),
    counter(
        "rayguard_job_stories_total",
        "Stories: incidents that had one cause count once, by its kind and scope, some seconds later.",
        Labelled(("kind", "scope"), lambda job: job.stories.items()),
    ),
    gauge(
        "rayguard_job_stories_open",
        "Stories that are not over: something is broken now.",
        one(lambda job: job.stories_open),
        unit="stories",
    ),
    gauge(
        "rayguard_job_actors",
        "Actors of the job, by state; the dead as far as Ray remembers them.",
        by("state", lambda job: job.actors),
    ),
    gauge(
        "rayguard_job_crash_loops",
        "Actors that were stopped for good because they restarted again and again for one cause.",
        one(lambda job: job.crash_loops),
        unit="actors",
    ),
    gauge(
        "rayguard_nodes",
        "Nodes of the cluster, as the job's supervisor sees them; each is in one state.",
        by("state", lambda job: job.nodes),
        merge=Merge.MAX,
    ),
    gauge(
        "rayguard_agents",
        "Agents of the nodes that are alive, as the job's supervisor reaches them.",
        by("state", lambda job: job.agents),
        merge=Merge.MAX,
    ),
    counter(
        "rayguard_supervisor_events_total",
        "What the supervisor was told by Ray and by the agents, by kind.",
        by("kind", lambda job: job.events),
    ),
)
