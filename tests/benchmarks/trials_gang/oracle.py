"""What is right, and what came of a trial. Pure: what was seen in, a verdict and figures out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from tests.benchmarks.trials_gang.plan import RANKS, STEPS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.benchmarks.trials_gang.plan import Trial

_NAMED = re.compile(r"(?:each of )?ranks? (\d+(?:, \d+)*)(?![:\d])")
_LOST = re.compile(r"rank (\d+): (?:dead|stuck|poisoned)\b")


@dataclass(frozen=True, slots=True)
class Curve:
    """A training as it is without faults: each rank's loss bits by step, and what each has in the end."""

    losses: tuple[tuple[tuple[str, str], ...], ...]
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What an incident says."""

    cause: str
    consequences: tuple[str, ...] = ()


@dataclass(slots=True)
class Observed:
    """What was seen of a trial. Times are of the monotonic clock; ``ran`` has the steps begun, by rank."""

    curve: Curve
    fired: Mapping[str, float]
    ran: Mapping[str, Sequence[str]] = field(default_factory=dict)
    outs: Mapping[str, float] = field(default_factory=dict)  # when an error took a rank out of its step
    cuts: Sequence[float] = ()  # when the gang had its ranks taken out
    told: Sequence[Told] = ()
    recoveries: int = 1
    causes: Sequence[str] = ()  # of the gang's status, of this trial
    answered_at: float = 0.0  # when the call that recovered had its answer
    normal_s: float = 0.0
    raised: str = ""  # the name of the error that the caller got


@dataclass(slots=True)
class Outcome:
    """A trial, judged. ``None``: not to be measured by this trial."""

    trial: Trial
    problems: list[str] = field(default_factory=list)
    identical: bool = True
    steps_lost: int = 0
    guilty: bool | None = None
    detect_s: float | None = None
    abort_s: float | None = None
    resume_s: float | None = None
    in_vain: int = 0  # recoveries that no fault called for
    whole_s: float | None = None  # what a whole-job restart took, shortly before
    said: str = ""


def judge(trial: Trial, seen: Observed, right: Curve) -> Outcome:
    """Return what came of a trial."""
    outcome = Outcome(trial)
    outcome.said = " | ".join(seen.causes)
    _judge_firing(trial, seen, outcome)
    _judge_curve(seen, right, outcome)
    ran = {rank: Counter(steps) for rank, steps in seen.ran.items()}
    outcome.steps_lost = max((sum(steps.values()) - len(steps) for steps in ran.values()), default=0)
    if outcome.steps_lost > 1:
        outcome.problems.append(f"{outcome.steps_lost} steps were made again")
    outcome.in_vain = seen.recoveries - 1
    if outcome.in_vain:
        outcome.problems.append(f"{seen.recoveries} recoveries for one fault: {outcome.said}")
    if outcome.problems and not seen.fired:
        return outcome
    outcome.guilty = guilty_right(trial, seen)
    if not outcome.guilty:
        outcome.problems.append(f"not who was struck, {trial.ranks}: {outcome.said or 'nothing was said'}")
    _measure(trial, seen, outcome)
    return outcome


def _judge_firing(trial: Trial, seen: Observed, outcome: Outcome) -> None:
    wanted = {str(rank) for rank in trial.ranks[: 2 if trial.kind is Kind.KILL_TWO else 1]}
    wanted |= {"in-recovery"} if trial.kind is Kind.KILL_IN_RECOVERY else set()
    if wanted != set(seen.fired):
        outcome.problems.append(f"misfired: {sorted(seen.fired)} for {sorted(wanted)}")
    expected = "StrikeError" if trial.kind is Kind.RAISE else ""
    if seen.raised != expected:
        outcome.problems.append(f"the caller got {seen.raised or 'no error'}, for {expected or 'none'}")


def _judge_curve(seen: Observed, right: Curve, outcome: Outcome) -> None:
    for step, (mine, theirs) in enumerate(zip(seen.curve.losses, right.losses, strict=False)):
        if mine != theirs:
            outcome.problems.append(f"the losses of step {step} differ: {mine} for {theirs}")
            break
    if len(seen.curve.losses) != STEPS or seen.curve.digests != right.digests:
        outcome.problems.append("the weights differ in the end")
    outcome.identical = seen.curve == right


def guilty_right(trial: Trial, seen: Observed) -> bool:
    """Say whether the ranks that were struck are named, and no other."""
    if trial.kind is Kind.KILL_IN_RECOVERY:
        return [ranks_named(cause) for cause in _changes(seen.causes)][:2] in (
            [{trial.ranks[0]}, {trial.ranks[1]}],
            [{trial.ranks[0]}] if trial.ranks[0] == trial.ranks[1] else None,
        )
    if not seen.told:
        return False
    first = seen.told[0]
    if trial.kind is Kind.KILL_TWO:  # an incident's cause is one of them; the other may be found as they join
        named = ranks_lost(first.consequences).union(*map(ranks_named, seen.causes))
        return ranks_named(first.cause) <= set(trial.ranks) == named
    return ranks_named(first.cause) == set(trial.ranks)


def _changes(causes: Sequence[str]) -> list[str]:
    """Return causes without what is said twice in a row."""
    return [cause for at, cause in enumerate(causes) if at == 0 or causes[at - 1] != cause]


def ranks_named(cause: str) -> set[int]:
    """Return the ranks that a cause is of, as gangs write them: "rank 1 died; rank 2 died", "each of ranks 0, 2"."""
    found = filter(None, map(_NAMED.match, cause.split("; ")))
    return {int(one) for each in found for one in each[1].split(", ")}


def ranks_lost(consequences: Iterable[str]) -> set[int]:
    """Return the ranks whose processes an incident says are gone."""
    return {int(found[1]) for one in consequences if (found := _LOST.match(one))}


def _measure(trial: Trial, seen: Observed, outcome: Outcome) -> None:
    """Take the times. Of a hang, the gang resumes from when it was found: that has a figure of its own."""
    fired = min(time for name, time in seen.fired.items() if name != "in-recovery")
    cut = next((one for one in seen.cuts if one >= fired), None)
    if cut is None:
        outcome.problems.append("nobody was taken out")
        return
    outs = [out - cut for rank, out in seen.outs.items() if int(rank) not in trial.ranks[:2] and out > cut]
    outcome.abort_s = max(outs, default=None)
    if trial.kind.hangs:
        outcome.detect_s = cut - fired
    if trial.kind is not Kind.RAISE:
        outcome.resume_s = seen.answered_at - (cut if trial.kind.hangs else fired) - seen.normal_s


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that is not below ``share`` of all; None for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def steady_growth(values: Sequence[int]) -> int:
    """Return how much a series grew, by the half in which it grew less: one jump is no leak."""
    first, middle, last = values[0], values[len(values) // 2], values[-1]
    return 2 * min(middle - first, last - middle)


def ratios(outcomes: Sequence[Outcome], *, spare: bool) -> dict[str, float | int]:
    """Return resumes over the whole-job restart that came before each, where a process was replaced."""
    found = [
        one.resume_s / one.whole_s
        for one in outcomes
        if one.whole_s
        and one.resume_s is not None
        and one.trial.kind.replaces
        and bool(one.trial.place.spares) == spare
    ]
    if not found:
        return {"n": 0}
    return {"median": round(median(found), 3), "max": round(max(found), 3), "n": len(found)}


def summary(outcomes: Sequence[Outcome], whole_s: Sequence[float]) -> dict[str, object]:
    """Return the figures of the last line. A trial whose curve was not compared is not identical."""
    guilty = [one.guilty for one in outcomes if one.guilty is not None]
    aborts = [one.abort_s for one in outcomes if one.abort_s is not None]
    detected = [one.detect_s for one in outcomes if one.detect_s is not None]
    return {
        "trials": len(outcomes),
        "curve_identical": sum(one.identical for one in outcomes),
        "steps_lost_max": max((one.steps_lost for one in outcomes), default=0),
        "resume_ratio": {
            "spare": ratios(outcomes, spare=True),
            "no_spare": ratios(outcomes, spare=False),
        },
        "abort_s_p99": rounded(percentile(aborts, 0.99)),
        "guilty_right": sum(guilty),
        "guilty_n": len(guilty),
        "hang_detect_p95_s": rounded(percentile(detected, 0.95)),
        "whole_job_s": [round(one, 1) for one in whole_s],
        "with_problems": sum(bool(one.problems) for one in outcomes),
        "ranks": RANKS,
    }


def rounded(seconds: float | None) -> float | None:
    """Return it as it is told."""
    return None if seconds is None else round(seconds, 3)


def missed(told: Mapping[str, object]) -> list[str]:
    """Return the bars of correctness that a run misses; those of time are told, and depend on the machine."""
    bars = {
        "curve_identical": told["curve_identical"] != told["trials"],
        "steps_lost_max": bool(told["steps_lost_max"] not in (0, 1)),
        "guilty_right": told["guilty_right"] != told["guilty_n"],
        "with_problems": bool(told["with_problems"]),
        "false_alarms": bool(told.get("false_alarms")),
        "leaked": bool(told.get("leaked")),
        "broken": bool(told.get("broken")),
    }
    return [name for name, is_missed in bars.items() if is_missed]
