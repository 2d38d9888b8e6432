"""``object_scope``: what a step made ends with it.

A block, or a decorator for functions and methods of all four kinds. At its end, objects that it put and
results that it asked for are let go where only data still holds them, except those of each line's newest
``keep_steps`` scopes. What is proved before anything is touched stands in ``proof``; how a reference ends,
in ``rayguard.ray_internals.object_refs``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, overload

from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.objects.handles import end_actors
from rayguard.objects.holdings import CURRENT, HOLDINGS, Live, current
from rayguard.objects.reaper import Reaped, end_scope
from rayguard.objects.remote_scopes import ACTORS, install
from rayguard.objects.scoped import wrapped
from rayguard.options import explained
from rayguard.ray_internals import object_refs as ray_core
from rayguard.ray_internals.actor_classes import actor_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextvars import Token
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Self

    Arguments: TypeAlias = tuple[object, ...]
    StepOf: TypeAlias = Callable[[Arguments, Mapping[str, object]], int | None]

F = TypeVar("F", bound="Callable[..., object]")
T = TypeVar("T")
_MOST_KEPT = 100_000
_LEVELS = 4
_STEP_NAMES = ("step", "global_step", "global_steps", "iteration")


class ObjectScope:
    """One scope: a context manager; call it with a function to open one like it around each call.

    ``ended`` says after its end which objects were let go here, how many bytes they were, and why others were
    left alone.
    """

    def __init__(self, step: int | None = None, *, keep_steps: int = 1, across: bool = True) -> None:
        if keep_steps < 0 or isinstance(keep_steps, bool):
            raise ConfigError(f"keep_steps must be 0 or more, not {keep_steps!r}")
        if step is not None and (not isinstance(step, int) or step < 0):
            raise ConfigError(f"object_scope(step): step must be a number from 0 on, not {step!r}")
        self.step = step
        self.keep_steps = keep_steps
        self.across = across
        self.ended = Reaped()
        self._open: list[tuple[Live | None, Token[Live | None] | None]] = []

    def __enter__(self) -> Self:
        live: Live | None = None
        token = None
        with harmless("object_scope"):
            live = _opened(self.step, self.keep_steps, across=self.across)
            token = CURRENT.set(live)
        self._open.append((live, token))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, token = self._open.pop()
        _leave(token, live)
        if live is not None:
            with harmless("object_scope"):
                self.ended = _end(live)

    def keep(self, value: T) -> T:
        """Take the references in ``value`` (one, or containers of them) out of all scopes; return it."""
        with harmless("object_scope"):
            ids = references_in(value)
            with HOLDINGS.lock:
                HOLDINGS.objects.keep(ids)
                HOLDINGS.actors.keep(ids)
        return value

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Wait until the actors that were called have ended what they made; False when the time ran out."""
        return ACTORS.settle(timeout_s)

    def __call__(self, function: F) -> F:
        """Return ``function`` with a scope of its own around each call; what it returns or yields is kept."""
        step = self.step
        step_of = _step_of(function) if step is None else lambda *_: step
        return wrapped(
            function,
            functools.partial(_CallScope, step_of=step_of, keep_steps=self.keep_steps, across=self.across),
        )


@overload
def object_scope(step: F, /) -> F: ...
@overload
def object_scope(step: int | None = None, /, *, keep_steps: int = 1, across: bool = True) -> ObjectScope: ...
@explained
def object_scope(
    step: F | int | None = None, /, *, keep_steps: int = 1, across: bool = True
) -> F | ObjectScope:
    """End what a step makes.

    A block, ``with object_scope(step) as scope:``, or a decorator, ``@object_scope``, bare or with options.
    ``step``: its number; a decorated function's comes from its argument ``step`` (``global_step``,
    ``iteration``), the attribute of that name, or a counter. ``keep_steps``: of the objects that one line
    makes, those of so many newest scopes stay (1: "the latest weights" in an attribute are no leak; 0: all
    end at once). ``across``: end also what the actors called within it made by those calls.

    Reading an ended reference raises ``rayguard.objects.scope_ended_error.ScopeEndedError``. Raises
    ``ConfigError``.
    """
    if callable(step):
        return ObjectScope(None, keep_steps=keep_steps, across=across)(step)
    return ObjectScope(step, keep_steps=keep_steps, across=across)


_counter = itertools.count()


def _opened(step: int | None, keep_steps: int, *, across: bool) -> Live | None:
    core = ray_core.core_worker()
    if core is None:
        return None  # Ray is not running here (or is Ray Client): there is nothing to end
    if not install():
        return None  # it was said: this Ray does not let us see what is made
    HOLDINGS.connect(core)
    number = HOLDINGS.number()
    step = step if step is not None else next(_counter)
    HOLDINGS.step = max(HOLDINGS.step, step)
    lane = HOLDINGS.lane()
    with HOLDINGS.lock:
        opened = HOLDINGS.objects.open(number, step, lane, keep_steps)
        for_actors = HOLDINGS.actors.open(number, step, lane, keep_steps)
    return Live(opened, for_actors, across, parent=current())


def _leave(token: Token[Live | None] | None, live: Live | None) -> None:
    if live is not None:
        live.over = True
    if token is not None:
        with harmless("object_scope"):
            try:
                CURRENT.reset(token)
            except ValueError:  # a generator that was finished in another context: `over` is enough there
                return


def _end(live: Live) -> Reaped:
    core = ray_core.core_worker()
    if core is None or core is not HOLDINGS.core:
        return Reaped()
    HOLDINGS.totals.scopes += 1
    if live.actors:
        with harmless("scope across actors"):
            ACTORS.end(live)
    reaped = _end_objects(core, live)
    if len(HOLDINGS.actors):
        with harmless("actor handles"):
            end_actors(core, live.for_actors)
    return reaped


def _end_objects(core: object, live: Live) -> Reaped:
    with HOLDINGS.lock:
        nothing = not live.tasks and HOLDINGS.objects.idle()
    if nothing:
        return Reaped()
    reaped = end_scope(core, live.opened, live.tasks)
    HOLDINGS.totals.waiting = sum(count for _, count in reaped.waiting)
    return reaped


def _hand_over(value: object, live: Live | None) -> None:
    """Keep what a scoped function gives away: it belongs to the scope around it, if there is one."""
    ids = references_in(value) if live is not None else []
    if ids:
        heir = live.parent.opened if live is not None and live.parent is not None else None
        with HOLDINGS.lock:
            HOLDINGS.objects.keep(ids, heir)
            HOLDINGS.actors.keep(ids)


def references_in(value: object, levels: int = _LEVELS) -> list[str]:
    """Return the ids of references and actor handles in ``value``, its containers and its attributes."""
    own_id = _own_id(value)
    if own_id:
        return [own_id]
    if levels == 0 or isinstance(value, (str, bytes, int, float, type(None))):
        return []
    if isinstance(value, dict):
        inside: Iterable[object] = itertools.chain(value.keys(), value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = value
    else:
        inside = _fields(value)
    return [one for part in itertools.islice(inside, _MOST_KEPT) for one in references_in(part, levels - 1)]


def _own_id(value: object) -> str:
    if type(value).__module__.partition(".")[0] != "ray":
        return ""
    return value.hex() if ray_core.is_reference(value) else actor_id(value)


def _fields(value: object) -> Iterable[object]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, one.name, None) for one in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).values()) if not callable(value) else []


def _step_of(function: Callable[..., object]) -> StepOf:
    """Return how to learn the step of a call."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    place = {name: names.index(name) for name in _STEP_NAMES if name in names}
    is_method = names[:1] == ["self"]

    def step(args: Arguments, kwargs: Mapping[str, object]) -> int | None:
        for name, index in place.items():
            value = kwargs.get(name, args[index] if index < len(args) else None)
            if isinstance(value, int) and value >= 0:
                return int(value)
        for name in _STEP_NAMES if is_method and args else ():
            value = getattr(args[0], name, None)
            if isinstance(value, int) and value >= 0:
                return int(value)
        return None

    return step


class _CallScope:
    """The scope of one call of a decorated function: may be entered again for each turn of a generator."""

    def __init__(
        self, args: Arguments, kwargs: Mapping[str, object], *, step_of: StepOf, keep_steps: int, across: bool
    ) -> None:
        self._live: Live | None = None
        with harmless("object_scope"):
            self._live = _opened(step_of(args, kwargs), keep_steps, across=across)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make it the current scope for a while."""
        token = CURRENT.set(self._live) if self._live is not None else None
        try:
            yield
        finally:
            if token is not None:
                with harmless("object_scope"):
                    CURRENT.reset(token)

    def gives(self, value: object) -> None:
        """Keep what the function gives to its caller."""
        with harmless("object_scope"):
            _hand_over(value, self._live)

    def close(self) -> None:
        """End the scope."""
        if self._live is not None:
            self._live.over = True
            with harmless("object_scope"):
                _end(self._live)
