"""Finds who holds objects of one type in this process, through the garbage collector; keeps nothing.

Every reference that a tracked container has is seen; what is left over of an object's reference count is a
local variable of running code, or C code. What the findings mean is decided in ``proof``.
"""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import sys
import time
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from rayguard.objects.frames import in_other_threads, runs_in_this_thread
from rayguard.objects.proof import Grip

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
DEADLINE_S = 2.0
_FEW = 64  # so many targets are cheaper through gc.get_referrers: it compares each edge with each target
_CHUNK, _PART = 256, 16
_LEVELS = 4

_LIVE_MODULES = frozenset(
    (
        *("asyncio", "_asyncio", "concurrent", "threading", "_thread", "queue", "_queue", "multiprocessing"),
        *("sched", "functools", "itertools", "contextvars", "_contextvars", "contextlib"),
        *("weakref", "_weakref", "ray", "rayguard"),
    )
)

_SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType)
_CALLABLES = (functools.partial, types.MethodType, types.BuiltinMethodType)
_HEAP_TYPE = 1 << 9


class SlowHeapError(Exception):
    """The heap could not be searched in time; nothing was decided."""


@dataclass(slots=True)
class HeapReference(Generic[T]):
    """One object that was looked for, and how it is held. Lives for one pass only."""

    target: T
    grips: list[Grip] = field(default_factory=list)
    holders: list[object] = field(default_factory=list)
    edges: int = 0  # references that the holders have on it

    def unchanged(self) -> bool:
        """Say whether nobody took another reference since the pass; exact only after the pass."""
        return sys.getrefcount(self.target) - sys.getrefcount(_PROBE.target) == self.edges


_PROBE = HeapReference(object())  # held as every found object is


def search(
    kind: type[T], wanted: Callable[[T], bool], *, most: int, deadline_s: float = DEADLINE_S
) -> list[HeapReference[T]]:
    """Return up to ``most`` objects of exactly ``kind`` that are ``wanted``, with all their holders.

    Raises ``SlowHeapError`` after ``deadline_s`` seconds of this thread's own time.
    """
    until = time.thread_time() + deadline_s
    heap = gc.get_objects()
    found = [HeapReference(obj) for obj in heap if type(obj) is kind and wanted(obj)][:most]
    if found:
        _Search(heap, until).fill(found)
    return found


class _Search:
    """One pass: the heap as it was, what was looked up in it, and what other threads work with."""

    def __init__(self, heap: list[object], until: float) -> None:
        self._heap = heap
        self._until = until
        self._known = set(map(id, heap))  # what this pass makes for itself is not among them
        self._threads = in_other_threads()

    def fill(self, found: list[HeapReference[T]]) -> None:
        targets: list[object] = [item.target for item in found]
        before = {id(item.target): sys.getrefcount(item.target) for item in found}
        holders = self._holders(targets)
        by_target = {id(item.target): item for item in found}
        for holder in holders:
            for target in gc.get_referents(holder):
                item = by_target.get(id(target))
                if item is not None:
                    item.edges += 1
                    item.holders.append(holder)
        verdicts = self._containers(holders)
        # `targets`, the item and the heap's list have each target once: a probe tells how many that is
        spare = _references_of_a_probe()
        for item in found:
            unseen = before[id(item.target)] - spare - item.edges
            item.grips = [self._grip(holder, item.target, verdicts) for holder in item.holders]
            if unseen > 0:
                item.grips.append(Grip.UNSEEN)

    def _holders(self, targets: list[object]) -> list[object]:
        """Return the containers that refer to any of ``targets``."""
        if len(targets) <= _FEW:
            found = [one for one in gc.get_referrers(*targets) if id(one) in self._known]
        else:
            found = self._sifted({id(target) for target in targets})
        self._in_time()
        return found

    def _sifted(self, wanted: set[int]) -> list[object]:
        """Sift the heap as it was when the pass began: in chunks, so that the work is done in C."""
        found: list[object] = []
        for start in range(0, len(self._heap), _CHUNK):
            chunk = self._heap[start : start + _CHUNK]
            if wanted.isdisjoint(map(id, gc.get_referents(*chunk))):
                continue
            self._in_time()
            for part in range(0, _CHUNK, _PART):
                few = chunk[part : part + _PART]
                if not wanted.isdisjoint(map(id, gc.get_referents(*few))):
                    found += [one for one in few if not wanted.isdisjoint(map(id, gc.get_referents(one)))]
        return found

    def _in_time(self) -> None:
        if time.thread_time() > self._until:
            raise SlowHeapError

    def _grip(self, holder: object, target: object, verdicts: dict[int, Grip]) -> Grip:
        direct = grip_of(holder, target, direct=True)
        return verdicts.get(id(holder), direct) if direct is Grip.DATA else direct

    def _containers(self, holders: list[object]) -> dict[int, Grip]:
        """Return what speaks against containers that would be data by themselves."""
        verdicts: dict[int, Grip] = {}
        level = {id(one): (one, {id(one)}) for one in holders if _is_container(one)}
        for depth in range(_LEVELS):
            if not level:
                break
            for one, roots in level.values():
                if self._threads is None or id(one) in self._threads:
                    verdicts.update(dict.fromkeys(roots, Grip.RUNNING))
            level = self._step_up(level, verdicts, last=depth == _LEVELS - 1)
        return verdicts

    def _step_up(
        self, level: dict[int, tuple[object, set[int]]], verdicts: dict[int, Grip], *, last: bool
    ) -> dict[int, tuple[object, set[int]]]:
        parents = self._holders([one for one, _ in level.values()])
        above: dict[int, tuple[object, set[int]]] = {}
        for parent in parents:
            for child in gc.get_referents(parent):
                if id(child) not in level:
                    continue
                _, roots = level[id(child)]
                grip = grip_of(parent, child, direct=False)
                if grip is not Grip.DATA:
                    verdicts.update(dict.fromkeys(roots, grip))
                elif _is_container(parent) and not last:
                    above.setdefault(id(parent), (parent, set()))[1].update(roots)
        return above


def _references_of_a_probe() -> int:
    """Return the references that the pass itself has on each target: measured, as Python versions differ."""
    found = [HeapReference(object())]
    heap = [found[0].target]
    targets = [item.target for item in found]
    before = {id(item.target): sys.getrefcount(item.target) for item in found}
    assert heap
    assert targets
    return before[id(found[0].target)]


def _is_container(one: object) -> bool:
    if isinstance(one, dict):
        return "__builtins__" not in one  # a module's variables: a root
    return isinstance(one, (list, tuple, set, frozenset, collections.deque, types.CellType))


def grip_of(holder: object, target: object, *, direct: bool) -> Grip:
    """Return how ``holder`` holds ``target``: a reference itself (``direct``), or a container of one."""
    if isinstance(holder, dict):
        return Grip.KEY if _is_key(holder, target) else Grip.DATA
    if isinstance(holder, (list, tuple, collections.deque)):
        return Grip.KEY if _hashed(holder) and type(holder) is not tuple else Grip.DATA
    if isinstance(holder, (set, frozenset)):
        return Grip.KEY
    if isinstance(holder, types.CellType):
        return Grip.CLOSURE if direct else Grip.DATA
    if isinstance(holder, _SUSPENDED):
        return Grip.DATA if not direct and _is_running(holder) else Grip.SUSPENDED
    return _grip_of_object(holder, target, direct=direct)


def _grip_of_object(holder: object, target: object, *, direct: bool) -> Grip:
    kind = type(holder)
    if isinstance(holder, types.FunctionType):
        bound = target is holder.__defaults__ or target is holder.__kwdefaults__
        return Grip.MACHINERY if direct or bound else Grip.DATA
    if isinstance(holder, _CALLABLES) or str(kind.__module__).partition(".")[0] in _LIVE_MODULES:
        return Grip.MACHINERY
    if isinstance(holder, (type, types.ModuleType, types.SimpleNamespace)):
        return Grip.DATA
    if not kind.__flags__ & _HEAP_TYPE:
        return Grip.SUSPENDED if hasattr(kind, "__next__") else Grip.UNKNOWN
    return Grip.KEY if direct and _hashed(holder) else Grip.DATA


def _hashed(holder: object) -> bool:
    """Say whether the hash of ``holder`` may come from what it holds."""
    own: object = type(holder).__hash__
    return own is not None and own is not object.__hash__


def _is_key(holder: dict[object, object], target: object) -> bool:
    try:
        return target in holder
    except TypeError:  # a list is never a key
        return False


def _is_running(holder: object) -> bool:
    if isinstance(holder, types.FrameType):
        return runs_in_this_thread(holder)
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        frame = inspect.getattr_static(type(holder), name, None) and getattr(holder, name)
        if frame is not None:
            return runs_in_this_thread(frame)
    return False
