"""Whether an engine that has work is hung: observations in, verdict out.

Pure: who observes, how often, and what is done about a hang is elsewhere (``rayguard.engine``). A process
that died is no business of this file; ``deaths.py`` says so sooner.

A hang is silence, but not all silence is a hang: a long prefill computes, a cold start compiles, and an
observer that was itself paused saw nothing because it did not look.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

IDLE_CPU_RATIO = 0.05  # of one core, on average: less is idle
PACE_FACTOR = 10  # an idle silence this many times longer than any survived one is no pace of this engine
PAUSE_FACTOR = 5  # a gap this many times the expected one means that the observer was paused


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen at ``at_s`` (monotonic clock) of one engine, summed over its processes.

    ``progress`` only grows (tokens, steps); ``running`` counts requests that wait for an answer;
    ``states`` are the kernel's letters of its processes.
    """

    at_s: float
    progress: int
    running: int
    cpu_s: float
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Silence that is a hang when a process is stopped / none computes / they compute.

    ``interval_s`` is how often observations are meant to come.
    """

    stopped_s: float = 2.0
    idle_s: float = 8.0
    busy_s: float = 300.0
    interval_s: float = 0.5


class Hang(str, Enum):
    """What the silent processes were doing."""

    STOPPED = "stopped"
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The engine is hung, and the evidence. ``cpu_ratio`` is cores in use, on average over the silence."""

    hang: Hang
    silent_s: float
    requests: int
    cpu_ratio: float
    states: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.hang.value}: no progress for {self.silent_s:.1f} s with {self.requests} requests "
            f"running, {self.cpu_ratio:.2f} cores in use, process states {' '.join(self.states) or 'unknown'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """What must be remembered between observations.

    Invariant: ``since.at_s <= newest.at_s``, and ``since.at_s <= stopped_at_s`` where it is set.
    """

    newest: Observation
    since: Observation  # the silence is counted from here
    stopped_at_s: float | None = None  # a process has been stopped in each observation from then on
    longest_gap_s: float = 0.0  # between two progresses, with work to do: the learned pace


def judge(state: WatchState | None, seen: Observation, limits: Limits) -> tuple[WatchState, Verdict | None]:
    """Return the state after ``seen``, and a verdict when the engine is hung. Start with None."""
    after = _after(state, seen, limits)
    return after, _verdict(after, limits)


def _after(state: WatchState | None, seen: Observation, limits: Limits) -> WatchState:
    if state is None:
        return _fresh(seen, 0.0)
    gap_s = seen.at_s - state.newest.at_s
    if not 0 <= gap_s <= PAUSE_FACTOR * limits.interval_s:
        # We were stopped, or in a debugger, or the machine slept: all that we know is that it is now.
        return _fresh(seen, state.longest_gap_s)
    if seen.running == 0:
        return _fresh(seen, state.longest_gap_s)
    if seen.progress > state.newest.progress:
        had_work = state.newest.running > 0
        pace_s = seen.at_s - state.since.at_s if had_work else 0.0
        return _fresh(seen, max(state.longest_gap_s, pace_s))
    stopped_at_s = (
        (seen.at_s if state.stopped_at_s is None else state.stopped_at_s) if _stopped(seen) else None
    )
    return replace(state, newest=seen, stopped_at_s=stopped_at_s)


def _fresh(seen: Observation, longest_gap_s: float) -> WatchState:
    stopped_at_s = seen.at_s if _stopped(seen) else None
    return WatchState(newest=seen, since=seen, stopped_at_s=stopped_at_s, longest_gap_s=longest_gap_s)


def _stopped(seen: Observation) -> bool:
    """Say whether any process is stopped: one is enough to stop the engine, all wait for each other."""
    return any(state in {"T", "t"} for state in seen.states)


def _verdict(state: WatchState, limits: Limits) -> Verdict | None:
    now, since = state.newest, state.since
    silent_s = now.at_s - since.at_s
    cpu_ratio = max(0.0, now.cpu_s - since.cpu_s) / silent_s if silent_s > 0 else 0.0
    hang = _hang(state, silent_s, cpu_ratio, limits)
    if hang is None:
        return None
    return Verdict(hang=hang, silent_s=silent_s, requests=now.running, cpu_ratio=cpu_ratio, states=now.states)


def _hang(state: WatchState, silent_s: float, cpu_ratio: float, limits: Limits) -> Hang | None:
    # Counted from the stop, not from the last token: a profiler that stops a process for a moment in the
    # middle of a long prefill would be a hang otherwise.
    if state.stopped_at_s is not None and state.newest.at_s - state.stopped_at_s >= limits.stopped_s:
        return Hang.STOPPED
    idle_s = max(limits.idle_s, PACE_FACTOR * state.longest_gap_s)
    if cpu_ratio < IDLE_CPU_RATIO:
        return Hang.IDLE if silent_s >= idle_s else None
    # A pace slow enough to stretch the idle limit past the busy one stretches that too: who computes is
    # never given less time than who does not.
    return Hang.BUSY if silent_s >= max(limits.busy_s, idle_s) else None


class Watchdog:
    """Remembers the state between calls; all decisions are ``judge``'s. One per engine epoch."""

    def __init__(self, stopped_s: float, idle_s: float, busy_s: float, interval_s: float = 0.5) -> None:
        self.limits = Limits(stopped_s=stopped_s, idle_s=idle_s, busy_s=busy_s, interval_s=interval_s)
        self.state: WatchState | None = None

    def see(self, seen: Observation) -> Verdict | None:
        """Take in one observation; return the verdict while the engine is hung, else None."""
        self.state, verdict = judge(self.state, seen, self.limits)
        return verdict
