"""The alerts of memory and nodes: a part of ``deploy.generate.alerts.job_alerts``, which see."""

from __future__ import annotations

from deploy.generate.alerts.alert import Alert, Case, Severity
from deploy.generate.alerts.promql import gauge, lately, least, most, total
from rayguard.metrics.node.discovery import JOB as SCRAPE

ON = 'instance="10.0.0.1:9400"'
IS_NODE = {"instance": "10.0.0.1:9400"}
OF_CLASS = 'ray_job="01000000", actor_class="Rollout"'
IS_CLASS = {"ray_job": "01000000", "actor_class": "Rollout", **IS_NODE}
GIB = 2**30
LEAK_BYTES = GIB // 4  # less in half an hour is warming up more often than a leak
SOON_S = 600


def node_alerts() -> tuple[Alert, ...]:
    """Return the alerts of memory and nodes."""
    return (*_memory_alerts(), *_store_alerts(), *_node_alerts())


def stairs(name: str, step_m: int, rise_bytes: float, *by: str) -> str:
    """Return where a gauge is higher for ``step_m`` minutes than ever in those before, and so were they.

    A cache that fills, a batch, or a death and a new life make it go up and down: that is no leak.
    """

    def stair(edge: str, number: int) -> str:
        # A minute apart: two windows that touch share a value, and neither is above the other.
        offset = f" offset {number * step_m}m" if number else ""
        return most(f"{edge}_over_time({gauge(name)}[{step_m - 1}m]{offset})", *by)

    on = f"and on ({', '.join(by)})"
    return (
        f"{stair('max', 0)} - {stair('min', 2)} > {rise_bytes:.0f}"
        f" {on} {stair('min', 0)} > {stair('max', 1)}"
        f" {on} {stair('min', 1)} > {stair('max', 2)}"
    )


def _memory_alerts() -> tuple[Alert, ...]:
    forecast = f"rayguard_memory_forecast_seconds{{{OF_CLASS}, {ON}}}"
    of_class = ("ray_job", "actor_class", "instance")
    used = f"rayguard_node_memory_used_bytes{{{ON}}}"
    limit = f"rayguard_node_memory_limit_bytes{{{ON}}}"
    largest = f"rayguard_process_memory_max_bytes{{{OF_CLASS}, {ON}}}"
    return (
        Alert(
            name="RayguardMemoryRunsOut",
            expr=f"{least(lately('rayguard_memory_forecast_seconds', '1m'), *of_class)} < {SOON_S}",
            wait="2m",
            severity=Severity.CRITICAL,
            summary=(
                "{{ $labels.actor_class }} on {{ $labels.instance }} runs out of memory in "
                "{{ $value | humanizeDuration }}"
            ),
            description="By forecast, at the pace of now, and what rayguard gave back has not turned it.",
            fires=Case(
                series={forecast: "_x5 900 600 500 480x20"},
                at=12,
                labels=IS_CLASS,
                said={"$value | humanizeDuration": "8m 0s"},
            ),
            silent=(
                Case(series={forecast: "_x5 7200x20"}, at=12),
                # one look that foresaw it, and a relief that turned it
                Case(series={forecast: "_x5 500 3600x20"}, at=12),
            ),
        ),
        Alert(
            name="RayguardNodeMemoryLow",
            expr="rayguard_instance:memory_headroom:ratio < 0.1",
            wait="2m",
            severity=Severity.CRITICAL,
            summary="{{ $labels.instance }} has {{ $value | humanizePercentage }} of its memory left",
            description="At 5% Ray kills the worker that came last, whoever took the memory.",
            fires=Case(
                series={used: "50 92x20", limit: "100x20"},
                at=8,
                labels=IS_NODE,
                said={"$value | humanizePercentage": "8%"},
            ),
            silent=(Case(series={used: "50 80x20", limit: "100x20"}, at=8),),
        ),
        Alert(
            name="RayguardLeakGrowing",
            expr=(
                f"{stairs('rayguard_process_memory_max_bytes', 10, LEAK_BYTES, *of_class)}"
                f" and on ({', '.join(of_class)}) {lately('rayguard_process_memory_max_bytes', '1m')}"
            ),
            wait="10m",
            severity=Severity.WARNING,
            summary="{{ $labels.actor_class }} on {{ $labels.instance }} grows and does not stop",
            description=(
                "{{ $value | humanize1024 }}B within half an hour, and at no time back to where it was."
            ),
            fires=Case(
                series={largest: f"{GIB}+{GIB // 32}x60"},
                at=50,
                labels=IS_CLASS,
                said={"$value | humanize1024": "928Mi"},
            ),
            silent=(
                # the same growth, that is given back every quarter of an hour
                Case(series={largest: " ".join([f"{GIB}+{GIB // 32}x14"] * 4)}, at=50),
                Case(series={largest: f"{GIB}+{GIB // 32}x10 {GIB * 21 // 16}x50"}, at=50),
                # there is no such process any more
                Case(series={largest: f"{GIB}+{GIB // 32}x48 _x20"}, at=51),
            ),
        ),
    )


def _store_alerts() -> tuple[Alert, ...]:
    used = f"rayguard_node_object_store_used_bytes{{{ON}}}"
    limit = f"rayguard_node_object_store_limit_bytes{{{ON}}}"
    free = f'rayguard_node_disk_free_bytes{{{ON}, place="session"}}'
    size = f'rayguard_node_disk_size_bytes{{{ON}, place="session"}}'
    places = ("instance", "place")
    disk = (
        f"{least(lately('rayguard_node_disk_free_bytes', '1m'), *places)}"
        f" / {least(lately('rayguard_node_disk_size_bytes', '1m'), *places)}"
    )
    return (
        Alert(
            name="RayguardObjectsLeaking",
            expr=stairs("rayguard_node_object_store_used_bytes", 10, LEAK_BYTES, "instance"),
            wait="10m",
            severity=Severity.WARNING,
            summary="The object store of {{ $labels.instance }} grows and does not stop",
            description="{{ $value | humanize1024 }}B within half an hour: references that nobody drops.",
            fires=Case(
                series={used: f"{GIB}+{GIB // 32}x60"},
                at=50,
                labels=IS_NODE,
                said={"$value | humanize1024": "928Mi"},
            ),
            silent=(Case(series={used: " ".join([f"{GIB}+{GIB // 32}x14"] * 4)}, at=50),),
        ),
        Alert(
            name="RayguardObjectStoreFull",
            expr="rayguard_instance:object_store_used:ratio > 0.9",
            wait="10m",
            severity=Severity.WARNING,
            summary="The object store of {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
            description="Ray spills to disk, and each step waits for it.",
            fires=Case(
                series={used: "95x30", limit: "100x30"},
                at=15,
                labels=IS_NODE,
                said={"$value | humanizePercentage": "95%"},
            ),
            silent=(Case(series={used: "95 95 95 30 95x30", limit: "100x40"}, at=12),),
        ),
        Alert(
            name="RayguardDiskFull",
            expr=f"{disk} < 0.07",
            wait="2m",
            severity=Severity.CRITICAL,
            summary=(
                "{{ $labels.instance }}: {{ $value | humanizePercentage }} of the disk of "
                "{{ $labels.place }} is free"
            ),
            description=(
                "At 5% Ray spills nothing more and starts failing; journals and recordings are lost too."
            ),
            fires=Case(
                series={free: "6x20", size: "100x20"},
                at=10,
                labels={**IS_NODE, "place": "session"},
                said={"$value | humanizePercentage": "6%"},
            ),
            silent=(Case(series={free: "30x20", size: "100x20"}, at=10),),
        ),
    )


def _node_alerts() -> tuple[Alert, ...]:
    up = f'up{{job="{SCRAPE}", {ON}}}'
    missing = f'rayguard_agents{{ray_job="01000000", {ON}, state="missing"}}'
    quarantined = f'rayguard_nodes{{ray_job="01000000", {ON}, state="quarantined"}}'
    frozen = f"rayguard_processes_stopped{{{OF_CLASS}, {ON}}}"
    return (
        Alert(
            name="RayguardAgentGone",
            expr=f'up{{job="{SCRAPE}"}} == 0',
            wait="2m",
            severity=Severity.WARNING,
            summary="Nothing answers at {{ $labels.instance }}",
            description=(
                "The node's agent is gone, or its port is closed to Prometheus. The job is not touched by it."
            ),
            fires=Case(series={up: "1 1 0x20"}, at=10, labels={"job": SCRAPE, **IS_NODE}),
            # it was killed, and Ray has started it again
            silent=(Case(series={up: "1 1 0 1x20"}, at=10),),
        ),
        Alert(
            name="RayguardAgentMissing",
            expr=f"{most(lately('rayguard_agents', '2m', state='missing'))} > 0",
            wait="3m",
            severity=Severity.WARNING,
            summary="{{ $value }} nodes have no agent",
            description="They are alive and Ray runs work there, but nobody watches them.",
            fires=Case(series={missing: "0 0 2x20"}, at=10, labels={}, said={"$value": "2"}),
            silent=(Case(series={missing: "0 1 1 0x20"}, at=10),),
        ),
        Alert(
            name="RayguardNodeQuarantined",
            expr=f"{most(lately('rayguard_nodes', '5m', state='quarantined'))} > 0",
            wait="0m",
            severity=Severity.CRITICAL,
            summary="{{ $value }} nodes are in quarantine",
            description=(
                "Faults came back on them: replacements go elsewhere, and the cluster is smaller by them."
            ),
            # through the death of the supervisor that tells it
            fires=Case(series={quarantined: "0 0 1 1 _ _ _"}, at=6, labels={}, said={"$value": "1"}),
            silent=(Case(series={quarantined: "0x20"}, at=6),),
        ),
        Alert(
            name="RayguardProcessFrozen",
            expr=f"{total(lately('rayguard_processes_stopped', '1m'), *IS_CLASS)} > 0",
            wait="2m",
            severity=Severity.CRITICAL,
            summary=(
                "{{ $value }} processes of {{ $labels.actor_class }} on {{ $labels.instance }} are stopped"
            ),
            description=(
                "A signal or a debugger holds them. Ray does not notice, and every call to them waits."
            ),
            fires=Case(series={frozen: "0 1x20"}, at=5, labels=IS_CLASS, said={"$value": "1"}),
            silent=(Case(series={frozen: "0 1 0x20"}, at=5),),
        ),
    )
