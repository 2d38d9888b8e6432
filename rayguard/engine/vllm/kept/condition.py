"""What its owner has put an engine into beyond building it: asleep, paused, adapters loaded.

Noted from the calls that succeeded; a rebuilt engine is put into it again, before it is sent any request. A
call that a death cut off did not happen: the next engine is as it was before that call, whose caller is told
or makes it again. Values only, but for ``noting`` and ``replay``; the calls have vLLM's names, without
``_async``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rayguard.engine.protocol import SERVING, Standing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

_log = logging.getLogger("rayguard")
_ADAPTERS = frozenset({"add_lora", "remove_lora", "pin_lora"})
_STOPS = frozenset({"pause_scheduler", "sleep", "release_kv_cache_memory"})
_CHANGES_NOTHING = "reset_prefix_cache"  # it is noted by others
NOTED = _ADAPTERS | _STOPS | {"resume_scheduler", "wake_up", _CHANGES_NOTHING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that the engine answered. ``at`` is monotonic."""

    name: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    at: float = 0.0

    def given(self, name: str, default: object) -> object:
        """Return its first argument, which vLLM calls ``name``."""
        return self.kwargs.get(name, self.args[0] if self.args else default)

    def __str__(self) -> str:
        given = (*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items()))
        return f"{self.name}({', '.join(given)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCondition:
    """The calls that put a new engine into the state of the last one: adapters, then what stops it."""

    adapters: tuple[Call, ...] = ()
    stops: tuple[Call, ...] = ()  # empty: it serves

    def after(self, call: Call, answer: object) -> EngineCondition:
        """Return the state after ``call``, which the engine answered with ``answer``."""
        if call.name == _CHANGES_NOTHING:
            return self
        if call.name in _ADAPTERS:
            return replace(self, adapters=tuple(self._adapters_after(call)))
        if call.name == "wake_up":
            # Where memory still sleeps, so does the scheduler; else all of it is awake, whatever stopped it.
            return replace(self, stops=() if answer is not False else _with(self.stops, call))
        if call.name == "resume_scheduler" and not any(map(_frees_memory, self.stops)):
            return replace(self, stops=())
        return replace(self, stops=_with(self.stops, call))

    def _adapters_after(self, call: Call) -> Iterator[Call]:
        changed = _adapter(call)
        for one in self.adapters:
            if _adapter(one) != changed or (call.name == "pin_lora" and one.name == "add_lora"):
                yield one
        if call.name != "remove_lora":
            yield call

    def calls(self) -> tuple[Call, ...]:
        """Return what is to be called on a new engine."""
        return (*self.adapters, *self.stops)

    def standing(self) -> Standing:
        """Return what the engine does for its owner now."""
        if not self.stops:
            return SERVING
        asleep = any(_frees_memory(one) for one in self.stops)
        first = self.stops[0]
        return Standing(state="asleep" if asleep else "paused", call=str(first), since=first.at)


def _with(stops: tuple[Call, ...], call: Call) -> tuple[Call, ...]:
    last = stops[-1] if stops else call
    again = bool(stops) and (last.name, last.args, last.kwargs) == (call.name, call.args, call.kwargs)
    return stops if again else (*stops, call)


def _frees_memory(call: Call) -> bool:
    level = call.given("level", 1)
    return call.name == "sleep" and isinstance(level, int) and level > 0


def _adapter(call: Call) -> object:
    given = call.given("lora_request" if call.name == "add_lora" else "lora_id", None)
    return getattr(given, "lora_int_id", given)


def noting(
    name: str, call: Callable[..., Any], note: Callable[[Call, object], None]
) -> Callable[..., object]:
    """Return ``call``, of which ``note`` is told once the engine has answered it."""

    def noted(args: tuple[object, ...], kwargs: dict[str, object], answer: object) -> object:
        plain = name.removesuffix("_async")
        note(Call(name=plain, args=args, kwargs=kwargs, at=time.monotonic()), answer)
        return answer

    async def awaited(*args: object, **kwargs: object) -> object:
        return noted(args, kwargs, await call(*args, **kwargs))

    def called(*args: object, **kwargs: object) -> object:
        return noted(args, kwargs, call(*args, **kwargs))

    return awaited if name.endswith("_async") else called


def replay(state: EngineCondition, core: object) -> None:
    """Put ``core``, a new one under an ``LLM``, into ``state``; raises what the call raises that stops it."""
    for call in state.calls():
        with _passed_over(call):
            _method(core, call.name)(*call.args, **call.kwargs)


async def replay_async(state: EngineCondition, core: object) -> None:
    """Do as ``replay`` under an ``AsyncLLM``, on its loop."""
    for call in state.calls():
        with _passed_over(call):
            await _method(core, f"{call.name}_async")(*call.args, **call.kwargs)


def _method(core: object, name: str) -> Callable[..., Awaitable[object]]:
    method: Callable[..., Awaitable[object]] = getattr(core, name)
    return method


@contextlib.contextmanager
def _passed_over(call: Call) -> Iterator[None]:
    """Go on without an adapter that cannot be loaded: a request that names it gets that error of its own."""
    try:
        yield
    except Exception as error:
        if call.name not in _ADAPTERS:
            raise
        _log.exception("rayguard: %s failed on the rebuilt engine, which goes on without: %s", call, error)
