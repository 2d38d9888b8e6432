"""What a text says of a failure: the earliest cause, where it stands, what followed, what else is wrong.

Pure: lines in, a ``Report`` out. Reading files is ``rayguard.logs.files``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayguard.faults.catalog_in_use import catalog_in_use
from rayguard.faults.counsel import NO_FAILURE, counsels
from rayguard.faults.diagnose import first, unknown, verdict
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.faults.kinds import kinds
from rayguard.faults.printed.learnt_prefixes import Heads
from rayguard.faults.quote import cut
from rayguard.faults.signature import Match, Tier
from rayguard.faults.witness import Said, Source, Witness
from rayguard.logs.alarms import is_grave
from rayguard.logs.likeness import likeness
from rayguard.logs.witnesses import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rayguard.faults.catalog import Catalog
    from rayguard.faults.printed.line import PrintedLine
    from rayguard.faults.scene import Scene

MAX_QUOTES = 6
RIVAL_CONFIDENCE = 0.85  # of a cause beside which another kind of cause stands
MILD_CONFIDENCE = 0.85  # of a cause that was printed as a warning only
SURE = 0.9  # from here on nobody is asked for a second opinion
ALIKE_CONFIDENCE = 0.7  # of what is told by the likeness of words
_NOTHING_FAILED = (
    "nothing in this text failed. Where the job is gone all the same, ask who ended it: its exit code, "
    "`dmesg -T`, the scheduler (`sacct`, `kubectl describe pod`), the files of the other processes; where it "
    "stands still, look where: `py-spy dump --pid PID`"
)
LIKENESS = "likeness."  # before the kind, where a signature's id stands else


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One line that says something, quoted, and where it stands."""

    quote: str
    line: int
    file: str = ""
    kind: Kind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdict on a text. ``consequences`` in the order of the text, ``others``: causes of other kinds.

    ``causeless``: only effects are known, the cause may stand elsewhere. ``said``: a line told it, and no
    exception: whoever printed it may have gone on.
    """

    diagnosis: Diagnosis
    evidence: tuple[Evidence, ...]
    consequences: tuple[Evidence, ...] = ()
    others: tuple[Evidence, ...] = ()
    causeless: bool = False
    said: bool = False


def diagnose_text(text: str, catalog: Catalog | None = None) -> Report:
    """Return what ``text`` says: lines of one or many processes, as they were printed or pasted."""
    return diagnose_lines(lines_of(text), catalog)


def lines_of(text: str) -> Iterator[PrintedLine]:
    """Yield the lines of ``text`` without their prefixes."""
    heads = Heads()
    return (heads.peel(raw, number) for number, raw in enumerate(text.split("\n"), start=1))


def diagnose_lines(lines: Iterable[PrintedLine], catalog: Catalog | None = None) -> Report:
    """Return what ``lines`` say."""
    catalog = catalog_in_use() if catalog is None else catalog
    reader = Reader(catalog)
    seen = tuple(reader.read(lines))
    return report(tuple(one for one in seen if not reader.is_outlived(one)), catalog, reader.scene)


def report(seen: tuple[Witness, ...], catalog: Catalog, scene: Scene) -> Report:
    """Return the verdict on the facts of one text, with the advice that fits what stands round them."""
    told = _judged(seen, catalog, scene)
    diagnosis = told.diagnosis
    if catalog.named(diagnosis.signature) is not None and diagnosis.signature not in catalog.ours:
        return told  # a user's signature has its own advice
    stands = {(one.quote, one.line) for one in told.evidence[:1]}
    decided = next((witness for witness in seen if (witness.quote, witness.line) in stands), None)
    return replace(told, diagnosis=counsels().on(diagnosis, decided, scene))


def _judged(seen: tuple[Witness, ...], catalog: Catalog, scene: Scene) -> Report:
    said = Said(seen)
    found = (catalog.index.best(witness, said) for witness in seen)
    told_of = (match for match in found if match is not None and not _is_idle(match))
    matches = sorted(told_of, key=lambda match: match.witness.line)
    told = _told(matches, matches)
    if told is None and not scene.alarm and not any(map(is_grave, seen)):
        return _no_failure(scene)
    told = told or _unknown(seen)
    if told.diagnosis.confidence >= SURE or not _only_ours(matches, catalog):
        return told
    kind = likeness().second_opinion(seen, told.diagnosis.kind, told.diagnosis.confidence)
    if kind is told.diagnosis.kind:
        return told
    alike = _told([match for match in matches if match.signature.kind is kind], matches)
    if alike is None:
        alike = _alike(kind, likeness().speaking_for(seen, kind) or seen, matches, catalog)
    doubted = min(alike.diagnosis.confidence, ALIKE_CONFIDENCE)
    return replace(alike, diagnosis=replace(alike.diagnosis, confidence=doubted))


def _is_idle(match: Match) -> bool:
    """Say whether it is a warning that is known by words which healthy jobs print too."""
    signature = match.signature
    return match.witness.mild and (signature.tier is Tier.GUESS or not signature.if_warned)


def _told(asked: Sequence[Match], matches: Sequence[Match]) -> Report | None:
    """Return what the best of ``asked`` says, among all ``matches``; None where nothing is asked."""
    best = first(asked, key=lambda match: (match.witness.later, match.witness.line))
    if best is None:
        return None
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
        causeless=best.tier is not Tier.CAUSE,
        said=best.witness.source is Source.LOG,
    )


def _alike(kind: Kind, telling: Sequence[Witness], matches: Sequence[Match], catalog: Catalog) -> Report:
    """Return what is known of ``kind`` as such: no signature is for it in this text, its words are."""
    known = [signature for signature in catalog.signatures if signature.kind is kind]
    again = 2 * sum(signature.retry_same_settings for signature in known) > len(known)
    text, quotes = kinds()[kind], telling[:2]
    return Report(
        diagnosis=Diagnosis(
            signature=f"{LIKENESS}{kind.value}",
            kind=kind,
            scope=Counter(signature.scope for signature in known).most_common(1)[0][0],
            cause=f"{text.says.rstrip('.')}, to judge by the words: {quotes[0].quote}",
            confidence=ALIKE_CONFIDENCE,
            evidence=tuple(witness.evidence for witness in quotes),
            retry_same_settings=again,
            poisoned=all(signature.poisoned for signature in known),
            advice=f"{text.do} No signature knows this very failure: its words are like those of others",
        ),
        evidence=tuple(Evidence(quote=one.quote, line=one.line, kind=kind) for one in quotes),
        others=_distinct(match for match in matches if match.tier is Tier.CAUSE),
    )


def _only_ours(matches: Iterable[Match], catalog: Catalog) -> bool:
    """Say whether no user's signature spoke: theirs are not doubted, nor is a catalog without ours."""
    return bool(catalog.ours) and all(match.signature.id in catalog.ours for match in matches)


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


def _no_failure(scene: Scene) -> Report:
    """Return that nothing failed as far as the text tells, and what it said last."""
    last = cut(scene.last) or "nothing at all"
    return Report(
        diagnosis=Diagnosis(
            signature=NO_FAILURE,
            kind=Kind.UNKNOWN,
            scope=Scope.UNKNOWN,
            cause=f"no failure seen; what was said last: {last}",
            confidence=0.0,
            advice=_NOTHING_FAILED,
        ),
        evidence=(),
    )


def _unknown(seen: tuple[Witness, ...]) -> Report:
    telling = sorted(seen, key=lambda witness: (witness.mild, not witness.frames, witness.line))[:MAX_QUOTES]
    quotes = tuple(Evidence(quote=witness.quote, line=witness.line) for witness in telling)
    return Report(diagnosis=unknown(tuple(telling)), evidence=quotes, causeless=True)
