"""Whether an engine that has work is hung: observations in, verdict out.

Pure: who observes is ``watch``. That a process died is told sooner by ``rayguard.process.deaths``.

A hang is silence, but not all silence is a hang: a long prefill computes, a cold start compiles, a weight
push has its own deadline, a starved machine runs nobody, and an observer that was itself paused saw nothing
because it did not look. So silence is judged by what the processes do in it, against the pace that this
engine has shown in the same phase of its work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from rayguard.engine.hangs.gap_histogram import GapHistogram
from rayguard.engine.hangs.phase import Phase, patient

if TYPE_CHECKING:
    from collections.abc import Mapping

IDLE_CPU_RATIO = 0.05  # of one core, on average: less is idle
PACE_FACTOR = 10  # a silence this many times longer than the usual gap is no pace of this engine
PAUSE_FACTOR = 5  # a gap this many times the expected one means that the observer was paused
CALM_SHARE = 0.75  # of the limit: vLLM's readers spin for a second before they sleep
SPIN_CPU_RATIO = 0.25  # less is a machine that does not let the engine run
CPU_FACTOR = 4  # a silence that costs the CPU time of so many usual turns
LEARNED = 10  # looks with progress before the pace of decoding counts
WARM_TURNS = 64  # of a new engine: in the first ones kernels and graphs are still compiled
_BURST_S = 0.25  # of CPU time: below, clock ticks are not worth telling apart
_STOPPED, _STIRRING = frozenset({"T", "t"}), frozenset({"R", "D"})
_NONE = GapHistogram()
_UNJUDGED = frozenset({Phase.CALL, Phase.AWAY})  # but for processes that are stopped in a call


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen at ``at_s`` (monotonic clock) of one engine, summed over its processes.

    ``progress`` only grows (tokens, steps); ``running`` counts what waits for an answer; ``states`` are the
    kernel's letters of its processes; ``cpu_s`` only grows and includes what they started.
    """

    at_s: float
    progress: int
    running: int
    cpu_s: float
    states: tuple[str, ...] = ()
    phase: Phase = Phase.PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Silence that is a hang when a process is stopped / none computes / they compute.

    While decoding, ``idle_s`` is also the least for processes that compute: a token takes milliseconds.
    ``interval_s`` is how often observations are meant to come. ``whole_prompts``: prompts are computed in
    one step each, so that a decoding engine may recompute one for as long as a prefill takes.
    """

    stopped_s: float = 2.0
    idle_s: float = 8.0
    busy_s: float = 300.0
    interval_s: float = 0.5
    whole_prompts: bool = False


class Hang(str, Enum):
    """What the silent processes were doing."""

    STOPPED = "stopped"
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogVerdict:
    """The engine is hung, and the evidence. ``cpu_ratio`` is cores in use, on average over the silence."""

    hang: Hang
    silent_s: float
    requests: int
    cpu_ratio: float
    states: tuple[str, ...]
    phase: Phase = Phase.PREFILL
    usual_s: float = 0.0  # between two signs of progress in this phase; 0 when that was not learned

    def __str__(self) -> str:
        usual = f" (usually under {self.usual_s:.1f} s)" if self.usual_s else ""
        return (
            f"{self.hang.value}: no progress for {self.silent_s:.1f} s{usual} in {self.phase.value} with "
            f"{self.requests} requests running, {self.cpu_ratio:.2f} cores in use, process states "
            f"{' '.join(self.states) or 'unknown'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """What must be remembered between observations.

    Invariant: ``since``, ``calm`` and ``stopped_at_s`` (where it is set) are not later than ``newest``, and
    ``calm`` is not earlier than ``since``.
    """

    newest: Observation
    since: Observation  # the silence is counted from here
    calm: Observation  # nobody computes since then
    phase: Phase  # of the silence: the most patient one it began in
    stopped_at_s: float | None = None  # a process has been stopped in each observation from then on
    rest_s: float = 0.0  # the longest calm in this silence
    looks: int = 0  # since ``calm``
    stirring: int = 0  # of those: somebody was on a core, waited for one, or for the kernel
    turns: int = 0  # of progress that this engine made under our eyes
    paces: Mapping[Phase, GapHistogram] = field(default_factory=dict)  # seconds between signs of progress
    rests: Mapping[Phase, GapHistogram] = field(default_factory=dict)  # of those, in which nobody computed
    costs: Mapping[Phase, GapHistogram] = field(default_factory=dict)  # CPU seconds of one turn


def judge(
    state: WatchState | None, seen: Observation, limits: Limits
) -> tuple[WatchState, WatchdogVerdict | None]:
    """Return the state after ``seen``, and a verdict when the engine is hung. Start with None."""
    after = _after(state, seen, limits)
    return after, _verdict(after, limits)


def excused(state: WatchState) -> WatchState:
    """Return the state in which the present silence is one of compiling: somebody saw what it is spent on."""
    return replace(state, phase=Phase.LOAD, calm=state.newest, looks=0, stirring=0)


def _after(state: WatchState | None, seen: Observation, limits: Limits) -> WatchState:
    if state is None:
        state = WatchState(newest=seen, since=seen, calm=seen, phase=seen.phase)
        return _begun(state, seen, stopped_at_s=_stopped_since(None, seen))
    gap_s = seen.at_s - state.newest.at_s
    if not 0 <= gap_s <= PAUSE_FACTOR * limits.interval_s:
        # We were stopped, or in a debugger, or the machine slept: all that we know is that it is now.
        return _begun(state, seen, stopped_at_s=_stopped_since(None, seen))
    stopped_at_s = _stopped_since(state.stopped_at_s, seen)
    if seen.running == 0 or _unjudged(state, seen, limits):
        return _begun(state, seen, stopped_at_s=stopped_at_s)
    if seen.progress > state.newest.progress:
        return _begun(_learned(state, seen), seen, stopped_at_s=_stopped_since(None, seen))
    return _silent(replace(state, newest=seen, stopped_at_s=stopped_at_s), limits)


def _unjudged(state: WatchState, seen: Observation, limits: Limits) -> bool:
    """Say whether silence at ``seen`` tells nothing of the engine."""
    if Phase.AWAY in {seen.phase, state.newest.phase}:
        return True
    # A call that comes into a silence waits like everybody else: it is not what the engine is silent over.
    return seen.phase is Phase.CALL and (state.phase is Phase.CALL or _may_begin_with(state, seen, limits))


def _may_begin_with(state: WatchState, seen: Observation, limits: Limits) -> bool:
    """Say whether what ``seen`` shows for the first time can be what the engine fell silent over."""
    usual_s = state.paces.get(state.phase, _NONE).usual()
    return seen.at_s - state.since.at_s <= 2 * limits.interval_s + usual_s


def _begun(state: WatchState, seen: Observation, *, stopped_at_s: float | None) -> WatchState:
    """Count silence from ``seen`` on."""
    young = state.turns < WARM_TURNS and seen.phase not in _UNJUDGED
    phase = patient(seen.phase, Phase.LOAD) if young else seen.phase
    return replace(
        state,
        newest=seen,
        since=seen,
        calm=seen,
        phase=phase,
        stopped_at_s=stopped_at_s,
        rest_s=0.0,
        looks=0,
        stirring=0,
    )


def _learned(state: WatchState, seen: Observation) -> WatchState:
    """Take the gap that ``seen`` ends into the pace of its phase."""
    made = seen.progress - state.newest.progress
    state = replace(state, turns=state.turns + made)
    if state.newest.running == 0:
        return state
    gap_s, cost_s = seen.at_s - state.since.at_s, max(0.0, seen.cpu_s - state.since.cpu_s)
    return replace(
        state,
        paces=_with(state.paces, state.phase, gap_s),
        rests=_with(state.rests, state.phase, state.rest_s),
        costs=_with(state.costs, state.phase, cost_s / made),
    )


def _with(paces: Mapping[Phase, GapHistogram], phase: Phase, gap: float) -> Mapping[Phase, GapHistogram]:
    return {**paces, phase: paces.get(phase, _NONE).after(gap)}


def _silent(state: WatchState, limits: Limits) -> WatchState:
    """Follow a silence: which phase it began in, and since when nobody computes."""
    seen, phase = state.newest, state.phase
    if _may_begin_with(state, seen, limits):  # not a request that comes later, however long its prompt is
        phase = patient(phase, seen.phase)
    used_s = seen.cpu_s - state.calm.cpu_s
    if used_s >= _BURST_S and used_s >= IDLE_CPU_RATIO * (seen.at_s - state.calm.at_s):
        return replace(state, phase=phase, calm=seen, looks=0, stirring=0)
    stirs = not _STIRRING.isdisjoint(seen.states)
    return replace(
        state,
        phase=phase,
        rest_s=max(state.rest_s, seen.at_s - state.calm.at_s),
        looks=state.looks + 1,
        stirring=state.stirring + stirs,
    )


def _stopped_since(before_s: float | None, seen: Observation) -> float | None:
    """Say since when any process is stopped: one is enough to stop the engine, all wait for each other."""
    if seen.running == 0 or seen.phase in {Phase.IDLE, Phase.AWAY} or _STOPPED.isdisjoint(seen.states):
        return None
    return seen.at_s if before_s is None else before_s


def _verdict(state: WatchState, limits: Limits) -> WatchdogVerdict | None:
    now, since = state.newest, state.since
    silent_s = now.at_s - since.at_s
    cpu_ratio = max(0.0, now.cpu_s - since.cpu_s) / silent_s if silent_s > 0 else 0.0
    hang = _hang(state, silent_s, cpu_ratio, limits)
    if hang is None:
        return None
    return WatchdogVerdict(
        hang=hang,
        silent_s=silent_s,
        requests=now.running,
        cpu_ratio=cpu_ratio,
        states=now.states,
        phase=state.phase,
        usual_s=state.paces.get(state.phase, _NONE).usual(),
    )


def _hang(state: WatchState, silent_s: float, cpu_ratio: float, limits: Limits) -> Hang | None:
    # Counted from the stop, not from the last token: a profiler that stops a process for a moment in the
    # middle of a long prefill would be a hang otherwise.
    if state.stopped_at_s is not None and state.newest.at_s - state.stopped_at_s >= limits.stopped_s:
        return Hang.STOPPED
    idle_s = max(limits.idle_s, PACE_FACTOR * state.rests.get(state.phase, _NONE).usual())
    calm_s = state.newest.at_s - state.calm.at_s
    if silent_s >= idle_s and calm_s >= CALM_SHARE * idle_s and 2 * state.stirring <= state.looks:
        return Hang.IDLE
    if _spins(state, silent_s, cpu_ratio, limits):
        return Hang.BUSY
    # A pace slow enough stretches this limit too: who computes is never given less time than who does not.
    if silent_s < max(limits.busy_s, idle_s, 2 * state.paces.get(state.phase, _NONE).usual()):
        return None
    return Hang.IDLE if cpu_ratio < IDLE_CPU_RATIO else Hang.BUSY


def _spins(state: WatchState, silent_s: float, cpu_ratio: float, limits: Limits) -> bool:
    """Say whether an engine that only has tokens to make computes without making any.

    In CPU time too, which a machine that is starved or slow does not stretch.
    """
    pace, cost = state.paces.get(Phase.DECODE, _NONE), state.costs.get(Phase.DECODE, _NONE)
    if state.phase is not Phase.DECODE or pace.seen < LEARNED or cpu_ratio < SPIN_CPU_RATIO:
        return False
    limit_s = max(limits.idle_s, PACE_FACTOR * pace.usual())
    if limits.whole_prompts:
        limit_s = max(limit_s, 2 * state.paces.get(Phase.PREFILL, _NONE).usual(1.0))
    return silent_s >= min(limit_s, limits.busy_s) and cpu_ratio * silent_s >= CPU_FACTOR * cost.usual()


class Watchdog:
    """Remembers the state between calls; all decisions are ``judge``'s. One per engine epoch."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state: WatchState | None = None

    def see(self, seen: Observation) -> WatchdogVerdict | None:
        """Take in one observation; return the verdict while the engine is hung, else None."""
        self.state, verdict = judge(self.state, seen, self.limits)
        return verdict

    def excuse(self) -> None:
        """Give the present silence the time of a compile."""
        if self.state is not None:
            self.state = excused(self.state)

    def start_again(self) -> None:
        """Forget the present silence, not what was learned: its verdict was told."""
        if self.state is not None:
            self.state = _begun(self.state, self.state.newest, stopped_at_s=None)
