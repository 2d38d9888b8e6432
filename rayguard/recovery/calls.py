"""What to do about a failing call of a guarded method: diagnosis in, remedy out.

Pure: who repeats the call or ends the process is ``rayguard.actors.guard.call_recovery``. What to do about an
*engine* and the requests in it is ``rayguard.recovery.machine``.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery.remedy import Action, Remedy

if TYPE_CHECKING:
    from rayguard.recovery.policy import GuardPolicy

CERTAIN = 0.9  # of a diagnosis on which a process may be ended
# Gone a moment later, whatever scope the catalog gives them: asking again is the cure.
TRANSIENT = frozenset(
    {
        Kind.GET_TIMEOUT,
        Kind.OBJECT_LOST,
        Kind.ACTOR_UNAVAILABLE,
        Kind.GCS_UNAVAILABLE,
        Kind.OBJECT_STORE_FULL,
        Kind.STORAGE_IO,
        Kind.CUDA_OOM,
    }
)
# The caller's, the user's or the launcher's business: repeating it is repeating the mistake.
_ANSWERED = frozenset({Scope.REQUEST, Scope.CODE, Scope.JOB, Scope.UNKNOWN})


class Restart(str, Enum):
    """May the process that saw the failure be ended, so that Ray starts it again?"""

    POSSIBLE = "possible"
    ELSEWHERE = "elsewhere"  # Ray reported it: the process that must die is another one
    NOT_ALLOWED = "not_allowed"  # no actor, or Ray would not start it again
    SPENT = "spent"  # the policy's process_budget


def needs_new_process(diagnosis: Diagnosis) -> bool:
    """Say whether it is proved that every later call in the process that failed would fail too.

    Only what the failure itself proves: a poisoned device context. Not its scope, nothing below certainty.
    An engine that is dead counts: under a plain guard nobody rebuilds it but the ``__init__`` of a new
    process (``RolloutMixin`` rebuilds it before a call ever fails).
    """
    certain = diagnosis.confidence >= CERTAIN
    return certain and (diagnosis.poisoned or diagnosis.kind is Kind.ENGINE_DEAD)


def decide_call(
    diagnosis: Diagnosis, *, attempt: int, idempotent: bool, restart: Restart, policy: GuardPolicy
) -> Remedy:
    """Return the remedy for a call that failed ``attempt`` + 1 times in this process.

    Invariants: only an idempotent call is repeated, at most ``policy.call_retries`` times, never in a
    process that needs to die; a process is restarted only where ``restart`` says that it may.
    RESTART_PROCESS for a call that must not run twice means: answer it first, then end the process.
    """
    if needs_new_process(diagnosis) and restart is not Restart.ELSEWHERE:
        return _new_process(restart, policy)
    if _transient(diagnosis):
        return _again(attempt, policy, idempotent=idempotent)
    if diagnosis.scope in _ANSWERED:
        return Remedy(action=Action.ANSWER_ERROR, reason=f"scope {diagnosis.scope.value}")
    return Remedy(
        action=Action.NONE, reason=f"scope {diagnosis.scope.value}: not cured by repeating the call"
    )


def _new_process(restart: Restart, policy: GuardPolicy) -> Remedy:
    if restart is Restart.POSSIBLE:
        return Remedy(action=Action.RESTART_PROCESS, reason="nothing works in this process any more")
    if restart is Restart.SPENT:
        budget = policy.process_budget
        return Remedy(
            action=Action.GIVE_UP,
            reason=f"{budget.max_restarts} process restarts within {budget.within_s:g} s are spent",
        )
    return Remedy(action=Action.NONE, reason="a new process is needed, and Ray would not start one")


def _transient(diagnosis: Diagnosis) -> bool:
    lasting = diagnosis.deterministic or not diagnosis.retry_same_settings or needs_new_process(diagnosis)
    return diagnosis.kind in TRANSIENT and not lasting


def _again(attempt: int, policy: GuardPolicy, *, idempotent: bool) -> Remedy:
    if not idempotent:
        return Remedy(action=Action.NONE, reason="transient, but the method must not run twice")
    if attempt >= policy.call_retries:
        return Remedy(action=Action.NONE, reason=f"still failing after {attempt} retries")
    return Remedy(action=Action.RETRY, reason=f"transient: retry {attempt + 1} of {policy.call_retries}")
