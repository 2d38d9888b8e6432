"""``object_scope``: what a step made ends with it.

A block, or a decorator for functions and methods of all four kinds. At its end, objects that it put and
results that it asked for are let go where only data still holds them, except those of each line's newest
``keep_steps`` scopes. What is proved before anything is touched stands in ``proof``; how a reference ends,
in ``core``.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rayguard.errors import ConfigError
from rayguard.objects import core as ray_core
from rayguard.objects.holdings import CURRENT, HOLDINGS, Live, current, quietly
from rayguard.objects.reaper import Reaped, reap, refresh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Token
    from types import TracebackType

    from typing_extensions import Self

F = TypeVar("F", bound="Callable[..., Any]")
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
        with quietly("object_scope"):
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
            with quietly("object_scope"):
                self.ended = _end(live)

    def keep(self, value: T) -> T:
        """Take the references in ``value`` (one, or containers of them) out of all scopes; return it."""
        with quietly("object_scope"):
            ids = references_in(value)
            with HOLDINGS.lock:
                HOLDINGS.objects.keep(ids)
                HOLDINGS.actors.keep(ids)
        return value

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Wait until the actors that were called have ended what they made; False when the time ran out."""
        from rayguard.objects.across import ACTORS  # noqa: PLC0415 - loads Ray's hooks

        return ACTORS.settle(timeout_s)

    def __call__(self, function: F) -> F:
        """Return ``function`` with a scope of its own around each call; what it returns or yields is kept."""
        return _scoped(function, self)


@overload
def object_scope(step: F, /) -> F: ...
@overload
def object_scope(step: int | None = None, /, *, keep_steps: int = 1, across: bool = True) -> ObjectScope: ...
def object_scope(step: Any = None, /, *, keep_steps: int = 1, across: bool = True) -> Any:
    """End what a step makes.

    A block, ``with object_scope(step) as scope:``, or a decorator, ``@object_scope``, bare or with options.
    ``step``: its number; a decorated function's comes from its argument ``step`` (``global_step``,
    ``iteration``), the attribute of that name, or a counter. ``keep_steps``: of the objects that one line
    makes, those of so many newest scopes stay (1: "the latest weights" in an attribute are no leak; 0: all
    end at once). ``across``: end also what the actors called within it made by those calls.

    Reading an ended reference raises ``rayguard.objects.ended.ScopeEndedError``. Raises ``ConfigError``.
    """
    if callable(step):
        return ObjectScope(None, keep_steps=keep_steps, across=across)(step)
    return ObjectScope(step, keep_steps=keep_steps, across=across)


_counter = itertools.count()


def _opened(step: int | None, keep_steps: int, *, across: bool) -> Live | None:
    core = ray_core.core_worker()
    if core is None:
        return None  # Ray is not running here (or is Ray Client): there is nothing to end
    from rayguard.objects.across import install  # noqa: PLC0415 - Ray is there now

    install()
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
        with quietly("object_scope"):
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
        from rayguard.objects.across import ACTORS  # noqa: PLC0415 - loaded already

        with quietly("scope across actors"):
            ACTORS.end(live)
    reaped = _end_objects(core, live)
    if len(HOLDINGS.actors):
        from rayguard.objects.handles import end_actors  # noqa: PLC0415

        with quietly("actor handles"):
            end_actors(core, live.for_actors)
    return reaped


def _end_objects(core: Any, live: Live) -> Reaped:
    with HOLDINGS.lock:
        nothing = not live.tasks and HOLDINGS.objects.idle()
    if nothing:
        return Reaped()
    refresh(core, tasks=live.tasks)
    with HOLDINGS.lock:
        HOLDINGS.objects.claim(live.opened, live.tasks)
        HOLDINGS.objects.end(live.opened)
        due = HOLDINGS.objects.due(HOLDINGS.live_lanes())
    reaped = reap(core, due)
    HOLDINGS.totals.waiting = len(due) - len(reaped.ended)
    return reaped


def _hand_over(value: Any, live: Live | None) -> None:
    """Keep what a scoped function gives away: it belongs to the scope around it, if there is one."""
    ids = references_in(value) if live is not None else []
    if ids:
        heir = live.parent.opened if live is not None and live.parent is not None else None
        with HOLDINGS.lock:
            HOLDINGS.objects.keep(ids, heir)
            HOLDINGS.actors.keep(ids)


def references_in(value: Any, levels: int = _LEVELS) -> list[str]:
    """Return the ids of references and actor handles in ``value``, its containers and its attributes."""
    if len(ids := _own_id(value)):
        return ids
    if levels == 0 or isinstance(value, (str, bytes, int, float, type(None))):
        return []
    if isinstance(value, dict):
        inside: Any = itertools.chain(value.keys(), value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = value
    else:
        inside = _fields(value)
    return [one for part in itertools.islice(inside, _MOST_KEPT) for one in references_in(part, levels - 1)]


def _own_id(value: Any) -> list[str]:
    if type(value).__module__.partition(".")[0] != "ray":
        return []
    actor_id = getattr(value, "_ray_actor_id", None)
    if actor_id is not None:
        return [actor_id.hex()]
    kind: Any = type(value)
    return [value.hex()] if kind is ray_core.reference_type() else []


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, one.name, None) for one in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).values()) if not callable(value) else []


def _step_of(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], int | None]:
    """Return how to learn the step of a call."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    place = {name: names.index(name) for name in _STEP_NAMES if name in names}
    is_method = names[:1] == ["self"]

    def step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
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


def _scoped(function: F, like: ObjectScope) -> F:
    from rayguard.objects.scoped import wrapped  # noqa: PLC0415 - the two know each other

    step_of = _step_of(function) if like.step is None else lambda *_: like.step
    keep_steps, across = like.keep_steps, like.across

    def scope_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _CallScope:
        return _CallScope(step_of(args, kwargs), keep_steps, across=across)

    return wrapped(function, scope_of)


class _CallScope:
    """The scope of one call of a decorated function: may be entered again for each turn of a generator."""

    def __init__(self, step: int | None, keep_steps: int, *, across: bool) -> None:
        self._live: Live | None = None
        with quietly("object_scope"):
            self._live = _opened(step, keep_steps, across=across)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make it the current scope for a while."""
        token = CURRENT.set(self._live) if self._live is not None else None
        try:
            yield
        finally:
            if token is not None:
                with quietly("object_scope"):
                    CURRENT.reset(token)

    def gives(self, value: Any) -> None:
        """Keep what the function gives to its caller."""
        with quietly("object_scope"):
            _hand_over(value, self._live)

    def end(self) -> None:
        """End the scope."""
        if self._live is not None:
            self._live.over = True
            with quietly("object_scope"):
                _end(self._live)
