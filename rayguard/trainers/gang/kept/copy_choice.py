"""Which node gets a copy of which rank's state, and of which call all ranks have one. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

C = TypeVar("C")
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class CopyTag:
    """What is copied: the state of a rank of a layout after ``number`` calls, as of a generation."""

    layout: int
    rank: int
    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """From how many calls each generation of a gang has begun: the last of them, as far as they matter.

    A generation that goes back undoes what later numbers meant before: its own calls get these numbers again.

    Invariant: of two, the later has begun from more calls; an earlier one of more calls says nothing.
    """

    begun: tuple[tuple[int, int], ...] = ()

    def after(self, generation: int, number: int) -> Lineage:
        """Return the lineage once ``generation`` has begun from the state of ``number`` calls."""
        found = (*(one for one in self.begun if one[1] < number), (generation, number))
        if len(found) > _REMEMBERED:  # nothing is known of what is older: it does not count
            found = ((found[1][0], -1), *found[2:])
        return Lineage(found)

    def has(self, tag: CopyTag) -> bool:
        """Say whether a copy is of what the gang has done: no later generation began from fewer calls."""
        return all(tag.number <= number for generation, number in self.begun if generation > tag.generation)


def receivers(homes: Sequence[str], nodes: Collection[str], shunned: Collection[str] = ()) -> tuple[str, ...]:
    """Return the node that is to have the copy of each rank's state; "" where there is no other one.

    ``homes`` are the nodes of the ranks, ``nodes`` all that live. Those of the gang come first, since states
    fit there; ``shunned`` ones, where it went wrong before, come last. Else they are shared evenly.
    """
    ranked = [
        sorted(set(homes) & set(nodes) - set(shunned)),
        sorted(set(nodes) - set(homes) - set(shunned)),
        sorted(set(nodes) & set(shunned)),
    ]
    options = [next(filter(None, ([n for n in one if n != home] for one in ranked)), [""]) for home in homes]
    found: list[str] = []
    for mine in options:
        found.append(min(mine, key=Counter(found).__getitem__))
    while (better := _evener(found, options)) is not None:
        rank, node = better
        found[rank] = node
    return tuple(found)


def _evener(found: Sequence[str], options: Sequence[Sequence[str]]) -> tuple[int, str] | None:
    """Return a rank, and the node with which the nodes would have more even shares; None where none is."""
    load = Counter(found)
    moves = ((rank, node) for rank, mine in enumerate(options) for node in mine)
    return next(((rank, node) for rank, node in moves if load[node] + 1 < load[found[rank]]), None)


def newest_of_all(
    kept: Sequence[Collection[int]], copied: Sequence[Mapping[int, C]], at_most: int
) -> tuple[int, tuple[C | None, ...]] | None:
    """Return the newest number of calls of which each rank's state is there, and what to take it from.

    ``kept``: the numbers that each rank's node still has, ``copied``: the copies, by number. What a node has
    itself comes first, and is None in the answer. None: there is no such number up to ``at_most``.
    """
    each = [{*mine, *theirs} for mine, theirs in zip(kept, copied, strict=True)]
    common = [number for number in set.intersection(*each) if number <= at_most] if each else []
    if not common:
        return None
    number = max(common)
    sources = (None if number in mine else theirs[number] for mine, theirs in zip(kept, copied, strict=True))
    return number, tuple(sources)
