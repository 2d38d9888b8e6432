"""Nodes: which are there, what runs and dies on them, what their disks have left, what the agents cost."""

from __future__ import annotations

from deploy.generate.alerts.promql import (
    JOB,
    NODE,
    gauge,
    grown,
    least,
    most,
    number_of,
    or_zero,
    rate,
    total,
)
from deploy.generate.dashboards.board import Board, Colour, Draw, Panel, Query, Row, Unit
from rayguard.metrics.node.discovery import JOB as SCRAPE

RANGE, RATE = "$__range", "$__rate_interval"
OF_SCRAPE = f'job="{SCRAPE}", instance=~"$instance"'


def nodes() -> Board:
    """Return the dashboard."""
    return Board(
        uid="rayguard-nodes",
        title="rayguard / Nodes",
        about="Which nodes are there and well, what runs and dies on them, what is left of their disks.",
        rows=(
            Row("Are the nodes there?", _there()),
            Row("What runs on them?", _processes()),
            Row("What is left of them?", _left()),
            Row("What do the agents cost?", _agents()),
        ),
    )


def _there() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Nodes by state",
            about=(
                "`quarantined` had the same fault again and again: replacements go elsewhere. `draining` "
                "goes soon."
            ),
            queries=(Query(most(gauge("rayguard_nodes", NODE), "state"), "{{state}}"),),
            draw=Draw.STACK,
            names=(
                ("alive", Colour.GREEN),
                ("draining", Colour.YELLOW),
                ("quarantined", Colour.ORANGE),
                ("dead", Colour.RED),
            ),
            runbook="node-quarantined",
        ),
        Panel(
            title="Agents by state",
            about="One for each live node. A `missing` one: that node is not watched, its job runs on.",
            queries=(Query(most(gauge("rayguard_agents", NODE), "state"), "{{state}}"),),
            draw=Draw.STACK,
            names=(("up", Colour.GREEN), ("no answer", Colour.ORANGE), ("missing", Colour.RED)),
            runbook="agent-missing",
        ),
        Panel(
            title="Answers to Prometheus",
            about="Green while a node's endpoint answers. Red: its agent is gone, or a firewall is between.",
            queries=(Query(f"up{{{OF_SCRAPE}}}", "{{instance}}"),),
            draw=Draw.TIMELINE,
            colour=Colour.RED,
            steps=((1, Colour.GREEN),),
            runbook="agent-gone",
        ),
    )


def _processes() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Processes by class",
            about="Live processes that rayguard watches, by class of actor.",
            queries=(Query(total(gauge("rayguard_processes", JOB), "actor_class"), "{{actor_class}}"),),
            draw=Draw.STACK,
        ),
        Panel(
            title="Frozen processes",
            about="Stopped by a signal or a debugger. Ray does not notice; calls to them wait for ever.",
            queries=(
                Query(
                    or_zero(
                        total(gauge("rayguard_processes_stopped", JOB), "actor_class"), actor_class="none"
                    ),
                    "{{actor_class}}",
                ),
            ),
            steps=((1, Colour.RED),),
            runbook="process-frozen",
        ),
        Panel(
            title="Unexpected deaths",
            about="Processes that ended and were not meant to, in the time range, by kind and node.",
            queries=(
                Query(
                    or_zero(
                        total(grown("rayguard_process_deaths_total", RANGE, NODE), "kind", "instance"),
                        kind="none",
                        instance="any node",
                    ),
                    "{{kind}} on {{instance}}",
                ),
            ),
            draw=Draw.BARS,
            colour=Colour.BLUE,
        ),
    )


def _left() -> tuple[Panel, ...]:
    free, size = "rayguard_node_disk_free_bytes", "rayguard_node_disk_size_bytes"
    shm, shm_limit = "rayguard_node_shm_used_bytes", "rayguard_node_shm_limit_bytes"
    return (
        Panel(
            title="Memory used",
            about="Bytes in use, by node.",
            queries=(
                Query(total(gauge("rayguard_node_memory_used_bytes", NODE), "instance"), "{{instance}}"),
            ),
            unit=Unit.BYTES,
            runbook="node-memory-low",
        ),
        Panel(
            title="Shared memory in use",
            about="Share of /dev/shm: the object store lives there, and NCCL's and vLLM's segments do.",
            queries=(
                Query(
                    f"{total(gauge(shm, NODE), 'instance')} / {total(gauge(shm_limit, NODE), 'instance')}",
                    "{{instance}}",
                ),
            ),
            unit=Unit.SHARE,
            steps=((0.8, Colour.ORANGE), (0.95, Colour.RED)),
        ),
        Panel(
            title="Disk that is free",
            about=(
                "Share of the disks of Ray's session, of spilled objects and of rayguard's journal. Ray "
                "stops at 5 %."
            ),
            queries=(
                Query(
                    f"{least(gauge(free, NODE), 'instance', 'place')}"
                    f" / {least(gauge(size, NODE), 'instance', 'place')}",
                    "{{instance}} {{place}}",
                ),
            ),
            unit=Unit.SHARE,
            colour=Colour.RED,
            steps=((0.07, Colour.ORANGE), (0.15, Colour.GREEN)),
            runbook="disk-full",
        ),
    )


def _agents() -> tuple[Panel, ...]:
    return (
        Panel(
            title="CPU of an agent",
            about="By node. It is meant to be near nothing: above a tenth of a core, please tell us.",
            queries=(
                Query(
                    total(rate("rayguard_agent_cpu_seconds_total", RATE, NODE), "instance"), "{{instance}}"
                ),
            ),
            unit=Unit.CORES,
            steps=((0.1, Colour.ORANGE),),
            width=6,
        ),
        Panel(
            title="Time of a round and of a scrape",
            about="How long the agent takes to gather what its node shows, and Prometheus to fetch it.",
            queries=(
                Query(most(gauge("rayguard_agent_refresh_seconds", NODE), "instance"), "{{instance}}: round"),
                Query(f"max by (instance) (scrape_duration_seconds{{{OF_SCRAPE}}})", "{{instance}}: scrape"),
            ),
            unit=Unit.SECONDS,
            width=6,
        ),
        Panel(
            title="Events of the supervisors",
            about="Deaths and changes that Ray's control store told the supervisors, per second.",
            queries=(
                Query(
                    or_zero(
                        total(rate("rayguard_supervisor_events_total", RATE, NODE), "kind"), kind="no event"
                    ),
                    "{{kind}}",
                ),
            ),
            unit=Unit.RATE,
            width=6,
        ),
        Panel(
            title="Versions",
            about=(
                "Versions of rayguard and Ray that the agents run. More than one: an upgrade stopped "
                "half-way."
            ),
            queries=(
                Query(
                    number_of(gauge("rayguard_agent_info", NODE), "version", "ray_version"),
                    "rayguard {{version}}, Ray {{ray_version}}",
                ),
            ),
            draw=Draw.BARS,
            colour=Colour.BLUE,
            width=6,
        ),
    )
