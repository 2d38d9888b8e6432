"""The run as one JSON document, for machines; the summary table for people is ``summary``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from examples.grpo.outcome.verdict import join, killed_ranks

if TYPE_CHECKING:
    from examples.grpo.history import History
    from examples.grpo.outcome.verdict import Joined
    from rayguard.recovery.incident import Incident


def report(history: History, found: list[str]) -> dict[str, Any]:
    """Return what happened and what it cost. ``found`` are the problems (``verdict``)."""
    done, steps = history.deliveries, history.steps
    causes = {joined.incident.id: joined for joined in join(history) if joined.incident}
    return {
        "guarded": history.guarded,
        "ok": not found,
        "problems": found,
        "steps": len(steps),
        "steps_planned": history.steps_planned,
        "wall_s": round((history.ended_at or history.started_at) - history.started_at, 3),
        "prompts_expected": done.expected,
        "prompts_delivered": done.delivered,
        "prompts_duplicated": done.duplicated,
        "samples_stale": done.stale,
        "reward_first": steps[0].reward if steps else None,
        "reward_last": steps[-1].reward if steps else None,
        "logp_diff_max": max((step.logp_diff for step in steps), default=None),
        "faults": [
            {
                "what": joined.fault.planned.what.value,
                "step": joined.fault.planned.step,
                "rollout": joined.fault.planned.target,
                "pid": joined.fault.pid,
                "at_s": round(joined.fault.at - history.started_at, 3),
                "incident": joined.incident.id if joined.incident else None,
            }
            for joined in join(history)
        ],
        "killed_ranks": [
            {
                "step": killed.step,
                "rank": killed.rank,
                "recover_s": incident and incident.recover_s,
                "incident": incident and incident.id,
            }
            for killed, incident in killed_ranks(history)
        ],
        "incidents": [_incident(incident, causes.get(incident.id)) for incident in history.incidents],
        "memory": [dataclasses.asdict(process) for process in history.memory],
        "rewards": [round(step.reward, 4) for step in steps],
    }


def _incident(incident: Incident, joined: Joined | None) -> dict[str, Any]:
    return {
        "kind": incident.kind,
        "scope": incident.scope,
        "cause": incident.cause,
        "remedy": incident.remedy,
        "detect_s": joined.detect_s if joined else incident.detect_s,
        "recover_s": incident.recover_s,
        "tokens_saved": incident.tokens_saved,
        "tokens_lost": incident.tokens_lost,
        "fault": joined.fault.planned.what.value if joined else None,
        "id": incident.id,
        "outcome": incident.outcome.value,
        "settings": list(incident.settings),
    }
