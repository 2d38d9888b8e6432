"""Actor handles that outlived their scope keep actors alive: they are dropped, or the leak is reported.

Dropped is a handle that only data holds, of an actor without a name, whose line made actors in later scopes
too that are held still: an actor made once stays. Ray lets the actor finish its calls before it exits.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rayguard.objects import heap, hooks
from rayguard.objects.holdings import HOLDINGS, log
from rayguard.objects.leaks import Leak
from rayguard.objects.proof import Held, objection

if TYPE_CHECKING:
    from rayguard.objects.heap import Found
    from rayguard.objects.lease import Lease
    from rayguard.objects.ledger import Opened

_MOST = 1000


def _alive() -> dict[str, tuple[int, int]]:
    for actor_id in [key for key, handle in hooks.ACTORS.items() if handle() is None]:
        del hooks.ACTORS[actor_id]
    return dict.fromkeys(hooks.ACTORS, (1, 0))


def end_actors(core: Any, opened: Opened | None) -> int:
    """Note the end of the scope ``opened``, and drop the handles that are due; return how many actors."""
    with HOLDINGS.lock:
        asked_at = HOLDINGS.actors.now
        HOLDINGS.actors.refresh(_alive(), asked_at=asked_at, step=HOLDINGS.step)
        if opened is not None:
            HOLDINGS.actors.end(opened)
        due = {lease.object_id: lease for lease in HOLDINGS.actors.due(HOLDINGS.live_lanes())}
    if not due:
        return 0
    from ray.actor import ActorHandle  # noqa: PLC0415 - actors were made: Ray is there

    found: dict[str, list[Found]] = defaultdict(list)
    for item in heap.search(ActorHandle, lambda one: _id(one) in due, most=_MOST):
        found[_id(item.target)].append(item)
    return sum(_end(core, due[actor_id], items) for actor_id, items in found.items())


def _id(handle: Any) -> str:
    actor_id = vars(handle).get("_ray_actor_id")
    return actor_id.hex() if actor_id is not None else ""


def _end(core: Any, lease: Lease, items: list[Found]) -> bool:
    grips = tuple(grip for item in items for grip in item.grips)
    if objection(Held(object_id=lease.object_id, copies=len(items), local=len(items), grips=grips)):
        return False
    for item in items:
        item.holders.clear()
        if not item.unchanged() or item.target._ray_weak_ref:  # noqa: SLF001
            return False
        actor_id = item.target._ray_actor_id  # noqa: SLF001
        item.target._ray_weak_ref = True  # noqa: SLF001 - its own end must not count down a second time
        setattr(item.target, hooks.ENDED_MARK, lease.site)
        core.remove_actor_handle_reference(actor_id)
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
        by_site: dict[str, list[Lease]] = defaultdict(list)
        for lease in HOLDINGS.actors:
            if lease.ended_at and lease.scope:
                by_site[lease.site].append(lease)
    return [
        Leak(
            site=site,
            object_ids=tuple(lease.object_id for lease in leases),
            since_step=min(lease.step for lease in leases),
            outlived=True,
            what="actors",
        )
        for site, leases in by_site.items()
    ]
