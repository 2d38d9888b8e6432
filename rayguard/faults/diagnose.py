"""From the facts of a fault to its verdict: pure, bounded, and it never raises.

Which facts there are and how near they are to the root cause is ``rayguard.faults.witness``; the known
failures are ``rayguard.faults.catalog``; what to do about a verdict is ``rayguard.recovery``.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from rayguard.faults.catalog_in_use import catalog_in_use
from rayguard.faults.counsel import counsels
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.faults.scene import scene_of
from rayguard.faults.signature import Match, Signature, Tier
from rayguard.faults.witness import Said, Source, Witness, witnesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.faults.catalog import Catalog
    from rayguard.faults.fault import Fault

UNKNOWN = "unknown"
MAX_CONSEQUENCES = 8
_AS_SIGNED = ({one.name for one in fields(Diagnosis)} & Signature.model_fields.keys()) - {"cause"}

_CAUSAL = (Source.RECORD, Source.EXIT, Source.SILENCE, Source.CHAIN, Source.LOG)
# The nearest first; among effects the ends of processes come before what callers saw of them.
_NEARNESS = {
    Tier.CAUSE: (Source.RECORD, Source.CHAIN, Source.LOG, Source.EXIT, Source.SILENCE),
    Tier.EFFECT: _CAUSAL,
    Tier.END: _CAUSAL,
}


def diagnose(fault: Fault, catalog: Catalog | None = None) -> Diagnosis:
    """Return what ``fault`` is, in the words of ``catalog`` (by default ours with the user's additions).

    The witness nearest to the root cause decides, if any signature names it a cause; effects ("the engine is
    dead") are asked only where no cause is known, and then a process that ended, or stopped, says more
    about its end than the caller's error.
    """
    seen = witnesses(fault)
    said = Said(seen)
    catalog = catalog_in_use() if catalog is None else catalog
    matches = [
        match for match in (catalog.index.best(witness, said) for witness in seen) if match is not None
    ]
    match = first(matches, key=lambda match: (_NEARNESS[match.tier].index(match.witness.source),))
    if match is None:
        return unknown(seen)
    told = verdict(match)
    if told.signature not in catalog.ours:  # a user's signature has its own advice
        return told
    rules = counsels()
    return rules.on(told, match.witness, scene_of(seen, rules.fragments))


def first(matches: Iterable[Match], key: Callable[[Match], tuple[int, ...]]) -> Match | None:
    """Return the match of the lowest tier, of these the one with the lowest ``key``, the first of equals."""
    return min(matches, key=lambda match: (match.tier, key(match)), default=None)


def verdict(match: Match) -> Diagnosis:
    """Return what ``match`` says, as a diagnosis."""
    signature = match.signature
    return Diagnosis(
        signature=signature.id,
        cause=f"{signature.cause}: {match.witness.quote}",
        evidence=match.evidence,
        **{name: getattr(signature, name) for name in _AS_SIGNED},
    )


def consequences(fault: Fault, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return what followed from the cause, in causal order.

    First what the engine's processes wrote later, then which of them ended, then what the caller saw, from
    the inside out. The fact that decided is left out, also where a wrapper repeats it.
    """
    seen = _in_order(witnesses(fault), _CAUSAL[:-1])  # log lines are circumstances, not consequences
    told = {text for w in seen if w.evidence in diagnosis.evidence for text in (w.evidence, w.quote)}
    followed: list[str] = []
    for witness in seen:
        if not told.isdisjoint((witness.evidence, witness.quote)):
            continue
        told.update((witness.evidence, witness.quote))
        followed.append(witness.evidence)
    if len(followed) > MAX_CONSEQUENCES:  # what the caller saw comes last and must stay
        followed = [*followed[: MAX_CONSEQUENCES - 2], *followed[-2:]]
    return tuple(followed)


def _in_order(seen: tuple[Witness, ...], order: tuple[Source, ...]) -> list[Witness]:
    return [witness for source in order for witness in seen if witness.source is source]


def unknown(seen: tuple[Witness, ...]) -> Diagnosis:
    """Return the verdict on facts that no signature knows."""
    said = seen[0].quote if seen else "no exception, no exit, no silence and no log line was seen"
    return Diagnosis(
        signature=UNKNOWN,
        kind=Kind.UNKNOWN,
        scope=Scope.UNKNOWN,
        cause=f"a failure that the catalog does not know: {said}",
        confidence=0.0,
        evidence=tuple(witness.evidence for witness in seen[:1]),
        advice=(
            "read the evidence; when you know the cause, add a signature to a catalog file of your own, "
            "so that it is treated by its kind next time"
        ),
    )
