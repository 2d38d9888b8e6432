"""A new process for an actor, between two calls: its state moves along, its next life answers what waits.

How a process ends without losing a call is ``graceful_exit``; whether that is worth it,
``rayguard.memory.relief``; what becomes of its state, ``saved_state``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayguard.actors.life import current_life, process_exit, process_group, saved_state
from rayguard.actors.life.incarnation import ActorMemory
from rayguard.actors.life.retries import ray_repeats
from rayguard.actors.methods import state_methods
from rayguard.home import home
from rayguard.ray_internals import object_refs
from rayguard.ray_internals.node_stats import StoreProbe, raylets
from rayguard.ray_internals.worker import this_actor

if TYPE_CHECKING:
    from rayguard.actors.mark import Guarding
    from rayguard.recovery.incident import Incident

_PART = "recycled"
_ASK_S = 2.0


def hindrance(instance: object, mark: Guarding, now: float) -> str:
    """Say why this actor's process may not be recycled now; an empty string: it may. ``now``: wall clock."""
    policy = mark.policy.memory
    if policy is None or policy.recycle is None:
        return "it is not allowed to (MemoryPolicy.recycle)"
    if policy.recycle == "state" and state_methods(type(instance)) is None:
        cls = type(instance).__name__
        return f"{cls} has no state_dict() and load_state_dict(state) of its own: its state would be lost"
    why = _ray_would_not(instance, mark)
    if why:
        return why
    before = _times(current_life.state.incarnation.actor_id)
    budget = policy.recycle_budget
    if not budget.allows(before, now):
        times = len(budget.recent(before, now))
        return f"it was recycled {times} times within {budget.within_s:.0f} s already"
    return held_elsewhere()


def _ray_would_not(instance: object, mark: Guarding) -> str:
    life = current_life.state.incarnation
    if this_actor() is not instance:
        return "this is not the actor of its process"
    if process_group.is_member(mark):
        return "it is a member of a process group, and would be begun anew alone"
    if not life.restartable:
        return "Ray would not start it again (max_restarts)"
    if not mark.ray_may_repeat or not ray_repeats(life.actor_id, mark):
        return "Ray would not repeat the calls that wait (max_task_retries)"
    return ""


def recycle(instance: Any, mark: Guarding, incident: Incident, now: float) -> None:
    """Keep the state and have Ray end this process after the present call.

    Raises:
        Exception: The state could not be kept: nothing has happened then.
    """
    policy = mark.policy.memory
    life = current_life.state.incarnation
    if policy is not None and policy.recycle == "state":
        saved_state.keep(instance, life, home())
    budget = policy.recycle_budget if policy is not None else None
    before = _times(life.actor_id)
    recent = budget.recent(before, now) if budget is not None else ()
    ActorMemory(life.actor_id, _PART).save({"at": [*recent, now]})
    try:
        process_exit.end_process_after_answer(incident)
    except Exception:
        saved_state.drop(life)
        raise


def held_elsewhere() -> str:
    """Say whether other processes hold objects that this one owns: they would be lost with it."""
    import ray  # noqa: PLC0415 - an actor runs here

    core = object_refs.core_worker()
    if core is None:
        return "this Ray does not say what objects this process owns"
    mine = object_refs.counts(core)
    if not mine:
        return ""
    me, others = ray.get_runtime_context().get_worker_id(), 0
    for address in raylets().values():
        rows = _references(address)
        if rows is None:
            return f"the raylet at {address} does not say whether others hold objects of this process"
        others += sum(
            1 for worker, held in rows if worker != me and held in mine and object_refs.is_owner(core, held)
        )
    return f"others hold {others} objects that this process owns" if others else ""


def _references(address: str) -> list[tuple[str, str]] | None:
    return StoreProbe(address, deadline_s=_ASK_S).references()


def _times(actor_id: str) -> tuple[float, ...]:
    return tuple(float(at) for at in ActorMemory(actor_id, _PART).load().get("at", ()))
