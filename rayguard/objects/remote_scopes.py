"""A scope reaches the actors that were called in it: what those calls made there ends with it.

No actor needs to be guarded: the announcements are Ray's own ``__ray_call__``. The first call that a scope
makes to an actor is preceded by one that lets the actor note what it makes; a scope's end sends the keys of
the calls made within it. Nobody waits for the answers: an actor whose calls Ray does not keep in order
(async, threaded) may begin its first one before it was told, and what that one makes stays. What an actor
borrowed is never ended from here.
"""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.harmless import harmless
from rayguard.objects import hooks
from rayguard.objects.holdings import CURRENT, HOLDINGS, Live, log
from rayguard.objects.reaper import end_scope
from rayguard.ray_internals import actor_classes
from rayguard.ray_internals import object_refs as ray_core

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.ray_internals.object_refs import Reference

_MOST_TASKS = 100_000
_MOST_ACTORS = 10_000


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a scope's end tells an actor; plain values, as it crosses processes."""

    caller: str
    step: int
    keep_steps: int
    tasks: dict[str, str]  # key of a call -> the line that made it


@dataclass(slots=True)
class _Known:
    """An actor that was told to note what it makes."""

    answer: Reference | None = None  # of the last announcement; None: answered
    due: list[Announcement] = field(default_factory=list)
    deaf: bool = False


class _Actors:
    """The actors that this process called within scopes. Invariant: one unanswered announcement to each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._core: object = None
        self._known: dict[str, _Known] = {}
        self._handles: dict[str, weakref.ref[object]] = {}

    def before_call(self, handle: object) -> None:
        """Introduce ourselves to an actor that is called for the first time; send what waits for it."""
        if not actor_classes.HANDLES.usable() or not actor_classes.runs_functions(handle):
            return
        actor_id = actor_classes.actor_id(handle)
        with self._lock:
            self._renew()
            self._handles[actor_id] = weakref.ref(handle)
            if actor_id in self._known:
                self._send(handle, self._known[actor_id])
            elif len(self._known) < _MOST_ACTORS:
                self._known[actor_id] = _Known(answer=_call(handle, listen))

    def end(self, live: Live) -> None:
        """Tell each actor that ``live`` called that it is over."""
        core = ray_core.core_worker()
        caller = ray_core.own_id(core) if core is not None else ""
        with self._lock:
            for actor_id, tasks in live.actors.items():
                known = self._known.get(actor_id)
                if known is None or known.deaf:
                    continue
                known.due.append(Announcement(caller, live.opened.step, live.opened.keep_steps, tasks))
                handle = self._handles[actor_id]()
                if handle is not None:
                    self._send(handle, known)

    def _renew(self) -> None:
        core = ray_core.core_worker()
        if core is not self._core:
            ray_core.keep_for_ever([known.answer for known in self._known.values()])
            self._core, self._known, self._handles = core, {}, {}

    def _send(self, handle: object, known: _Known) -> None:
        _listen_to(known)
        if known.due and known.answer is None and not known.deaf:
            due, known.due = known.due, []
            known.answer = _call(handle, ended, due)
        elif sum(len(one.tasks) for one in known.due) > _MOST_TASKS:
            del known.due[0]

    def settle(self, timeout_s: float) -> bool:
        """Wait until every actor has answered, also to what waited; False when the time ran out."""
        import ray  # noqa: PLC0415 - whoever has scopes has Ray

        until = time.monotonic() + timeout_s
        while answers := self._unanswered():
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            ray.wait(answers, num_returns=len(answers), timeout=left_s)
        return True

    def _unanswered(self) -> list[Reference]:
        """Send what waits for an answer that is there now; return what is still to be answered."""
        with self._lock:
            for actor_id, known in self._known.items():
                handle = self._handles[actor_id]()
                if handle is None:
                    _listen_to(known)
                else:
                    self._send(handle, known)
            return [known.answer for known in self._known.values() if known.answer is not None]


def _listen_to(known: _Known) -> None:
    """Take the answer if it is there."""
    answer = known.answer
    if answer is None or not ray_core.ready(ray_core.core_worker(), [answer]):
        return
    known.answer = None
    try:
        ray_core.read(answer)
    except Exception as error:  # noqa: BLE001 - the actor died, or has no rayguard: it is left alone
        known.deaf = isinstance(error, ImportError)
        log.debug("an actor did not hear that a scope ended: %s", error)


def _call(handle: object, what: Callable[..., int], *args: object) -> Reference:
    token = CURRENT.set(None)  # our own calls are nobody's objects
    try:
        return actor_classes.run_in_actor(handle, what, *args)
    finally:
        CURRENT.reset(token)


ACTORS = _Actors()


def install() -> bool:
    """Begin to notice what is made here; False where this Ray does not let us."""
    return hooks.install(ACTORS.before_call)


def listen(_instance: object) -> int:
    """Run in an actor: note what it makes from now on, and in which call."""
    with harmless("scope across actors"):
        HOLDINGS.tracking = install()
    return 0


def ended(instance: object, announcements: list[Announcement]) -> int:
    """Run in an actor: end what the calls of scopes that are over made here; return how many."""
    listen(instance)
    count = 0
    for announcement in announcements:
        with harmless("scope across actors"):
            count += _end_announced(announcement)
    return count


def _end_announced(announcement: Announcement) -> int:
    core = ray_core.core_worker()
    if core is None:
        return 0
    HOLDINGS.connect(core)
    HOLDINGS.step = max(HOLDINGS.step, announcement.step)
    # Whoever wrote this actor declared nothing here: the newest of each line always stays.
    keep_steps = max(1, announcement.keep_steps)
    with HOLDINGS.lock:
        opened = HOLDINGS.objects.open(HOLDINGS.number(), announcement.step, announcement.caller, keep_steps)
    return len(end_scope(core, opened, announcement.tasks, announcement.caller).ended)
