"""What the supervisor of a job knows, as plain JSON: kept by Ray's control process, it survives this one.

The cursors into the nodes' journals are kept with what was made of them, in one piece: after a restart
nothing is missing, and nothing is counted twice. What Ray's tables say anew is not kept.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from rayguard.cluster.supervisor.job_state import JobClock, JobState, Loss, begin
from rayguard.cluster.supervisor.quarantine import NodeHistory, Quarantine
from rayguard.cluster.supervisor.restart_budget import Crash, Crashes
from rayguard.cluster.supervisor.stories import slim
from rayguard.recovery.incident import Incident

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.cluster.supervisor.policy import SupervisorPolicy

T = TypeVar("T")

MAX_BYTES = 160 << 10  # of the packed incidents; the table of Ray's control process takes 256 KiB at once
_MANY = 2_000
_LAST = 500


def saved(state: JobState, cursors: Mapping[str, str]) -> dict[str, object]:
    """Return what is kept, in plain JSON types; at most about 200 KiB."""
    restarts = {one: actor.restarts for one, actor in state.actors.items() if actor.restarts}
    return {
        "cursors": dict(cursors),
        "clock": asdict(state.clock),
        "restarts": dict(list(restarts.items())[-_MANY:]),
        "spent": [round(one.at, 1) for one in list(state.crashes)[-_MANY:]],
        "spent_at": state.spent_at,
        "loops": {
            one: [(each.at, each.exit) for each in crashes] for one, crashes in _last(state.loops).items()
        },
        "loop_incidents": _last(state.loop_incidents),
        "nodes": dict(state.nodes),
        "gone": _last(state.gone),
        "histories": {one: asdict(history) for one, history in _last(state.histories).items()},
        "shunned": {one: asdict(quarantine) for one, quarantine in state.quarantined.items()},
        "losses": {
            node: {**asdict(one), "incident": slim(one.incident).to_json(), "waiting": sorted(one.waiting)}
            for node, one in state.losses.items()
        },
        "totals": [(*key, count) for key, count in state.totals.items()],
        "counted": list(state.counted)[-_LAST:],
        "gone_actors": dict(list(state.stories.gone.items())[-_LAST:]),
        "incidents": _packed(state.stories.incidents()),
    }


def restored(
    values: Mapping[str, Any], job_id: str, policy: SupervisorPolicy, began_at: float
) -> tuple[JobState, dict[str, str]]:
    """Return the state and the cursors that ``saved`` kept; without any, those of a job that is new here."""
    state = begin(job_id, began_at, policy)
    if not values:
        return state, {}
    state.restored = True
    state.clock = JobClock(**values["clock"])
    state.known_until = state.clock.now
    state.restarts_known = {one: int(count) for one, count in values["restarts"].items()}
    for at in values["spent"]:
        state.crashes.add(Crash(at))
    state.spent_at = values["spent_at"]
    most = policy.crash_loop.max_restarts if policy.crash_loop else 0
    for one, crashes in values["loops"].items():
        state.loops[one] = Crashes((Crash(*each) for each in crashes), most=most)
    state.loop_incidents.update(values["loop_incidents"])
    state.nodes = dict(values["nodes"])
    state.gone.update(values["gone"])
    for one, history in values["histories"].items():
        deaths = tuple((float(at), str(actor)) for at, actor in history["deaths"])
        state.histories[one] = NodeHistory(tuple(history["faults"]), deaths)
    state.quarantined = {one: Quarantine(**quarantine) for one, quarantine in values["shunned"].items()}
    state.losses = {one: _loss_of(loss) for one, loss in values["losses"].items()}
    state.totals = Counter({(kind, scope): count for kind, scope, count in values["totals"]})
    state.counted.update(dict.fromkeys(values["counted"]))
    for incident in _unpacked(values["incidents"]):
        state.stories.add(incident)
    for actor_id, at in values["gone_actors"].items():
        state.stories.actor_gone(actor_id, at)
    state.before = replace(state.clock), Counter(state.totals)
    return state, dict(values["cursors"])


def _last(things: Mapping[str, T]) -> dict[str, T]:
    return dict(list(things.items())[-_LAST:])


def _loss_of(values: dict[str, Any]) -> Loss:
    incident = Incident.from_json(values["incident"])
    return Loss(**{**values, "incident": incident, "waiting": set(values["waiting"])})


def _packed(incidents: list[Incident]) -> str:
    """Pack the newest incidents that have room."""
    while True:
        lines = [incident.to_json() for incident in incidents]
        packed = base64.b64encode(zlib.compress(json.dumps(lines, separators=(",", ":")).encode())).decode()
        if len(packed) <= MAX_BYTES:
            return packed
        incidents = incidents[len(incidents) // 4 + 1 :]


def _unpacked(packed: str) -> list[Incident]:
    return [Incident.from_json(one) for one in json.loads(zlib.decompress(base64.b64decode(packed)))]
