"""The verdict on one or many files: the facts of all of them, in the order of time where they tell it.

Facts of several files are ordered by the stamps in their lines; a file that has none keeps its place in the
order of files. Each fact keeps its file and line.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rayguard.faults.counsel import counsels
from rayguard.faults.printed.learnt_prefixes import Heads
from rayguard.logs.files import LogFile, blocks
from rayguard.logs.report import Evidence, Report, report
from rayguard.logs.scan import WHOLE_BYTES, Anchors, Numbered, telling
from rayguard.logs.timestamps import Clock
from rayguard.logs.witnesses import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rayguard.faults.catalog import Catalog
    from rayguard.faults.printed.line import PrintedLine
    from rayguard.faults.scene import Scene
    from rayguard.faults.witness import Witness

MAX_FACTS = 20_000  # of all files together: bounds what is judged, whatever the files hold
MANY_FACTS = 4_000  # from here on, of one sort only the first
SAME_FACTS = 48  # of one file and sort, for which the same signatures come into question

_DIGITS = re.compile(r"[0-9a-fA-F]*\d[0-9a-fA-F]*")
# Ray tells in a worker's file whose lines follow.
_NAMED = re.compile(r"^:(?:actor|task)_name:(\S{1,120})\s*$")


class Fact(NamedTuple):
    """One witness, the file it stands in, and when it was printed, where that is known."""

    witness: Witness
    file: int
    at: float | None


@dataclass(slots=True)
class Across:
    """Reads files one after the other and judges them together."""

    catalog: Catalog
    anchors: Anchors
    scene: Scene = field(default_factory=lambda: counsels().scene())  # of what was read last

    def diagnose(
        self,
        files: Sequence[LogFile],
        notes: list[str],
        advance: Callable[[int], object] | None = None,
    ) -> Report:
        """Return what ``files`` say; what is wrong with one of them is added to ``notes``."""
        facts: list[Fact] = []
        whole, self.scene = WHOLE_BYTES, counsels().scene()
        for place, file in enumerate(files):
            counted = _Counted(blocks(file, notes, advance))
            clock = Clock(file.written_at) if len(files) > 1 else None
            lines = telling(counted, self.anchors, whole)
            reader = Reader(self.catalog, self.scene)
            peeled = _peeled(lines, file.process, clock)
            of_file = list(self._facts(reader, peeled, place, clock, MAX_FACTS - len(facts)))
            facts += [fact for fact in of_file if not reader.is_outlived(fact.witness)]
            whole = max(whole - counted.size, 0)
        return _judged(in_order(facts), files, self.catalog, self.scene)

    def _facts(
        self, reader: Reader, lines: Iterable[PrintedLine], place: int, clock: Clock | None, room: int
    ) -> Iterator[Fact]:
        """Yield the facts of one file; ``room`` is how many more may be kept."""
        sorts = _Sorts(self.catalog, MAX_FACTS - room)
        # Lines that follow each other have the same number minus place: a traceback ends at a gap.
        for _, run in groupby(enumerate(lines), key=lambda pair: pair[1].number - pair[0]):
            for witness in reader.read(line for _, line in run):
                if sorts.new(witness):
                    yield Fact(witness, place, clock.at(witness.line) if clock else None)


class _Sorts:
    """Tells which facts of one file say something new: a log can repeat itself a million times."""

    def __init__(self, catalog: Catalog, kept: int) -> None:
        self._index = catalog.index
        self._types = {name for one in catalog.signatures for when in one.when for name in when.types}
        self._sorts: Counter[object] = Counter()
        self._shapes: set[str] = set()
        self._kept = kept

    def new(self, witness: Witness) -> bool:
        """Say whether to keep ``witness``: the first of its sort, or of its wording."""
        if self._kept >= MAX_FACTS:
            return False
        fragments = frozenset(self._index.fragments_in(witness.text))
        sort = (fragments, witness.names & self._types, witness.origin, witness.mild, bool(witness.frames))
        self._sorts[sort] += 1
        many = self._kept >= MANY_FACTS
        keep = self._sorts[sort] <= (1 if many else SAME_FACTS)
        if not keep and not many:
            shape = _DIGITS.sub("0", witness.quote)
            keep = shape not in self._shapes
            self._shapes.add(shape)
        self._kept += keep
        return keep


class _Counted:
    """Blocks that pass through, counted."""

    def __init__(self, passing: Iterable[bytes]) -> None:
        self._passing = passing
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self._passing:
            self.size += len(block)
            yield block


def _peeled(lines: Iterable[Numbered], process: str, clock: Clock | None) -> Iterator[PrintedLine]:
    """Yield ``lines`` without their prefixes; those that have none are their file's ``process``'s."""
    heads, pid = Heads(), process.rpartition(" ")[2]
    for number, raw in lines:
        text = raw.decode("utf-8", "replace")
        if clock is not None:
            clock.see(number, text)
        named = _NAMED.match(text) if text.startswith(":") else None
        if named and pid.startswith("pid="):
            process = f"{named[1]} {pid}"
        line = heads.peel(text, number)
        yield line if line.process or not process else replace(line, process=process)


def in_order(facts: Iterable[Fact]) -> list[Fact]:
    """Return ``facts`` in the order of time; a file without stamps comes before the files after it."""
    facts = list(facts)
    begins: dict[int, float] = {}
    for fact in facts:
        if fact.at is not None:
            begins[fact.file] = min(fact.at, begins.get(fact.file, fact.at))
    later, places = float("inf"), {}
    for file in sorted({fact.file for fact in facts}, reverse=True):
        later = places[file] = min(later, begins.get(file, later))

    def key(fact: Fact) -> tuple[float, int, int]:
        return (places[fact.file] if fact.at is None else fact.at, fact.file, fact.witness.line)

    return sorted(facts, key=key)


def _judged(facts: list[Fact], files: Sequence[LogFile], catalog: Catalog, scene: Scene) -> Report:
    """Judge by the place in the order, and put file and line back."""
    numbered = tuple(replace(fact.witness, line=place) for place, fact in enumerate(facts, start=1))
    told = report(numbered, catalog, scene)

    def placed(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        stand = ((one, facts[one.line - 1]) for one in evidence)
        return tuple(replace(one, file=files[fact.file].name, line=fact.witness.line) for one, fact in stand)

    return replace(
        told,
        evidence=placed(told.evidence),
        consequences=placed(told.consequences),
        others=placed(told.others),
    )
