"""Which rank keeps the others waiting, and how that is known. Pure: evidence in, a verdict out.

When a collective does not end, every rank stands in it but the one that matters, and no error names that one.
The order below was measured (three ranks on gloo, each fault caused on purpose): what is known for certain
comes first, what only stands out comes last, and where nothing does, nobody is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STALE_S = 1.0  # a beat comes 20 times a second; older, while others are fresh, its thread cannot run
STOPPED = frozenset("Tt")
_WAITS_FOR_DISK = "D"
_DISK_S = 5.0
_MAJORITY_NEEDS = 3  # ranks: of two that differ, either may be the odd one


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """What is known of one rank at one moment; None where nobody could say.

    ``answered``: it has returned from the call. ``state`` is the kernel's letter of its process, ``state_s``
    for how long. ``beat_age_s`` is the age of the last word of a thread beside its main one. ``collectives``
    counts those that it entered, ``operation`` is the last of them, ``where`` the line of the user's code
    that it stands at.
    """

    rank: int
    alive: bool = True
    state: str = ""
    state_s: float = 0.0
    beat_age_s: float | None = None
    answered: bool = False
    in_collective: bool | None = None
    collectives: int | None = None
    operation: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuiltyRanks:
    """The ranks that keep the others waiting; none where nothing tells them apart. ``why`` is for people."""

    ranks: tuple[int, ...] = ()
    why: str = "nothing tells the ranks apart"
    certain: bool = False  # seen by the kernel, not concluded


def guilty_ranks(evidence: Sequence[RankEvidence]) -> GuiltyRanks:
    """Return who keeps the others waiting.

    Raises:
        ConfigError: Two pieces of evidence are of one rank.
    """
    if len({one.rank for one in evidence}) != len(evidence):
        raise ConfigError("two pieces of evidence are of one rank")
    for rule in _RULES:
        verdict = rule(evidence)
        if verdict is not None:
            return verdict
    return GuiltyRanks()


def _dead(evidence: Sequence[RankEvidence]) -> GuiltyRanks | None:
    return _named(evidence, [one for one in evidence if not one.alive], "is dead", certain=True)


def _stopped(evidence: Sequence[RankEvidence]) -> GuiltyRanks | None:
    stopped = [one for one in evidence if one.state in STOPPED and one.state]
    if stopped:
        return _named(evidence, stopped, "is stopped (SIGSTOP, or a debugger)", certain=True)
    on_disk = [one for one in evidence if one.state == _WAITS_FOR_DISK and one.state_s >= _DISK_S]
    return _named(evidence, on_disk, "waits for a disk or a driver that does not answer", certain=True)


def _stale(evidence: Sequence[RankEvidence]) -> GuiltyRanks | None:
    known = [one for one in evidence if one.beat_age_s is not None]
    stale = [one for one in known if one.beat_age_s is not None and one.beat_age_s > STALE_S]
    if len(stale) == len(known):  # the machine stood still, or nobody beats
        return None
    return _named(evidence, stale, "runs native code that lets no other thread of its process run")


def _outside(evidence: Sequence[RankEvidence]) -> GuiltyRanks | None:
    answered = [one for one in evidence if one.answered]
    outside = [one for one in evidence if one.in_collective is False]
    if not any(one.in_collective for one in evidence):
        return _named(evidence, outside, "has not answered, and others have") if answered else None
    if outside:
        return _named(evidence, outside, "is not in the collective that the others wait in")
    return _named(evidence, answered, "has returned from the call, and the others wait in a collective")


def _behind(evidence: Sequence[RankEvidence]) -> GuiltyRanks | None:
    counts = [one.collectives for one in evidence if one.collectives is not None]
    if len(set(counts)) < 2:  # noqa: PLR2004 - all alike, or none known
        return None
    behind = [one for one in evidence if one.collectives == min(counts)]
    return _named(evidence, behind, f"has entered {min(counts)} collectives, others {max(counts)}")


def _odd(evidence: Sequence[RankEvidence]) -> GuiltyRanks | None:
    said = [one for one in evidence if one.operation]
    if len(said) < _MAJORITY_NEEDS or len(said) < len(evidence):
        return None
    (usual, count), *_ = Counter(one.operation for one in said).most_common(1)
    if count * 2 <= len(said):
        return None
    odd = [one for one in said if one.operation != usual]
    return _named(
        evidence, odd, f"is in {' and '.join(sorted({one.operation for one in odd}))}, others in {usual}"
    )


_RULES: tuple[Callable[[Sequence[RankEvidence]], GuiltyRanks | None], ...] = (
    _dead,
    _stopped,
    _stale,
    _outside,
    _behind,
    _odd,
)


def _named(
    evidence: Sequence[RankEvidence], found: Sequence[RankEvidence], what: str, *, certain: bool = False
) -> GuiltyRanks | None:
    if not found:
        return None
    ranks = tuple(sorted(one.rank for one in found))
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"each of ranks {', '.join(map(str, ranks))}"
    where = next((one.where for one in found if one.where), "")
    at = f", at {where}" if where else ""
    return GuiltyRanks(ranks=ranks, why=f"{who} of {len(evidence)} {what}{at}", certain=certain)
