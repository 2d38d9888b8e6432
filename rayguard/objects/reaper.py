"""Ends references that are due, where it is proved that nothing but data holds them; says why not otherwise.

What is due is decided in ``ledger`` and ``leaks``, what may be ended in ``proof``; how, in ``core``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayguard.objects import core as ray_core
from rayguard.objects import heap
from rayguard.objects.holdings import HOLDINGS, log
from rayguard.objects.proof import Held, objection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.objects.heap import Found
    from rayguard.objects.lease import Lease

MOST_AT_ONCE = 20_000
_BURST_S = 1.0
_SHARE = 0.05

_stones = ray_core.Tombstones()
_searching = threading.Lock()  # two searches would take each other for holders


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What came of it."""

    ended: tuple[str, ...] = ()
    size_bytes: int = 0
    waiting: tuple[tuple[str, int], ...] = ()  # why others were left alone, and how many


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


def refresh(core: Any, *, adopt: bool = False, tasks: Sequence[str] | dict[str, str] = ()) -> None:
    """Bring the ledger up to date with Ray's counts: one pass.

    Entered are, besides what was seen being made, the objects of ``tasks`` (or all, with ``adopt``).
    """
    from rayguard.objects.lease import task_key  # noqa: PLC0415 - a name only used here

    with HOLDINGS.lock:
        asked_at = HOLDINGS.objects.now
    counts = ray_core.counts(core)
    with HOLDINGS.lock:
        for stone in _stones.ids():
            counts.pop(stone, None)
        wanted = (lambda _: True) if adopt else (lambda object_id: task_key(object_id) in tasks)
        HOLDINGS.objects.refresh(
            counts, asked_at=asked_at, step=HOLDINGS.step, adopt=wanted if adopt or tasks else None
        )


def reap(core: Any, due: Sequence[Lease], *, dry_run: bool = False) -> Reaped:
    """End the references of ``due`` that may be ended. With ``dry_run`` nothing is touched, only said."""
    idle = [lease for lease in due if not lease.submitted][:MOST_AT_ONCE]
    reasons: Counter[str] = Counter()
    busy = len(due) - len(idle)
    if busy:
        reasons["a task in flight has it as an argument"] = busy
    if not idle:
        return Reaped(waiting=tuple(reasons.items()))
    if not _duty.allows():
        reasons["searches took their share of time; the next one waits"] = len(idle)
        return Reaped(waiting=tuple(reasons.items()))
    if not _searching.acquire(blocking=False):
        reasons["another scope's end is at work"] = len(idle)
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


def _search_and_end(core: Any, due: Sequence[Lease], reasons: Counter[str], *, dry_run: bool) -> Reaped:
    leases = {lease.object_id: lease for lease in due}
    found: dict[str, list[Found]] = defaultdict(list)
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
    size = sum(known_sizes.get(object_id, leases[object_id].size_bytes or 0) for object_id in ended)
    if not dry_run:
        _account(ended, size, leases)
    return Reaped(ended=tuple(ended), size_bytes=size, waiting=tuple(reasons.items()))


def _end_all(core: Any, items: list[Found], stone: Any) -> str:
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
