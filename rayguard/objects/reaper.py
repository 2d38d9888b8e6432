"""Ends references that are due, where it is proved that nothing but data holds them; says why not otherwise.

What is due is decided in ``ledger`` and ``leaks``, what may be ended in ``proof``; how a reference ends is
``rayguard.ray_internals.object_refs``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.objects import heap
from rayguard.objects.holdings import HOLDINGS, log
from rayguard.objects.ledger import Lease, Opened, task_key
from rayguard.objects.proof import Held, objection
from rayguard.objects.scope_ended_error import ScopeEndedError
from rayguard.ray_internals import object_refs as ray_core

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rayguard.objects.heap import HeapReference
    from rayguard.ray_internals.object_refs import Reference

MOST_AT_ONCE = 20_000
_BURST_S = 1.0
_SHARE = 0.05
_MOST_SITES = 256
_OFF = "this Ray's references cannot be ended"

_searching = threading.Lock()  # two searches would take each other for holders


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What came of it."""

    ended: tuple[str, ...] = ()
    size_bytes: int = 0
    waiting: tuple[tuple[str, int], ...] = ()  # why others were left alone, and how many


class Tombstones:
    """The objects that ended references point to: one for each line that made some, at most 256."""

    def __init__(self) -> None:
        self._by_site: dict[str, Reference] = {}
        self._core: object = None

    def of(self, core: object, site: str) -> Reference:
        """Return the reference to the error for what ``site`` made."""
        if core is not self._core:  # Ray was started anew in this process
            ray_core.keep_for_ever(self._by_site)
            self._by_site, self._core = {}, core
        if site not in self._by_site and len(self._by_site) >= _MOST_SITES:
            site = ""
        if site not in self._by_site:
            self._by_site[site] = ray_core.put_error("object_scope", ScopeEndedError(site, -1))
        return self._by_site[site]

    def ids(self) -> set[str]:
        """Return their object ids."""
        return {stone.hex() for stone in self._by_site.values()}


class _Duty:
    """Searching the heap takes a twentieth of one core at most, however large the heap and short the steps.

    A second's worth may be taken at once: scopes that are rare end all that is due to the point.
    """

    def __init__(self) -> None:
        self._left_s = _BURST_S
        self._at = time.monotonic()

    def allows(self) -> bool:
        now = time.monotonic()
        self._left_s = min(_BURST_S, self._left_s + (now - self._at) * _SHARE)
        self._at = now
        return self._left_s > 0

    def took(self, seconds: float) -> None:
        self._left_s -= seconds


_duty = _Duty()
_stones = Tombstones()


def refresh(core: object, tasks: Collection[str] = ()) -> None:
    """Bring the ledger up to date with Ray's counts: one pass.

    Entered are, besides what was seen being made, the objects of ``tasks``.
    """
    with HOLDINGS.lock:
        asked_at = HOLDINGS.objects.now
    counts = ray_core.counts(core)
    with HOLDINGS.lock:
        for stone in _stones.ids():
            counts.pop(stone, None)
        wanted = (lambda object_id: task_key(object_id) in tasks) if tasks else None
        HOLDINGS.objects.refresh(counts, asked_at=asked_at, step=HOLDINGS.step, adopt=wanted)


def end_scope(core: object, opened: Opened, tasks: dict[str, str], caller: str = "") -> Reaped:
    """Note that a scope, in which ``caller`` called ``tasks``, is over; end what is due. '': this process."""
    refresh(core, tasks)
    with HOLDINGS.lock:
        HOLDINGS.objects.claim(opened, tasks)
        outlived = HOLDINGS.objects.end(opened)
        if ray_core.ENDING.why_off:  # what is due would become ever more
            return Reaped(waiting=((_OFF, len(outlived)),) if outlived else ())
        due = HOLDINGS.objects.due({*HOLDINGS.live_lanes(), caller})
    return reap(core, due)


def reap(core: object, due: Sequence[Lease], *, dry_run: bool = False) -> Reaped:
    """End the references of ``due`` that may be ended. With ``dry_run`` nothing is touched, only said."""
    idle = [lease for lease in due if not lease.submitted][:MOST_AT_ONCE]
    reasons: Counter[str] = Counter()
    busy = len(due) - len(idle)
    if busy:
        reasons["a task in flight has it as an argument"] = busy
    hindrance = _hindrance(dry_run=dry_run) if idle else ""
    if hindrance:
        reasons[hindrance] = len(idle)
    if hindrance or not idle:
        return Reaped(waiting=tuple(reasons.items()))
    started = time.thread_time()
    try:
        return _search_and_end(core, idle, reasons, dry_run=dry_run)
    except heap.SlowHeapError:
        reasons["the heap is too large to search in time"] = len(idle)
        return Reaped(waiting=tuple(reasons.items()))
    finally:
        _searching.release()
        _duty.took(time.thread_time() - started)


def _hindrance(*, dry_run: bool) -> str:
    """Say why nothing can be searched for now; an empty string: ``_searching`` is taken."""
    if not dry_run and not ray_core.ENDING.usable():
        return _OFF
    if not _duty.allows():
        return "searches took their share of time; the next one waits"
    return "" if _searching.acquire(blocking=False) else "another scope's end is at work"


def _search_and_end(core: object, due: Sequence[Lease], reasons: Counter[str], *, dry_run: bool) -> Reaped:
    leases = {lease.object_id: lease for lease in due}
    found: dict[str, list[HeapReference[Reference]]] = defaultdict(list)
    for item in heap.search(ray_core.reference_type(), lambda one: one.hex() in leases, most=MOST_AT_ONCE):
        found[item.target.hex()].append(item)
    references = [items[0].target for items in found.values()]
    done = ray_core.ready(core, references)
    known_sizes = ray_core.sizes(core, references)
    del references
    if len(found) < len(leases):
        reasons["no reference in Python was found"] = len(leases) - len(found)
    now = ray_core.counts(core)
    ended: list[str] = []
    for object_id, items in found.items():
        local, submitted = now.get(object_id, (0, 0))
        reason = objection(
            Held(
                object_id=object_id,
                copies=len(items),
                grips=tuple(grip for item in items for grip in item.grips),
                local=local,
                submitted=submitted,
                ready=object_id in done,
                plain=all(ray_core.is_plain(item.target) for item in items),
            )
        )
        if not reason and not dry_run:
            stone = _stones.of(core, leases[object_id].site)
            reason = _end_all(core, items, stone)
        if reason:
            reasons[reason] += 1
        else:
            ended.append(object_id)
    size = sum(known_sizes.get(object_id, 0) for object_id in ended)
    if not dry_run:
        _account(ended, size, leases)
    return Reaped(ended=tuple(ended), size_bytes=size, waiting=tuple(reasons.items()))


def _end_all(core: object, items: list[HeapReference[Reference]], stone: Reference) -> str:
    for item in items:
        item.holders.clear()
    for item in items:
        if not item.unchanged():
            return "somebody took it up just now"
        ray_core.end(core, item.target, stone)
    return ""


def _account(ended: list[str], size: int, leases: dict[str, Lease]) -> None:
    if not ended:
        return
    with HOLDINGS.lock:
        HOLDINGS.objects.forget(ended)
        HOLDINGS.totals.ended += len(ended)
        HOLDINGS.totals.ended_bytes += size
    for site, count in Counter(leases[object_id].site for object_id in ended).items():
        log.info("ended %d objects that outlived their scope, made at %s", count, site)
