"""Which containers get longer from step to step, and of which types there are more: a census of the heap.

In passes at the ends of steps: 10 ms for a small actor, 0.2 s with 200,000 objects (torch and Ray loaded),
at most a twentieth of the time. Between passes nothing is kept but numbers, and names of types.

The collector does not know bytes, strings and numpy's arrays: they are found as what growing containers hold.
What was frozen (``gc.freeze``) is not seen.

Not objgraph's or pympler's: ``objgraph.growth`` counts what the collector knows and so misses every container
of bytes and arrays, ``pympler.muppy`` takes 15 times as long, and both run the user's ``__class__``.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayguard.memory.growth.containers import has_a_most, is_container, length, newest, unknown_dicts
from rayguard.memory.growth.finding import GrowingContainer, GrowingType
from rayguard.memory.growth.growing import rates
from rayguard.memory.growth.names import BOUNDED, way_to
from rayguard.memory.growth.weight import describe, keeps_graph, module_of, name_of, tensors_by_device, weight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEADLINE_S = 0.5  # of this thread's time, for one pass; a heap that takes longer is looked at less closely
SHARE = 1 / 20  # of the time may be spent here
_CHUNK = 4096
_MOST_CANDIDATES = 2000  # containers that grew are followed, the fastest first
_MOST_TENSORS = 20_000
_MOST_NAMED = 3
_NAMING_S = 0.6  # for the names of all
_LEAST = 1 << 14  # bytes a step of a container: less explains nothing
_MANY = 100  # a step of Python's own types: fewer are no news
_NEVER = 1 << 62
_NOT_TOLD = ("tuple", "rayguard.")  # traces of tracemalloc are tuples
_GRAPH = "its tensors keep the graphs that computed them: detach() them, or keep item()"


class CensusError(Exception):
    """A pass failed; the error itself is told in words, as its traceback would keep objects alive."""


class _SlowError(Exception):
    """The pass took too long."""


@dataclass(slots=True, kw_only=True)
class _Pass:
    """What one pass counted: objects by the names of their types, tensors and their bytes by device."""

    step: int
    numbers: Mapping[str, int]
    tensors: Mapping[str, tuple[int, int]]


class HeapCensus:
    """One hunt: ``look`` at the end of each step, ``found`` after the last."""

    def __init__(
        self,
        *,
        deadline_s: float = DEADLINE_S,
        share: float = SHARE,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._deadline_s, self._share, self._clock, self._cpu = deadline_s, share, clock, cpu
        self._due = float("-inf")
        self._thorough = True
        self.off = False  # the heap is too large to be looked through
        self.took_s = self.longest_s = 0.0
        self.note = ""
        self._forget()

    def _forget(self) -> None:
        self._lengths: dict[int, int] = {}  # of all containers, by id; after the first pass only
        # Steps and lengths of those that grew, by id
        self._candidates: dict[int, list[tuple[int, float]]] = {}
        # A tuple: a list of ours would be one that grows
        self._passes: tuple[_Pass, ...] = ()
        self._held: tuple[GrowingContainer, ...] = ()
        self._kinds: tuple[GrowingType, ...] = ()

    @property
    def passes(self) -> int:
        """How many passes there were."""
        return len(self._passes)

    @property
    def due(self) -> bool:
        """Whether it is time for another pass."""
        return not self.off and self._clock() >= self._due

    def look(self, step: int, *, last: bool = False) -> bool:
        """Pass over the heap, unless the last pass was too short a time ago; say whether it did.

        ``last``: name what has grown. Raises ``CensusError`` for what must not happen.
        """
        if not self.due:
            return False
        began = self._cpu()
        try:
            self._pass(step, last=last, until=began + self._deadline_s)
            failed = ""
        except _SlowError:
            self._give_up()
            return False
        except Exception as error:  # noqa: BLE001 - its frames hold all objects of this process: they must go
            failed = repr(error)
        finally:
            took = self._cpu() - began
            self.took_s, self.longest_s = self.took_s + took, max(self.longest_s, took)
            self._due = self._clock() + took / self._share
        if failed:
            self.off = True
            raise CensusError(failed)
        return True

    def found(self) -> tuple[tuple[GrowingContainer, ...], tuple[GrowingType, ...]]:
        """Return what the last pass named: containers that grow, and types."""
        return self._held, self._kinds

    def _pass(self, step: int, *, last: bool, until: float) -> None:
        heap = gc.get_objects()
        containers = self._containers(heap, until)
        numbers, tensors = self._types(heap, until)
        self._passes = (*self._passes, _Pass(step=step, numbers=numbers, tensors=tensors))
        if self.passes == 1:
            self._lengths = dict(zip(map(id, containers), map(length, containers), strict=True))
            return
        if self.passes == 2:  # noqa: PLR2004 - from here on only what grew is followed
            self._candidates = self._grown(step, containers)
            self._lengths = {}
        followed = [one for one in containers if id(one) in self._candidates]
        del containers  # it refers to what is to be named
        if self.passes > 2:  # noqa: PLR2004
            self._follow(step, followed)
        if last:
            self._kinds, newest_one = _kinds(self._passes, heap)
            heap.clear()  # it would be one more that refers to all
            self._held = self._name(followed)
            if not self._held and newest_one is not None:
                self._kinds = _with_way(self._kinds, newest_one)

    def _give_up(self) -> None:
        """Begin anew without the costly half; without that too, not at all."""
        self._forget()
        if not self._thorough:
            self.off = True
        self._thorough = False
        what = "the heap was not" if self.off else "types and some dicts were not"
        self.note = f"{what} looked at: more than {self._deadline_s:.2f} s for a pass"

    def _in_time(self, until: float) -> None:
        if self._cpu() > until:
            raise _SlowError

    def _containers(self, heap: list[object], until: float) -> list[object]:
        """Return the containers of the heap, and the dicts that the collector has no reason to know."""
        kinds = frozenset(kind for kind in set(map(type, heap)) if is_container(kind))
        found: list[object] = []
        for start in range(0, len(heap), _CHUNK):
            part = heap[start : start + _CHUNK]
            found += itertools.compress(part, map(kinds.__contains__, map(type, part)))
            if self._thorough:
                found += unknown_dicts(part)
            self._in_time(until)
        return found

    def _types(self, heap: list[object], until: float) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        if not self._thorough:
            return {}, {}
        numbers: Counter[str] = Counter()
        for kind, number in Counter(map(type, heap)).items():
            numbers[name_of(kind)] += number
        tensors = tensors_by_device(heap, _MOST_TENSORS)
        self._in_time(until)
        return dict(numbers), tensors

    def _grown(self, step: int, containers: list[object]) -> dict[int, list[tuple[int, float]]]:
        before, began = self._lengths, self._passes[0].step
        grown = [
            (length(one) - before[id(one)], id(one))
            for one in containers
            if length(one) > before.get(id(one), _NEVER)
        ]
        grown.sort(reverse=True)
        return {
            name: [(began, before[name]), (step, before[name] + more)]
            for more, name in grown[:_MOST_CANDIDATES]
        }

    def _follow(self, step: int, followed: list[object]) -> None:
        by_id = {id(one): one for one in followed}
        for name, points in list(self._candidates.items()):
            one = by_id.get(name)
            if one is None or length(one) <= points[-1][1]:
                del self._candidates[name]
            else:
                points.append((step, length(one)))

    def _name(self, followed: list[object]) -> tuple[GrowingContainer, ...]:
        """Name the containers that make most of the growth. Empties ``followed``, which refers to them."""
        grown = {id(one): one for one in followed if id(one) in self._candidates}
        followed.clear()
        held = [_held(one, rates(self._candidates[name])) for name, one in grown.items()]
        most = [pair for pair in zip(held, grown, strict=True) if _counts(pair[0], grown[pair[1]])]
        most = sorted(most, key=lambda pair: -pair[0].bytes_per_step)[:_MOST_NAMED]
        until = time.monotonic() + _NAMING_S
        named: list[GrowingContainer] = []
        for it, name in most:
            way = way_to(grown[name], deadline_s=until - time.monotonic(), not_ours=[id(grown)])
            bounded = f" ({BOUNDED} " in way or has_a_most(grown[name])
            named.append(replace(it, path=way, bounded=bounded))
        return tuple(named)


def _held(one: object, rate: float) -> GrowingContainer:
    items, seen = newest(one), set[object]()
    weights = [weight(item, seen) for item in items]
    own = weights[1:] or weights  # what all share is in the first
    last = items[-1] if items else None
    return GrowingContainer(
        kind=name_of(type(one)),
        path="",
        items_per_step=rate,
        item_bytes=sum(own) / max(1, len(own)),
        item=describe(last) if items else "",
        hint=_GRAPH if items and keeps_graph(last) else "",
    )


def _counts(held: GrowingContainer, one: object) -> bool:
    """Say whether it is worth a name: it is big, or what it holds may be, unseen by Python."""
    last = newest(one)[-1:]
    opaque = bool(last) and type(last[0]).__module__ != "builtins"
    return held.items_per_step > 0 and (opaque or held.bytes_per_step >= _LEAST)


def _kinds(passes: Sequence[_Pass], heap: list[object]) -> tuple[tuple[GrowingType, ...], object]:
    """Return the types of which there were more after every pass, tensors by their bytes first.

    And an object of the first that is not Python's own, or None.
    """
    found = []
    for device in passes[-1].tensors:
        number, used = (
            rates([(one.step, one.tensors.get(device, (0, 0))[at]) for one in passes]) for at in (0, 1)
        )
        if used:
            found.append(
                GrowingType(name=f"torch tensor on {device}", number_per_step=number, bytes_per_step=used)
            )
    kinds = {name_of(kind): kind for kind in set(map(type, heap))}
    others = []
    for name in passes[-1].numbers:
        rate = rates([(one.step, one.numbers.get(name, 0)) for one in passes])
        least = _MANY if name in kinds and kinds[name].__module__ == "builtins" else 1
        if rate >= least and not name.startswith(_NOT_TOLD):
            others.append(GrowingType(name=name, number_per_step=rate))
    # A class of the user's says more than that there are more dicts
    others.sort(key=lambda kind: (_is_pythons(kinds[kind.name]), -kind.number_per_step))
    one = None
    if others and not _is_pythons(kinds[others[0].name]):
        one = _foremost(kinds[others[0].name], heap)
    return tuple((*found, *others)[:_MOST_NAMED]), one


def _foremost(kind: type, heap: list[object]) -> object:
    """Return one that is not held by another of its kind, as in a chain, if there is one."""
    some = list(itertools.islice((one for one in heap if type(one) is kind), _MOST_TENSORS))
    held = gc.get_referents(*some)
    held += gc.get_referents(*(one for one in held if type(one) is dict))  # their attributes
    inside = set(map(id, held))
    return next((one for one in some if id(one) not in inside), some[-1])


def _with_way(kinds: tuple[GrowingType, ...], one: object) -> tuple[GrowingType, ...]:
    way = way_to(one)
    return tuple(replace(kind, path=way) if kind.name == name_of(type(one)) else kind for kind in kinds)


def _is_pythons(kind: type) -> bool:
    module = module_of(kind)
    return module != "__main__" and module.partition(".")[0] in sys.stdlib_module_names
