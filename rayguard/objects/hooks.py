"""Notices what user code makes in Ray: puts, tasks, actor calls, actors; and what it reads.

Four methods of Ray's Python layer are wrapped once, when the first scope opens. With no scope open and
tracking off, a wrapper costs one look at a context variable.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from rayguard.objects import core as ray_core
from rayguard.objects.ended import ScopeEndedError
from rayguard.objects.frames import call_site
from rayguard.objects.holdings import CURRENT, HOLDINGS, Live, current, quietly
from rayguard.objects.lease import task_key
from rayguard.objects.reaper import refresh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_lock = threading.Lock()
_installed = False
_MOST_TASKS = 100_000
ENDED_MARK = "_rayguard_ended"
ACTORS: dict[str, weakref.ref[Any]] = {}  # actors made in a scope, by hex id


def install(before_actor_call: Callable[[Any, Live], None]) -> None:
    """Wrap Ray's methods; once in a process. ``before_actor_call`` is told of calls made within a scope."""
    global _installed  # noqa: PLW0603 - once in a process
    with _lock:
        if _installed:
            return
        from ray._private.worker import Worker  # noqa: PLC0415 - Ray is there when a scope opens
        from ray.actor import ActorClass, ActorHandle  # noqa: PLC0415
        from ray.remote_function import RemoteFunction  # noqa: PLC0415

        Worker.put_object = _noticing(Worker.put_object, _made)
        RemoteFunction._remote = _noticing(RemoteFunction._remote, _called)  # noqa: SLF001
        ActorClass._remote = _noticing(ActorClass._remote, _actor_made)  # noqa: SLF001
        method_call = ActorHandle._actor_method_call  # noqa: SLF001
        ActorHandle._actor_method_call = _calling(method_call, before_actor_call)  # noqa: SLF001
        Worker.get_objects = _reading(Worker.get_objects)
        _installed = True


def _watched() -> bool:
    return CURRENT.get() is not None or HOLDINGS.tracking


def _noticing(original: Callable[..., Any], notice: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _watched():
            with quietly("ledger"):
                notice(result, args, kwargs)
        return result

    return noticed


def _calling(
    original: Callable[..., Any], before_actor_call: Callable[[Any, Live], None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def calling(handle: Any, *args: Any, **kwargs: Any) -> Any:
        site = vars(handle).get(ENDED_MARK)
        if site is not None:
            raise ScopeEndedError(site, -1)
        if not _watched():
            return original(handle, *args, **kwargs)
        live = current()
        if live is not None and live.across:
            with quietly("scope across actors"):
                before_actor_call(handle, live)
        result = original(handle, *args, **kwargs)
        with quietly("ledger"):
            _called(result, (handle, *args), kwargs)
        return result

    return calling


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reading(self: Any, object_refs: Any, *args: Any, **kwargs: Any) -> Any:
        if HOLDINGS.tracking:
            with quietly("ledger"):
                _read(object_refs)
        return original(self, object_refs, *args, **kwargs)

    return reading


def _is_a(value: Any, kind: type) -> bool:
    return type(value) is kind


def _read(values: Iterable[Any]) -> None:
    kind = ray_core.reference_type()
    read = [one.hex() for one in values if _is_a(one, kind)]
    if read:
        with HOLDINGS.lock:
            HOLDINGS.objects.read(read, HOLDINGS.step)


def _read_in(passed: Any) -> None:
    """Note the references among the arguments of a call: Ray's wrappers get them as a list and a dict."""
    if isinstance(passed, (list, tuple)):
        _read(passed)
    elif isinstance(passed, dict):
        _read(passed.values())


def _made(reference: Any, _args: Any, _kwargs: Any) -> None:
    site = call_site(sys._getframe(2))  # noqa: SLF001 - the caller of the wrapper
    if site is not None:
        _enter([reference], site, current())


def _called(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    site = call_site(sys._getframe(2))  # noqa: SLF001
    if site is None:
        return
    live = current()
    results = result if isinstance(result, list) else [result]
    _enter(results, site, live)
    if HOLDINGS.tracking:
        for passed in (*args, *kwargs.values()):
            _read_in(passed)
    if live is None or len(live.tasks) >= _MOST_TASKS:
        return
    for one in results:
        made_by: Any = getattr(one, "_generator_ref", one)
        if hasattr(made_by, "hex"):
            _note_task(live, made_by.hex(), site, args[0])


def _note_task(live: Live, object_id: str, site: str, callee: Any) -> None:
    key = task_key(object_id)
    live.tasks[key] = site
    actor_id = getattr(callee, "_ray_actor_id", None)
    if actor_id is not None and live.across:
        live.actors.setdefault(actor_id.hex(), {})[key] = site


def _enter(references: list[Any], site: str, live: Live | None) -> None:
    kind = ray_core.reference_type()
    core = ray_core.core_worker()
    if core is None:
        return
    HOLDINGS.connect(core)
    opened = live.opened if live is not None else None
    task = task_key(ray_core.current_task(core)) if HOLDINGS.tracking else ""
    step = opened.step if opened is not None else HOLDINGS.step
    with HOLDINGS.lock:
        for reference in references:
            if _is_a(reference, kind):
                HOLDINGS.objects.made(reference.hex(), site, step, opened=opened, task=task)
        crowded = HOLDINGS.objects.crowded()
    if crowded:
        refresh(core)


def _actor_made(handle: Any, _args: Any, kwargs: dict[str, Any]) -> None:
    live = current()
    site = call_site(sys._getframe(2))  # noqa: SLF001
    named = kwargs.get("name") or kwargs.get("lifetime") == "detached"
    if live is None or site is None or named or not hasattr(handle, "_ray_actor_id"):
        return  # who names an actor wants it found again
    actor_id = handle._ray_actor_id.hex()  # noqa: SLF001
    with HOLDINGS.lock:
        ACTORS[actor_id] = weakref.ref(handle)
        HOLDINGS.actors.made(actor_id, site, live.opened.step, opened=live.for_actors)
