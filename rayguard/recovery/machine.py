"""What to do about a fault of an engine: state and event in, state and remedy out.

Pure: the clock, the journal and the engine are elsewhere (``rayguard.engine.supervision.supervisor`` enacts).
What to do about a failing *call* of an ordinary guarded method is ``rayguard.recovery.calls``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from rayguard.faults.diagnosis import Diagnosis, Scope
from rayguard.recovery.ladder import Ladder
from rayguard.recovery.remedy import Action, Remedy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.recovery.policy import GuardPolicy

_COINCIDENCES = 2  # requests that may be found guilty of the same within the budget's window
_NOT_THE_ENGINES_FAULT = frozenset({Scope.CODE, Scope.JOB, Scope.GROUP, Scope.NODE})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What one engine slot has been through. It survives the process (``to_json``), requests do not."""

    applied: tuple[str, ...] = ()  # safe settings in force
    pinned: tuple[str, ...] = ()  # invariant: a pinned setting is never taken back in this job
    unusable: tuple[str, ...] = ()  # rungs that this engine cannot be built with
    restarts: tuple[float, ...] = ()  # wall-clock seconds of engine restarts
    process_restarts: tuple[float, ...] = ()
    seen: tuple[tuple[str, float], ...] = ()  # (signature, last time): a second one soon climbs a rung
    last_fault_at: float = 0.0
    on_probation: str | None = None  # the setting that was last taken back
    tried: tuple[tuple[str, float], ...] = ()  # (remedy, when) within the budget's window
    deaths: dict[str, int] = field(default_factory=dict)  # request id -> engines it was on as they died
    taken_for: dict[str, tuple[str, ...]] = field(default_factory=dict)  # safe setting -> what ran as it was
    convicted: tuple[tuple[str, float], ...] = ()  # (signature, when) of each request that was quarantined

    def to_json(self) -> dict[str, object]:
        """Return plain JSON types; running requests stay out (they die with the process)."""
        return {**asdict(self), "deaths": {}, "taken_for": {}}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> EngineState:
        """Rebuild a state; unknown keys (of a newer version) are dropped."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known
        }
        for key in ("seen", "tried", "convicted"):
            values[key] = tuple((str(name), float(at)) for name, at in values.get(key, ()))
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The engine failed, or a call to it did.

    ``requests`` ran on it at that moment, ``calls`` were in it or had just left it: one of them may be why.
    ``own_process`` says that the engine lives in this very
    process; for one with processes of its own, killing those is enough to get rid of a poisoned one.
    """

    diagnosis: Diagnosis
    now: float
    requests: tuple[str, ...] = ()
    held: tuple[str, ...] = ()  # suspects that were not running
    calls: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  # calls in it that change nothing: no alibi for a request
    own_process: bool = False
    restartable: bool = False  # may this process die, will Ray start it again?
    alive: bool = False  # the engine still runs: the failure may be the caller's


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The remedy, and what becomes of the requests that were running."""

    remedy: Remedy
    quarantined: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()  # to be run one at a time, to find the one that kills
    calls: tuple[str, ...] = ()  # reads that are not made again: they were in too many engines that died


def handle(state: EngineState, event: Failed, policy: GuardPolicy) -> tuple[EngineState, Decision]:
    """Return the next state and what to do about ``event``.

    Invariants: a living engine is never restarted for a request's or the user's own error; the number of
    restarts within the budgets' windows never exceeds them; a safe setting is taken back here only with the
    request that it was taken for; no request is blamed for a death while a call was in the engine.
    """
    scope = event.diagnosis.scope
    if event.alive and scope is Scope.REQUEST:
        return state, _leave(state, Action.ANSWER_ERROR, "the request's own fault")
    if event.alive and scope in _NOT_THE_ENGINES_FAULT:
        return state, _leave(state, Action.NONE, f"scope {scope.value}: a new engine would not help")
    state = _blame(_note(state, event, policy), event)
    killed = state.deaths
    quarantined = tuple(r for r in event.requests if killed.get(r, 0) >= policy.quarantine_after)
    state = _acquit_settings(state, event, quarantined)
    before = state.applied
    action = _affordable(state, event, policy)
    if action is Action.RESTART_ENGINE:
        state = _climb(state, event, policy)
        state = replace(state, restarts=(*state.restarts, event.now))
    elif action is Action.RESTART_PROCESS:
        state = replace(state, process_restarts=(*state.process_restarts, event.now))
    remedy = Remedy(
        action=action,
        rung=len(state.applied),
        applied=state.applied,
        added=state.applied[-1] if len(state.applied) > len(before) else "",
        reason=_why(action, policy),
    )
    state = replace(
        state,
        tried=state.tried if action is Action.GIVE_UP else (*state.tried, (remedy.label, event.now)),
        seen=_remember(state.seen, event.diagnosis.signature, event.now),
        last_fault_at=event.now,
    )
    most = policy.quarantine_after - 1
    suspects = tuple(r for r in (*event.requests, *event.held) if 0 < killed.get(r, 0) == most)
    calls = tuple(c for c in event.reads if killed.get(_read(c), 0) >= policy.quarantine_after)
    return state, Decision(remedy=remedy, quarantined=quarantined, suspects=suspects, calls=calls)


def build_failed(state: EngineState, setting: str) -> EngineState:
    """Return the state after an engine could not be built because of its newest safe setting."""
    return replace(
        state,
        applied=tuple(name for name in state.applied if name != setting),
        pinned=tuple(name for name in state.pinned if name != setting),
        unusable=(*state.unusable, setting),
    )


def take_back(state: EngineState, policy: GuardPolicy, now: float) -> EngineState | None:
    """Return the state one safe setting lower, when it is time to try; None when it is not.

    After ``probation_s`` without faults the newest setting that is not pinned is taken back. If a fault
    comes within another ``probation_s``, it returns and is pinned (see ``_climb``).
    """
    free = [name for name in state.applied if name not in state.pinned]
    if policy.probation_s is None or not free or now - state.last_fault_at < policy.probation_s:
        return None
    back = free[-1]
    return replace(
        state,
        applied=tuple(name for name in state.applied if name != back),
        on_probation=back,
        last_fault_at=now,
    )


def _leave(state: EngineState, action: Action, reason: str) -> Decision:
    return Decision(
        remedy=Remedy(action=action, rung=len(state.applied), applied=state.applied, reason=reason)
    )


def _note(state: EngineState, event: Failed, policy: GuardPolicy) -> EngineState:
    return replace(
        state,
        restarts=policy.engine_budget.recent(state.restarts, event.now),
        process_restarts=policy.process_budget.recent(state.process_restarts, event.now),
        tried=tuple((t, at) for t, at in state.tried if event.now - at < policy.engine_budget.within_s),
        convicted=tuple(
            (s, at) for s, at in state.convicted if event.now - at < policy.engine_budget.within_s
        ),
    )


def _blame(state: EngineState, event: Failed) -> EngineState:
    # Answered requests are forgotten here: only those that ran or wait can ever be quarantined.
    acquitted = {*event.held, *(event.requests if event.calls else ())}
    kept = {r: n for r, n in state.deaths.items() if r in acquitted}
    blamed = (*(() if event.calls else event.requests), *map(_read, event.reads))
    return replace(state, deaths={**kept, **{r: state.deaths.get(r, 0) + 1 for r in blamed}})


def _read(call: str) -> str:
    """Return the name of a call that reads in the book of deaths, where requests stand as well."""
    return f"call {call}"


def _acquit_settings(state: EngineState, event: Failed, quarantined: tuple[str, ...]) -> EngineState:
    """Take back the safe settings that were taken while one ran which is now known to kill."""
    if not quarantined:
        return state
    useless = {name for name, ran in state.taken_for.items() if set(quarantined) & set(ran)}
    return replace(
        state,
        applied=tuple(name for name in state.applied if name not in useless),
        pinned=tuple(name for name in state.pinned if name not in useless),
        taken_for={name: ran for name, ran in state.taken_for.items() if name not in useless},
        convicted=(*state.convicted, *((event.diagnosis.signature, event.now) for _ in quarantined)),
    )


def _has_a_suspect(state: EngineState, event: Failed) -> bool:
    """Say whether something that was in the engine is the likelier cause than its settings.

    That is a call, or a request that was on the engine before it as well. Not where several such requests
    were found guilty of the same already: then it is no longer the requests.
    """
    guilty = sum(name == event.diagnosis.signature for name, _ in state.convicted)
    twice = any(state.deaths.get(r, 0) > 1 for r in event.requests)
    return bool(event.calls) or (twice and guilty <= _COINCIDENCES)


def _affordable(state: EngineState, event: Failed, policy: GuardPolicy) -> Action:
    must_die = event.own_process and (event.diagnosis.poisoned or event.diagnosis.scope is Scope.PROCESS)
    if not must_die and policy.engine_budget.allows(state.restarts, event.now):
        return Action.RESTART_ENGINE
    if event.restartable and policy.process_budget.allows(state.process_restarts, event.now):
        return Action.RESTART_PROCESS
    return Action.GIVE_UP


def _climb(state: EngineState, event: Failed, policy: GuardPolicy) -> EngineState:
    diagnosis = event.diagnosis
    # Then it was not for what was taken back.
    known = not diagnosis.settings_help or (diagnosis.deterministic and bool(diagnosis.cures))
    suspect = _has_a_suspect(state, event)
    if (
        state.on_probation is not None
        and not suspect
        and (not known or state.on_probation in diagnosis.cures)
    ):
        back, soon = state.on_probation, event.now - state.last_fault_at < (policy.probation_s or 0.0)
        state = replace(state, on_probation=None)
        if soon:
            ran = {**state.taken_for, **({back: event.requests} if event.requests else {})}
            return replace(state, applied=(*state.applied, back), pinned=(*state.pinned, back), taken_for=ran)
    window = policy.engine_budget.within_s
    again = any(name == diagnosis.signature and event.now - at < window for name, at in state.seen)
    if diagnosis.retry_same_settings and not diagnosis.deterministic and not again:
        return state
    taken = (*state.applied, *state.unusable)
    ladder = policy.ladder if diagnosis.settings_help else Ladder(rungs=())
    name = ladder.next(taken, diagnosis.cures)
    sure = diagnosis.deterministic and name in diagnosis.cures
    if name is None or (suspect and not sure):
        return state
    pinned = (*state.pinned, name) if sure else state.pinned
    trial = None if name == state.on_probation else state.on_probation
    ran = {name: event.requests} if event.requests and not sure else {}
    return replace(
        state,
        applied=(*state.applied, name),
        pinned=pinned,
        on_probation=trial,
        taken_for={**state.taken_for, **ran},
    )


def _remember(
    seen: tuple[tuple[str, float], ...], signature: str, now: float
) -> tuple[tuple[str, float], ...]:
    return (*((name, at) for name, at in seen if name != signature), (signature, now))


def _why(action: Action, policy: GuardPolicy) -> str:
    if action is Action.GIVE_UP:
        engine, process = policy.engine_budget, policy.process_budget
        return (
            f"the budget is spent ({engine.max_restarts} engine restarts in {engine.within_s:.0f} s, "
            f"{process.max_restarts} process restarts in {process.within_s:.0f} s)"
        )
    return ""
