"""The guard comes to a worker that is only watched: what ``lazy_watch`` has put off, in full.

Loaded at the first error, or aside a second after the first class or function; at once for classes that were
named. Nothing here may raise into a user's call: ``lazy_watch`` and ``worker_hook`` swallow it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from rayguard.actors.guard import call_recovery, guard, restarts, tasks, wrappers
from rayguard.actors.life import current_life, publishing
from rayguard.actors.life.incarnation import ActorMemory
from rayguard.actors.mark import mark_of
from rayguard.actors.memory import call_boundary
from rayguard.actors.methods import MARK
from rayguard.cluster.plugin import guard_marks, lazy_watch
from rayguard.cluster.plugin import pending_calls as calls_before
from rayguard.cluster.plugin.pending_calls import INIT, Early, Late
from rayguard.harmless import harmless
from rayguard.process.flight import recorder
from rayguard.ray_internals.worker import inside_ray_worker, this_actor

_NAMESPACE = "_rayguard"
_MAKING_S = 180.0  # longer than it takes

_lock = threading.RLock()
_name = ""


def guard_class(cls: type, named: dict[str, Any] | None) -> None:
    """Put ``cls`` under the guard's own wrappers now: as ``named`` says, or (None) only to watch it.

    Raises:
        ConfigError: It cannot be guarded.
    """
    mark = (
        guard_marks.watching(lazy_watch.config, cls)
        if named is None
        else guard_marks.guarding(lazy_watch.config, named)
    )
    guard.guard_class(cls, mark)


def everything() -> None:
    """Do all that a worker's start did not wait for."""
    arrive()
    life = current_life.state.incarnation
    publishing.show_page(life, _name, watched=True)
    publishing.show_if_asked(life, _name)
    if lazy_watch.config["metrics"]:
        publishing.show_numbers(life, _name)
    with harmless("named classes"):
        from rayguard.cluster.plugin import named_classes  # noqa: PLC0415 - reads files of the user's modules

        named_classes.check(lazy_watch.config["guard"])
    with harmless("agent"):
        _have_agents()


def arrive() -> None:
    """Load the guard: wrappers, flight recorder, memory watch, the story of the life before. Once."""
    with _lock:
        # First: what loads from now on sees it, and settles.
        before, lazy_watch.arrived = lazy_watch.arrived, True
        settle()
        if before:
            return
        _begin()


def settle() -> None:
    """Give what waits its wrappers."""
    with _lock:
        while lazy_watch.waiting:
            late = lazy_watch.waiting.pop(0)
            with harmless("watch"):
                _settle(late)


def ended(early: Early, error: BaseException | None) -> None:
    """Tell of a call that ended and had begun before the guard came, and judge its error."""
    late = early.late
    if isinstance(error, Exception):
        arrive()
        if late.owner is not None:
            tasks.arrive(late.owner)
        call_recovery.judge(late.owner or early.instance, _called(late), late.method, error, repeatable=False)
    if early.entered is not None:
        call_boundary.end_call(late.owner or early.instance, _called(late), early.entered)
        if late.name == INIT and error is None:
            restarts.served(early.instance)


def _settle(late: Late) -> None:
    global _name  # noqa: PLW0603 - of this process, for its page
    if late.cls is None:
        _name = late.name
        late.owner = tasks.stand_in(late.name, guard_marks.watching(lazy_watch.config, None))
        late.run = tasks.guarded(late.method, late.owner)
        return
    if MARK not in vars(late.cls):
        setattr(late.cls, MARK, guard_marks.watching(lazy_watch.config, late.cls))
    if late.name != INIT:  # it has begun already, or has ended
        late.run = wrappers.wrap(late.name, late.method)


def _begin() -> None:
    """Begin this process's life, as the guarded ``__init__`` of an actor or a guarded task does."""
    global _name  # noqa: PLW0603 - see `_settle`
    actor = this_actor()
    if actor is not None and mark_of(type(actor)) is not None:
        _name = type(actor).__name__
        restarts.begin(actor)
    with calls_before.lock:
        calls = list(calls_before.under_way.values())
        for early in calls:
            with harmless("watch"):
                early.entered = _entered(early)
    if actor is not None and type(actor) in lazy_watch.early_classes and not _creating(calls):
        restarts.served(actor)
    for early in calls:
        if early.late.owner is not None:
            tasks.arrive(early.late.owner)


def _entered(early: Early) -> Any:
    late = early.late
    if late.name == INIT:
        return None, recorder.begin(type(early.instance).__name__, INIT), None, -1
    return call_boundary.begin_call(late.owner or early.instance, _called(late))


def _creating(calls: list[Early]) -> bool:
    return any(early.late.name == INIT and early.instance is this_actor() for early in calls)


def _called(late: Late) -> str:
    return late.name if late.cls is not None else tasks.CALL


def _have_agents() -> None:
    if not inside_ray_worker():
        return
    from rayguard.cluster.actor_names import SUPERVISOR  # noqa: PLC0415 - only where agents are wanted
    from rayguard.cluster.install import installation  # noqa: PLC0415

    if lazy_watch.config["agent"]:
        installation.ensure_agent_here()
    job_id = current_life.state.incarnation.job_id
    if lazy_watch.config["supervisor"] and job_id and _is_ours_to_make(f"{SUPERVISOR}{job_id}"):
        installation.ensure_supervisor(job_id)


def _is_ours_to_make(name: str) -> bool:
    """Say whether this worker is the one of its job that makes the actor: that starts a process."""
    import ray  # noqa: PLC0415 - a worker runs here

    try:
        ray.get_actor(name, namespace=_NAMESPACE)
    except ValueError:
        claim = ActorMemory(name, "making")
        if abs(time.time() - float(claim.load().get("at", 0.0))) < _MAKING_S:
            return False  # by the clock of another node, which may go ahead of ours
        return claim.save({"at": time.time()})
    return False
