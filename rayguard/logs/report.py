"""What a text says of a failure: the earliest cause, where it stands, what followed, what else is wrong.

Pure: lines in, a ``Report`` out. Reading files is ``rayguard.logs.files``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayguard.faults.diagnose import first, unknown, verdict
from rayguard.faults.printed.heads import Heads
from rayguard.faults.signature import Tier
from rayguard.faults.users import catalog_in_use
from rayguard.faults.witness import Said
from rayguard.logs.text import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayguard.faults.catalog import Catalog
    from rayguard.faults.diagnosis import Diagnosis, Kind
    from rayguard.faults.printed.line import Line
    from rayguard.faults.signature import Match
    from rayguard.faults.witness import Witness

MAX_QUOTES = 6
RIVAL_CONFIDENCE = 0.85  # of a cause beside which another kind of cause stands
MILD_CONFIDENCE = 0.85  # of a cause that was printed as a warning only


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One line that says something, quoted, and where it stands."""

    quote: str
    line: int
    file: str = ""
    kind: Kind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdict on a text. ``consequences`` in the order of the text, ``others``: causes of other kinds."""

    diagnosis: Diagnosis
    evidence: tuple[Evidence, ...]
    consequences: tuple[Evidence, ...] = ()
    others: tuple[Evidence, ...] = ()


def diagnose_text(text: str, catalog: Catalog | None = None) -> Report:
    """Return what ``text`` says: lines of one or many processes, as they were printed or pasted."""
    heads = Heads()
    return diagnose_lines(
        (heads.peel(raw, number) for number, raw in enumerate(text.split("\n"), start=1)), catalog
    )


def diagnose_lines(lines: Iterable[Line], catalog: Catalog | None = None) -> Report:
    """Return what ``lines`` say."""
    catalog = catalog_in_use() if catalog is None else catalog
    return report(tuple(Reader(catalog).read(lines)), catalog)


def report(seen: tuple[Witness, ...], catalog: Catalog) -> Report:
    """Return the verdict on the facts of one text."""
    said = Said(seen)
    found = (catalog.index.best(witness, said) for witness in seen)
    matches = sorted((match for match in found if match is not None), key=lambda match: match.witness.line)
    best = first(matches, key=lambda match: (match.witness.later, match.witness.line))
    if best is None:
        return _unknown(seen)
    diagnosis = verdict(best)
    rivals = [match for match in matches if _is_rival(match, best)]
    if rivals:
        diagnosis = replace(diagnosis, confidence=min(diagnosis.confidence, RIVAL_CONFIDENCE))
    if best.witness.mild:
        diagnosis = replace(diagnosis, confidence=min(diagnosis.confidence, MILD_CONFIDENCE))
    return Report(
        diagnosis=diagnosis,
        evidence=(_evidence(best),),
        consequences=_distinct(
            match
            for match in matches
            if (match.witness.later or match.witness.line > best.witness.line)
            and match is not best
            and not _is_rival(match, best)
        ),
        others=_distinct(rivals),
    )


def _is_rival(match: Match, best: Match) -> bool:
    return match.tier is Tier.CAUSE and match.signature.kind is not best.signature.kind


def _distinct(matches: Iterable[Match]) -> tuple[Evidence, ...]:
    """Return one quote for each signature."""
    by_signature: dict[str, Match] = {}
    for match in matches:
        by_signature.setdefault(match.signature.id, match)
    return tuple(_evidence(match) for match in by_signature.values())[:MAX_QUOTES]


def _evidence(match: Match) -> Evidence:
    witness = match.witness
    return Evidence(quote=witness.quote, line=witness.line, kind=match.signature.kind)


def _unknown(seen: tuple[Witness, ...]) -> Report:
    telling = sorted(seen, key=lambda witness: (witness.mild, not witness.frames, witness.line))[:MAX_QUOTES]
    quotes = tuple(Evidence(quote=witness.quote, line=witness.line) for witness in telling)
    return Report(diagnosis=unknown(tuple(telling)), evidence=quotes)
