"""Notices what user code makes in Ray: puts, tasks, actor calls, actors.

Four methods of Ray's Python layer are wrapped once, when the first scope opens: all of them, or none where
Ray has moved one (``rayguard.ray_internals.object_refs``). With no scope open and tracking off, a wrapper
costs one look at a context variable.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rayguard.harmless import harmless
from rayguard.objects.frames import call_site
from rayguard.objects.holdings import CURRENT, HOLDINGS, Live, current
from rayguard.objects.ledger import task_key
from rayguard.objects.reaper import refresh
from rayguard.objects.scope_ended_error import ScopeEndedError
from rayguard.ray_internals import actor_creation
from rayguard.ray_internals import object_refs as ray_core
from rayguard.ray_internals.actor_classes import actor_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from rayguard.ray_internals.actor_creation import After, Options

    Arguments: TypeAlias = tuple[object, ...]

P = ParamSpec("P")
R = TypeVar("R")

_MOST_TASKS = 100_000
ENDED_MARK = "_rayguard_ended"
ACTORS: dict[str, weakref.ref[object]] = {}  # actors made in a scope, by hex id
_installed = False


def install(before_actor_call: Callable[[object], None]) -> bool:
    """Wrap Ray's methods, once in a process; say whether they are: False where this Ray has moved one.

    ``before_actor_call`` is told of calls made within a scope that reaches actors.
    """
    global _installed  # noqa: PLW0603 - once in a process
    _installed = _installed or (
        actor_creation.CREATION.usable()
        and ray_core.OBJECTS.replace(
            {
                "put": functools.partial(_noticing, notice=_made),
                "task": functools.partial(_noticing, notice=_called),
                "call": functools.partial(_calling, before_actor_call=before_actor_call),
            }
        )
        and actor_creation.add("object scopes", _before_creation)
    )
    return _installed


def _watched() -> bool:
    return CURRENT.get() is not None or HOLDINGS.tracking


def _noticing(original: Callable[P, R], notice: Callable[[R, Arguments], None]) -> Callable[P, R]:
    @functools.wraps(original)
    def noticed(*args: P.args, **kwargs: P.kwargs) -> R:
        result = original(*args, **kwargs)
        if _watched():
            with harmless("ledger"):
                notice(result, args)
        return result

    return noticed


def _calling(original: Callable[..., R], before_actor_call: Callable[[object], None]) -> Callable[..., R]:
    @functools.wraps(original)
    def calling(handle: object, *args: object, **kwargs: object) -> R:
        site = vars(handle).get(ENDED_MARK)
        if site is not None:
            raise ScopeEndedError(site, -1)
        if not _watched():
            return original(handle, *args, **kwargs)
        live = current()
        if live is not None and live.across:
            with harmless("scope across actors"):
                before_actor_call(handle)
        result = original(handle, *args, **kwargs)
        with harmless("ledger"):
            _called(result, (handle,))
        return result

    return calling


def _made(reference: object, _args: Arguments) -> None:
    site = call_site(sys._getframe(2))  # noqa: SLF001 - the caller of the wrapper
    if site is not None:
        _enter([reference], site, current())


def _called(result: object, args: Arguments) -> None:
    site = call_site(sys._getframe(2))  # noqa: SLF001
    if site is None:
        return
    live = current()
    results = result if isinstance(result, list) else [result]
    _enter(results, site, live)
    if live is None or len(live.tasks) >= _MOST_TASKS:
        return
    for one in results:
        made_by = ray_core.task_result(one)
        if made_by is not None:
            _note_task(live, task_key(made_by.hex()), site, args[0])


def _note_task(live: Live, key: str, site: str, callee: object) -> None:
    live.tasks[key] = site
    called = actor_id(callee) if live.across else ""
    if called:
        live.actors.setdefault(called, {})[key] = site


def _enter(references: Iterable[object], site: str, live: Live | None) -> None:
    core = ray_core.core_worker()
    if core is None:
        return
    HOLDINGS.connect(core)
    opened = live.opened if live is not None else None
    task = task_key(ray_core.current_task(core)) if HOLDINGS.tracking else ""
    step = opened.step if opened is not None else HOLDINGS.step
    with HOLDINGS.lock:
        for reference in references:
            if ray_core.is_reference(reference):
                HOLDINGS.objects.made(reference.hex(), site, step, opened=opened, task=task)
        crowded = HOLDINGS.objects.crowded()
    if crowded:
        refresh(core)


def _before_creation(_actor_class: object, options: Options) -> tuple[Options, After | None]:
    return options, functools.partial(_actor_made, options) if CURRENT.get() is not None else None


def _actor_made(options: Options, handle: object) -> None:
    with harmless("ledger"):
        live = current()
        site = call_site(sys._getframe(2))  # noqa: SLF001
        named = options.get("name") or options.get("lifetime") == "detached"
        made = actor_id(handle)
        if live is None or site is None or named or not made:
            return  # who names an actor wants it found again
        with HOLDINGS.lock:
            ACTORS[made] = weakref.ref(handle)
            HOLDINGS.actors.made(made, site, live.opened.step, opened=live.for_actors)
