"""What a trial shows: answers against the oracle, tokens against the witness, times against the clock.

Pure: what was asked, noted and witnessed in; verdicts and figures out.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.benchmarks.trials.oracle import Answer
from tests.benchmarks.trials.plan import Fault, Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.benchmarks.trials.observer import Notes
    from tests.benchmarks.trials.oracle import Oracle, Question
    from tests.benchmarks.trials.witness import SeenRequest

# What must be empty in each trial: of answers, of whom a fault is not, of what stays, of the fault itself.
LISTED = (
    *("lost", "doubled", "stale", "mixed", "not_identical", "innocents_blamed"),
    *("settings_left_on", "shm_left", "left_over", "two_on_a_device", "never_noticed", "amiss"),
)
ZERO = (*LISTED, "misfired")
TAIL = 9  # vLLM's own end of a request's id: "-" and eight characters


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of one trial."""

    trial: Trial
    fired: bool = False
    running: int = 0  # requests on the target when it was struck
    requests: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)  # made by several weights, though no lag is allowed
    not_identical: list[str] = field(default_factory=list)
    innocents_blamed: list[str] = field(default_factory=list)  # requests of the batch that got an error
    settings_left_on: list[str] = field(default_factory=list)  # safe ones, after their probation
    shm_left: list[str] = field(default_factory=list)  # of dead engines, and nobody's any more
    never_noticed: list[str] = field(default_factory=list)  # no incident, no answer in time
    amiss: list[str] = field(default_factory=list)  # for the fault's own caller, or an engine touched in vain
    differing_other: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    tokens_lost: list[int] = field(default_factory=list)  # of each interrupted request
    unseen: int = 0  # tokens of one request that a core made after its actor was hit
    cuts_misstated: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)  # processes that should have been ended
    two_on_a_device: list[str] = field(default_factory=list)
    adopted: int = 0  # engines that the next life of their actor, or of their pool's owner, goes on with
    detect_s: float | None = None
    recover_s: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Say what is wrong; empty for a good trial."""
        found = [f"{name}: {what}" for name in LISTED for what in getattr(self, name)]
        return found if self.fired else ["the fault never fired while requests ran", *found]


def judge(
    outcome: Outcome,
    asked: Mapping[str, Question],
    got: Sequence[Any],
    oracle: Oracle,
    notes: Notes,
    newest: int,
) -> None:
    """Judge the answers ``got`` (a pool's generations, as they were handed out) to ``asked`` by id.

    ``newest`` is the number of the weights that the source had in the end.
    """
    times = Counter(generation.id for generation in got)
    outcome.doubled += [f"{name}: {count} times" for name, count in times.items() if count > 1]
    delivered = Counter(name for _, name in notes.delivered)
    outcome.doubled += [f"{name}: {count} times inside" for name, count in delivered.items() if count > 1]
    outcome.lost += [f"{name}: no answer" for name in asked if name not in times]
    outcome.requests += sum(question.n for question in asked.values())
    due = {one.id: one.version for one in notes.sent}  # the last time that it was sent
    for generation in got:
        question = asked[generation.id]
        if generation.error is not None or len(generation.samples) != question.n:
            told = f"{type(generation.error).__name__}: {generation.error}" if generation.error else ""
            outcome.lost.append(f"{generation.id}: {len(generation.samples)} of {question.n} samples {told}")
        if generation.error is not None:  # the fault was none of this request's
            outcome.innocents_blamed.append(f"{generation.id}: {type(generation.error).__name__}")
        for sample in generation.samples:
            _sample(outcome, question, sample, oracle, number_of(due.get(sample.id, "")), newest)


def _sample(outcome: Outcome, question: Question, sample: Any, oracle: Oracle, due: int, newest: int) -> None:
    versions = [version for version, _ in sample.weight_versions]
    known = all(weights_of(version) in oracle.weights for version in versions)
    if not versions or not known or not all(due <= number_of(version) <= newest for version in versions):
        outcome.stale.append(f"{sample.id}: made by {versions}, sent when {due} was current")
        return
    outcome.restarted += [f"{sample.id} ({question.kind}): {why}" for why in sample.restarted]
    if len(versions) > 1:
        outcome.mixed.append(f"{sample.id}: {sample.weight_versions}")
        return
    told = Answer.of(sample).differs(oracle.expects(weights_of(versions[0]), question, sample.index))
    if told:
        why = f", begun afresh: {'; '.join(sample.restarted)}" if sample.restarted else ""
        differing = outcome.not_identical if question.exact else outcome.differing_other
        differing.append(
            f"{sample.id} ({question.name}, {versions[0]}, cut at {list(sample.cuts)}{why}) has other {told}"
        )


def number_of(version: str) -> int:
    """Return the number of a version ``<number>-<weights>``, -1 where it is none."""
    number = version.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def weights_of(version: str) -> str:
    """Return the weights of a version ``<number>-<weights>``."""
    return version.partition("-")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One interruption of a request: what its first core had made of it, what its next one began with."""

    id: str
    made: int
    kept: int

    @property
    def lost(self) -> int:
        """Tokens that had to be made again."""
        return max(0, self.made - self.kept)


def cuts_of(seen: Iterable[SeenRequest], prompts: Mapping[str, int]) -> list[Cut]:
    """Return where requests (by id, with the length of their prompts) went from core to core."""
    by_id: dict[str, list[SeenRequest]] = defaultdict(list)
    for one in sorted(seen, key=lambda one: one.at_ns):
        name = one.id[:-TAIL]
        if name in prompts:
            by_id[name].append(one)
    return [
        Cut(id=name, made=before.now - prompts[name], kept=after.start - prompts[name])
        for name, lives in by_id.items()
        for before, after in itertools.pairwise(lives)
    ]


def as_of_fault(
    seen: Iterable[SeenRequest], at_fault: Iterable[SeenRequest]
) -> tuple[list[SeenRequest], int]:
    """Return what was seen, those ``at_fault`` as they were then, and the most that one of them grew since.

    A core goes on for a while when its actor is dead or frozen: what it makes then cannot reach anybody.
    """
    then = {(one.id, one.at_ns): one for one in at_fault}
    found = [(one, then.get((one.id, one.at_ns), one)) for one in seen]
    return [before for _, before in found], max((one.now - before.now for one, before in found), default=0)


def judge_tokens(outcome: Outcome, cuts: Sequence[Cut], samples: Mapping[str, Any]) -> None:
    """Note what each interruption cost, and samples that do not tell where they were cut."""
    outcome.tokens_lost += [cut.lost for cut in cuts if cut.made]
    for name, sample in samples.items():
        kept = {cut.kept for cut in cuts if cut.id == name and cut.kept > 0}
        if not sample.restarted and kept - set(sample.cuts):
            outcome.cuts_misstated.append(f"{name}: cut at {sorted(kept)}, says {list(sample.cuts)}")


def next_token_s(
    at: float, cuts: Sequence[Cut], news: Sequence[tuple[float, str, int]], unanswered: set[str]
) -> float | None:
    """Return the seconds from a fault at ``at`` until a new token of any interrupted request is known."""
    kept = {cut.id: cut.kept for cut in reversed(cuts) if cut.id in unanswered}
    times = [when for when, name, tokens in news if when > at and name in kept and tokens > kept[name]]
    return min(times) - at if times else None


def percentile(values: Sequence[float], part: float) -> float | None:
    """Return the value that ``part`` of all do not exceed (the nearest one that occurs)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None


def median(values: Sequence[float]) -> float | None:
    """Return the median, None of nothing."""
    return statistics.median(values) if values else None


def summary(outcomes: Sequence[Outcome], cold_s: Sequence[float]) -> dict[str, Any]:
    """Return the figures of a whole run."""
    total = {name: sum(len(getattr(o, name)) for o in outcomes) for name in LISTED}
    lost = [tokens for outcome in outcomes for tokens in outcome.tokens_lost]
    engine_killed = {Fault.KILL_CORE, Fault.KILL_WORKER}
    prefork = [
        o.recover_s
        for o in outcomes
        if o.trial.fault in engine_killed and not o.trial.standby and o.recover_s is not None
    ]
    standby = [
        o.recover_s
        for o in outcomes
        if o.trial.fault in engine_killed and o.trial.standby and o.recover_s is not None
    ]
    ended = [o.detect_s for o in outcomes if o.detect_s is not None and o.trial.fault.ends]
    hung = [o.detect_s for o in outcomes if o.detect_s is not None and o.trial.fault.stops]
    recover_s, cold = median(prefork), median(cold_s)
    return {
        "trials": len(outcomes),
        **total,
        "misfired": sum(not o.fired for o in outcomes),
        "differing_other": sum(len(o.differing_other) for o in outcomes),
        "restarted": sum(len(o.restarted) for o in outcomes),
        "adopted": {
            fault.value: adopted
            for fault in Fault
            if (adopted := sum(o.adopted for o in outcomes if o.trial.fault is fault))
        },
        "owner_recover_s": [
            _rounded(o.recover_s) for o in outcomes if o.trial.fault is Fault.KILL_OWNER and o.recover_s
        ],
        "cuts_misstated": sum(len(o.cuts_misstated) for o in outcomes),
        "requests": sum(o.requests for o in outcomes),
        "interrupted": len(lost),
        "tokens_lost_max": max(lost, default=0),
        "tokens_after_fault_max": max((o.unseen for o in outcomes), default=0),
        "recover_ratio_prefork": _rounded(recover_s / cold if recover_s and cold else None),
        "recover_s_prefork": _rounded(recover_s),
        "cold_s": [round(seconds, 2) for seconds in cold_s],
        "recover_s_standby": _rounded(median(standby)),
        "detect_p99_s": _rounded(percentile(ended, 0.99)),
        "hang_detect_p95_s": _rounded(percentile(hung, 0.95)),
        "n": {fault.value: n for fault, n in sorted(Counter(o.trial.fault for o in outcomes).items())},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
