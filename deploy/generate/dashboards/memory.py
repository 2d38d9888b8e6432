"""Memory and object store: what runs out, who takes it, what was given back."""

from __future__ import annotations

from deploy.generate.alerts import rules
from deploy.generate.alerts.promql import (
    JOB,
    NODE,
    gauge,
    grown,
    increase,
    least,
    most,
    number_of,
    or_zero,
    rate,
    total,
)
from deploy.generate.dashboards.board import Board, Colour, Draw, Panel, Query, Row, Unit

RANGE, RATE = "$__range", "$__rate_interval"
NEARLY_FULL = ((0.8, Colour.ORANGE), (0.9, Colour.RED))


def memory() -> Board:
    """Return the dashboard."""
    return Board(
        uid="rayguard-memory",
        title="rayguard / Memory and object store",
        about="What runs out and when, who takes it, what was given back and freed.",
        rows=(
            Row("Does memory run out?", _left()),
            Row("Who takes it?", _taken()),
            Row("What fills the object store?", _store()),
        ),
    )


def _left() -> tuple[Panel, ...]:
    used, limit = "rayguard_node_memory_used_bytes", "rayguard_node_memory_limit_bytes"
    return (
        Panel(
            title="Memory in use",
            about="Share of what each node or its container may have. At 95 % Ray kills the newest worker.",
            queries=(
                Query(
                    f"{total(gauge(used, NODE), 'instance')} / {total(gauge(limit, NODE), 'instance')}",
                    "{{instance}}",
                ),
                Query(
                    most(gauge("rayguard_node_memory_stalled_ratio", NODE), "instance"),
                    "{{instance}}: time stalled",
                ),
            ),
            unit=Unit.SHARE,
            steps=NEARLY_FULL,
            runbook="node-memory-low",
            width=10,
        ),
        Panel(
            title="Least headroom",
            about="Free memory of the node that has least. Below 10 % somebody has to make room.",
            queries=(
                Query(f"min({rules.headroom(NODE)})", "share"),
                Query(f"min({gauge(limit, NODE)} - {gauge(used, NODE)})", "bytes", Unit.BYTES, Colour.BLUE),
            ),
            draw=Draw.NUMBER,
            unit=Unit.SHARE,
            colour=Colour.RED,
            steps=((0.1, Colour.ORANGE), (0.2, Colour.GREEN)),
            runbook="node-memory-low",
            width=6,
        ),
        Panel(
            title="Foreseen to run out",
            about=(
                "Groups of processes whose memory will run out if they go on so, and how soon. None: as "
                "it should be."
            ),
            queries=(
                Query(or_zero(number_of(gauge("rayguard_memory_forecast_seconds", JOB))), "groups"),
                Query(least(gauge("rayguard_memory_forecast_seconds", JOB)), "soonest", Unit.SECONDS),
            ),
            draw=Draw.NUMBER,
            steps=((1, Colour.ORANGE),),
            runbook="memory-runs-out",
        ),
    )


def _taken() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Memory by class",
            about="Memory of the job's processes that they share with nobody, by class of actor.",
            queries=(Query(total(gauge("rayguard_memory_bytes", JOB), "actor_class"), "{{actor_class}}"),),
            draw=Draw.STACK,
            unit=Unit.BYTES,
        ),
        Panel(
            title="Largest process of a class",
            about="One that grows step after step leaks: `rayguard memory` names the line that makes it.",
            queries=(
                Query(
                    most(gauge("rayguard_process_memory_max_bytes", JOB), "actor_class"), "{{actor_class}}"
                ),
            ),
            unit=Unit.BYTES,
            runbook="leak-growing",
        ),
        Panel(
            title="Memory given back",
            about=(
                "Reliefs in the time range, gentle (`collect`) to harsh (`recycle`). Many harsh ones: "
                "fix the leak."
            ),
            queries=(
                Query(
                    or_zero(
                        total(grown("rayguard_memory_reliefs_total", RANGE, JOB), "relief"), relief="none"
                    ),
                    "{{relief}}",
                ),
            ),
            draw=Draw.BARS,
            colour=Colour.BLUE,
        ),
        Panel(
            title="Memory of devices",
            about=(
                "Of each GPU, all processes together; 0 where there is none. It must fall when an engine "
                "ends."
            ),
            queries=(
                Query(
                    or_zero(
                        total(gauge("rayguard_node_device_memory_used_bytes", NODE), "instance", "device"),
                        device="no GPU",
                    ),
                    "{{instance}} {{device}}",
                ),
                Query(or_zero(total(gauge("rayguard_node_device_memory_limit_bytes", NODE))), "all there is"),
            ),
            unit=Unit.BYTES,
        ),
        Panel(
            title="Leftovers of the dead",
            about="Processes and segments in /dev/shm that dead ones left and the reaper removed.",
            queries=(
                Query(
                    or_zero(
                        total(grown("rayguard_leftovers_reaped_total", RANGE, NODE), "kind"), kind="none"
                    ),
                    "{{kind}}",
                ),
            ),
            draw=Draw.BARS,
            colour=Colour.BLUE,
        ),
        Panel(
            title="Bytes given back",
            about="What the reliefs and the reaper freed in the time range, measured.",
            queries=(
                Query(
                    or_zero(total(grown("rayguard_memory_relieved_bytes_total", RANGE, JOB))), "by reliefs"
                ),
                Query(
                    or_zero(total(grown("rayguard_leftovers_reaped_bytes_total", RANGE, NODE))),
                    "by the reaper",
                ),
            ),
            draw=Draw.NUMBER,
            unit=Unit.BYTES,
            colour=Colour.BLUE,
        ),
    )


def _store() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Object store in use",
            about="Share of each node's store. Full: Ray spills, and each step waits for the disk.",
            queries=(Query(rules.store_used(NODE), "{{instance}}"),),
            unit=Unit.SHARE,
            steps=NEARLY_FULL,
            runbook="object-store-full",
        ),
        Panel(
            title="Object store, bytes",
            about="It is to come back to the same floor after each step. A floor that rises is a leak.",
            queries=(
                Query(
                    total(gauge("rayguard_node_object_store_used_bytes", NODE), "instance"), "{{instance}}"
                ),
            ),
            draw=Draw.STACK,
            unit=Unit.BYTES,
            runbook="objects-leaking",
        ),
        Panel(
            title="Spilled to disk",
            about="Bytes per second that the stores write to disk because they are full.",
            queries=(
                Query(
                    total(rate("rayguard_node_object_store_spilled_bytes_total", RATE, NODE), "instance"),
                    "{{instance}}",
                ),
            ),
            unit=Unit.BYTES_RATE,
        ),
        Panel(
            title="Objects held",
            about=(
                "Objects that processes made within scopes and hold; `waiting` outlived theirs and are "
                "in use."
            ),
            queries=(
                Query(total(gauge("rayguard_objects_held", JOB)), "held"),
                Query(total(gauge("rayguard_objects_waiting", JOB)), "waiting"),
            ),
            runbook="objects-leaking",
        ),
        Panel(
            title="Objects freed",
            about="References and actor handles that were ended with their scope.",
            queries=(
                Query(total(increase("rayguard_objects_freed_total", RATE, JOB)), "objects"),
                Query(total(increase("rayguard_actor_handles_freed_total", RATE, JOB)), "actor handles"),
            ),
        ),
        Panel(
            title="Bytes freed",
            about="Bytes of the references that were ended, where Ray told their size.",
            queries=(Query(total(rate("rayguard_objects_freed_bytes_total", RATE, JOB)), "freed"),),
            unit=Unit.BYTES_RATE,
        ),
    )
