"""The guard comes to a worker that is only watched: what ``watched`` has put off, in full.

Loaded at the first error, or aside a second after the first class or function; at once for classes that were
named. Nothing here may raise into a user's call: ``watched`` and ``hook`` swallow it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from rayguard.actors import guard, keeper, presence, restart, standing, tasks, wrap
from rayguard.actors.incarnation import ActorMemory, inside_ray_worker, this_actor
from rayguard.actors.mark import mark_of
from rayguard.actors.methods import MARK
from rayguard.cluster import early as calls_before
from rayguard.cluster import marks, unharmed, watched
from rayguard.cluster.early import INIT
from rayguard.process import recorder
from rayguard.recovery.harmless import harmless
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from rayguard.cluster.early import Early, Late

_NAMESPACE = "_rayguard"
_MAKING_S = 180.0  # longer than it takes

_lock = threading.RLock()
_name = ""


def guard_class(cls: type, named: dict[str, Any] | None) -> None:
    """Put ``cls`` under the guard's own wrappers now: as ``named`` says, or (None) only to watch it.

    Raises:
        ConfigError: It cannot be guarded.
    """
    mark = marks.watching(watched.config, cls) if named is None else marks.guarding(watched.config, named)
    guard.guard_class(cls, mark)


def everything() -> None:
    """Do all that a worker's start did not wait for."""
    arrive()
    life = standing.present.incarnation
    presence.show_page(life, _name)
    presence.show_if_asked(life, _name)
    if watched.config["metrics"]:
        presence.show_numbers(life, _name)
    with harmless("named classes"):
        from rayguard.cluster import named_classes  # noqa: PLC0415 - reads files of the user's modules

        named_classes.check(watched.config["guard"])
    with harmless("agent"):
        _have_agents()


def arrive() -> None:
    """Load the guard: wrappers, flight recorder, memory watch, the story of the life before. Once."""
    with _lock:
        before, watched.arrived = watched.arrived, True  # first: what loads from now on sees it, and settles
        settle()
        if before:
            return
        while unharmed.errors:
            TALLY.guard_error(unharmed.errors.pop())
        _begin()


def settle() -> None:
    """Give what waits its wrappers."""
    with _lock:
        while watched.waiting:
            late = watched.waiting.pop(0)
            with harmless("watch"):
                _settle(late)


def ended(early: Early, error: BaseException | None) -> None:
    """Tell of a call that ended and had begun before the guard came, and judge its error."""
    late = early.late
    if isinstance(error, Exception):
        arrive()
        if late.owner is not None:
            tasks.arrive(late.owner)
        keeper.judge(late.owner or early.instance, _called(late), late.method, error, repeatable=False)
    if early.entered is not None:
        wrap.end_call(late.owner or early.instance, _called(late), early.entered)
        if late.name == INIT and error is None:
            restart.served(early.instance)


def _settle(late: Late) -> None:
    global _name  # noqa: PLW0603 - of this process, for its page
    if late.cls is None:
        _name = late.name
        late.owner = tasks.stand_in(late.name, marks.watching(watched.config, None))
        late.run = tasks.guarded(late.method, late.owner)
        return
    if MARK not in vars(late.cls):
        setattr(late.cls, MARK, marks.watching(watched.config, late.cls))
    if late.name != INIT:  # it has begun already, or has ended
        late.run = wrap.wrap(late.name, late.method)


def _begin() -> None:
    """Begin this process's life, as the guarded ``__init__`` of an actor or a guarded task does."""
    global _name  # noqa: PLW0603 - see `_settle`
    actor = this_actor()
    if actor is not None and mark_of(type(actor)) is not None:
        _name = type(actor).__name__
        restart.begin(actor)
    with calls_before.lock:
        calls = list(calls_before.under_way.values())
        for early in calls:
            with harmless("watch"):
                early.entered = _entered(early)
    if actor is not None and watched.is_early(type(actor)) and not _creating(calls):
        restart.served(actor)
    for early in calls:
        if early.late.owner is not None:
            tasks.arrive(early.late.owner)


def _entered(early: Early) -> Any:
    late = early.late
    if late.name == INIT:
        return None, recorder.begin(type(early.instance).__name__, INIT)
    return wrap.begin_call(late.owner or early.instance, _called(late))


def _creating(calls: list[Early]) -> bool:
    return any(early.late.name == INIT and early.instance is this_actor() for early in calls)


def _called(late: Late) -> str:
    return late.name if late.cls is not None else tasks.CALL


def _have_agents() -> None:
    if not inside_ray_worker():
        return
    from rayguard.cluster import installation  # noqa: PLC0415 - only where agents are wanted

    if watched.config["agent"]:
        installation.ensure_agent_here()
    job_id = standing.present.incarnation.job_id
    if watched.config["supervisor"] and job_id and _is_ours_to_make(f"{installation.SUPERVISOR}{job_id}"):
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
