"""What would be done about a failed run, from its log: its verdict, the changed command, the checkpoint.

Starts nothing. The log does not tell how long the command ran, nor how often it was started before: it is
taken for a first failure of a command that had got to work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.runner import resume
from rayguard.runner.ending import Ending
from rayguard.runner.failure import Circumstances, failure_of
from rayguard.runner.machine import Relaunch, RunFailed, RunState, handle

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rayguard.logs.files import LogFile
    from rayguard.runner.failure import RunFailure
    from rayguard.runner.plan import RunPlan
    from rayguard.runner.resume import FindsGood
    from rayguard.runner.run import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What would be done, and why; ``words`` is empty where nothing would be started again."""

    failure: RunFailure
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    checkpoint: Path | None = None
    why: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain JSON types."""
        diagnosis = self.failure.diagnosis
        return {
            "kind": diagnosis.kind.value,
            "scope": diagnosis.scope.value,
            "signature": diagnosis.signature,
            "cause": self.failure.cause,
            "advice": diagnosis.advice,
            "relaunch": bool(self.words),
            "words": list(self.words),
            "environment": dict(self.environment),
            "changed": list(self.changed),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "why": self.why,
            "notes": list(self.notes),
        }


def dry_run(plan: RunPlan, log: LogFile, options: RunOptions, find: FindsGood) -> DryRun:
    """Return what would be done if the command of ``plan`` had printed ``log`` and failed."""
    plan = replace(plan, before={})  # all that lies there is its own
    now = time.time()
    failure = failure_of([log], Circumstances(ending=Ending(1), began_at=now))
    event = RunFailed(
        diagnosis=failure.diagnosis,
        ending=Ending(1),
        now=now,
        lasted_s=options.policy.quick_s,
        corrections=plan.corrections(failure.diagnosis, ()),
        furthest=resume.furthest(resume.own(plan.place, plan.before)),
    )
    state, action = handle(RunState(), event, options.policy)
    if not isinstance(action, Relaunch):
        return DryRun(failure=failure, why=action.why, notes=failure.notes)
    start = plan.goes_on(state.made, find, within_s=options.look_s, made_nothing=options.may_repeat)
    if not isinstance(start, resume.Start):
        return DryRun(failure=failure, why=start.why, notes=failure.notes)
    return DryRun(
        failure=failure,
        words=start.command.words,
        environment=start.command.environment,
        changed=plan.changed(state.made).written,
        checkpoint=start.checkpoint,
        why=action.why,
        notes=(*failure.notes, *start.notes),
    )
