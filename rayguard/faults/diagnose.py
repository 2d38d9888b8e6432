"""From the facts of a fault to its verdict: pure, bounded, and it never raises.

Which facts there are and how near they are to the root cause is ``rayguard.faults.witness``; the known
failures are ``rayguard.faults.catalog``; what to do about a verdict is ``rayguard.recovery``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.faults.catalog import Catalog, default_catalog
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.faults.witness import Source, Witness, witnesses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.faults.fault import Fault
    from rayguard.faults.signature import Match, Signature

UNKNOWN = "unknown"
MAX_CONSEQUENCES = 8

_CAUSAL = (Source.RECORD, Source.EXIT, Source.SILENCE, Source.CHAIN, Source.LOG)


def diagnose(fault: Fault, catalog: Catalog | None = None) -> Diagnosis:
    """Return what ``fault`` is, in the words of ``catalog`` (by default the one that ships with rayguard).

    The witness nearest to the root cause decides, if any signature speaks for it; generic signatures ("the
    engine is dead") are asked only when no other one fits any witness.
    """
    seen = witnesses(fault)
    match = _best(seen, default_catalog() if catalog is None else catalog)
    if match is None:
        return _unknown(seen)
    signature = match.signature
    return Diagnosis(
        signature=signature.id,
        kind=signature.kind,
        scope=signature.scope,
        cause=f"{signature.cause}: {match.witness.quote}",
        confidence=signature.confidence,
        evidence=match.evidence,
        cures=signature.cures,
        retry_same_settings=signature.retry_same_settings,
        deterministic=signature.deterministic,
        settings_help=signature.settings_help,
        poisoned=signature.poisoned,
        advice=signature.advice,
        links=signature.links,
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


def _best(seen: tuple[Witness, ...], catalog: Catalog) -> Match | None:
    names = frozenset(name for witness in seen for name in witness.names)
    texts = "\n".join(witness.text for witness in seen if witness.text)
    likely = [s for s in catalog.signatures if s.possible(names, texts)]
    specific = _first(seen, [s for s in likely if not s.generic])
    # A process that ended, or stopped, says more about its end than the caller's "it is dead".
    return specific or _first(_in_order(seen, _CAUSAL), [s for s in likely if s.generic])


def _first(seen: Sequence[Witness], signatures: Sequence[Signature]) -> Match | None:
    matches = (signature.match(witness) for witness in seen for signature in signatures)
    return next((match for match in matches if match is not None), None)


def _in_order(seen: tuple[Witness, ...], order: tuple[Source, ...]) -> list[Witness]:
    return [witness for source in order for witness in seen if witness.source is source]


def _unknown(seen: tuple[Witness, ...]) -> Diagnosis:
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
