"""Actor handles that outlived their scope keep actors alive: they are dropped, or the leak is reported.

Dropped is a handle that only data holds, of an actor without a name, whose line made actors in later scopes
too that are held still: an actor made once stays. Ray lets the actor finish its calls before it exits.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rayguard.objects import heap, hooks
from rayguard.objects.holdings import HOLDINGS, log
from rayguard.objects.leaks import Leak, by_site
from rayguard.objects.proof import Held, objection
from rayguard.ray_internals import actor_classes

if TYPE_CHECKING:
    from rayguard.objects.heap import HeapReference
    from rayguard.objects.ledger import Lease, Opened

_MOST = 1000


def _alive() -> dict[str, tuple[int, int]]:
    for actor_id in [key for key, handle in hooks.ACTORS.items() if handle() is None]:
        del hooks.ACTORS[actor_id]
    return dict.fromkeys(hooks.ACTORS, (1, 0))


def end_actors(core: object, opened: Opened | None) -> int:
    """Note the end of the scope ``opened``, and drop the handles that are due; return how many actors."""
    with HOLDINGS.lock:
        asked_at = HOLDINGS.actors.now
        HOLDINGS.actors.refresh(_alive(), asked_at=asked_at, step=HOLDINGS.step)
        if opened is not None:
            HOLDINGS.actors.end(opened)
        due = {lease.object_id: lease for lease in HOLDINGS.actors.due(HOLDINGS.live_lanes())}
    if not due or not actor_classes.RELEASING.usable():
        return 0
    actor_id = actor_classes.actor_id
    found: dict[str, list[HeapReference[object]]] = defaultdict(list)
    for item in heap.search(actor_classes.handle_type(), lambda one: actor_id(one) in due, most=_MOST):
        found[actor_id(item.target)].append(item)
    return sum(_end(core, due[key], items) for key, items in found.items())


def _end(core: object, lease: Lease, items: list[HeapReference[object]]) -> bool:
    grips = tuple(grip for item in items for grip in item.grips)
    if objection(Held(object_id=lease.object_id, copies=len(items), local=len(items), grips=grips)):
        return False
    for item in items:
        item.holders.clear()
        if not item.unchanged() or not actor_classes.keeps_alive(item.target):
            return False
        setattr(item.target, hooks.ENDED_MARK, lease.site)
        actor_classes.release(core, item.target)
    hooks.ACTORS.pop(lease.object_id, None)
    with HOLDINGS.lock:
        HOLDINGS.actors.forget([lease.object_id])
        HOLDINGS.totals.handles_ended += 1
    log.info("let go of an actor that outlived its scope, made at %s", lease.site)
    return True


def leaked_actors() -> list[Leak]:
    """Return the actors that outlived their scope and are held still, by the line that made them."""
    with HOLDINGS.lock:
        HOLDINGS.actors.refresh(_alive(), asked_at=HOLDINGS.actors.now, step=HOLDINGS.step)
        outlived = [lease for lease in HOLDINGS.actors if lease.ended_at and lease.scope]
    return by_site(outlived, "actors")
