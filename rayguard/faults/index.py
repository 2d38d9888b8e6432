"""Which signatures can speak of a fact at all: found in one pass over its text, however many there are.

One Aho-Corasick automaton holds the text fragments of all signatures, so the time is linear in the text and
does not grow with the catalog. Which signature wins is ``rayguard.faults.diagnose``.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

from ahocorasick_rs import AhoCorasick

from rayguard.faults.signature import Match, Signature, Tier, When
from rayguard.faults.witness import Said, Source, Witness

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_Block = tuple[int, "When"]  # the signature's place in the order of asking


class Index:
    """The signatures of one catalog, to be asked about witnesses. Immutable once made."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        """Sort ``signatures`` by tier, then in their order; guesses by words come before those by place."""
        self._order = sorted(signatures, key=lambda signature: (signature.tier, _by_place(signature)))
        by_text: dict[str, list[_Block]] = defaultdict(list)
        self._by_type: dict[str, list[_Block]] = defaultdict(list)
        self._open: list[_Block] = []  # asked about every witness but lines, which have only their words
        for place, signature in enumerate(self._order):
            for when in signature.when:
                for fragment in when.text:
                    by_text[fragment].append((place, when))
                for name in () if when.text else when.types:
                    self._by_type[name].append((place, when))
                if not (when.text or when.types):
                    self._open.append((place, when))
                for fragment in when.beside:
                    by_text[fragment] += ()  # no block of its own, but a line that says it is a fact
            for fragment in (fragment for when in signature.unless for fragment in when.beside):
                by_text[fragment] += ()
        self.fragments = tuple(by_text)
        self._of_lines = frozenset(
            number
            for number, blocks in enumerate(by_text.values())
            if not blocks or any(_fits_a_line(when) for _, when in blocks)
        )
        self._blocks = tuple(by_text.values())
        self._automaton = AhoCorasick(list(self.fragments)) if self.fragments else None

    def best(self, witness: Witness, said: Said) -> Match | None:
        """Return the first signature that fits ``witness``. ``said``: the texts of all witnesses."""
        return next(self.all(witness, said), None)

    def all(self, witness: Witness, said: Said) -> Iterator[Match]:
        """Yield what fits ``witness``, in the order of asking."""
        blocks = [] if witness.source is Source.LOG else [*self._open]
        for name in witness.names:
            blocks += self._by_type.get(name, ())
        for fragment in self.fragments_in(witness.text):
            blocks += self._blocks[fragment]
        if witness.source is Source.SILENCE:
            blocks = [(place, when) for place, when in blocks if _is_of_silence(when)]
        if not blocks:
            return
        blocks.sort(key=itemgetter(0))
        last = -1
        for place, when in blocks:
            signature = self._order[place]
            if place != last and when.match(witness, said):
                last = place
                if not signature.excludes(witness, said):
                    yield Match(signature, witness)

    def speaks_of(self, line: str) -> bool:
        """Say whether some signature may speak of ``line``, a printed one that is no exception's."""
        return not self._of_lines.isdisjoint(self.fragments_in(line))

    def fragments_in(self, text: str) -> set[int]:
        """Return the numbers of the ``fragments`` that stand in ``text``."""
        if self._automaton is None or not text:
            return set()
        return {found[0] for found in self._automaton.find_matches_as_indexes(text, overlapping=True)}


def _by_place(signature: Signature) -> bool:
    return signature.tier is Tier.GUESS and not all(when.text for when in signature.when)


def _is_of_silence(when: When) -> bool:
    """Say whether ``when`` asks for a silence: its text is ours, and names functions that others speak of."""
    return Source.SILENCE in when.seen_in


def _fits_a_line(when: When) -> bool:
    """Say whether a line can fit ``when`` by its fragments; where types are asked, a name in it tells."""
    raised = when.types or when.raised_in or when.frames or when.raised_by or when.cut or when.exit
    return not raised and (not when.seen_in or Source.LOG in when.seen_in)
