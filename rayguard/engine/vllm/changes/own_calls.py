"""The user's own calls into vLLM's workers, on their way to the core: they may change the weights.

What such a call means is ``rayguard.engine.weights.changes``; who is refused then is
``rayguard.engine.vllm.client``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from rayguard.engine.vllm.kept.wake_room import WakeRoom
from rayguard.engine.vllm.receiver import FINGERPRINT
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rayguard.engine.vllm.interfaces import EngineCoreClient
    from rayguard.engine.weights.changes import WeightChanges

    Looked = Sequence[object] | None  # a fingerprint of each worker; None where there was nothing to see

_LOOK_S = 60.0
_SLEEPS = frozenset({"sleep", "sleep_async", "wake_up", "wake_up_async"})
_AWAY, _BACK = (
    frozenset({"sleep", "checkpoint_prepare", "discard"}),
    frozenset({"wake_up", "checkpoint_restore"}),
)
WATCHED = frozenset({"collective_rpc", "collective_rpc_async"}) | _SLEEPS


class OwnCalls:
    """Stands before ``collective_rpc``, ``sleep`` and ``wake_up`` of one core after the other."""

    def __init__(self, changes: WeightChanges) -> None:
        self.changes = changes
        self.touched = False  # since the last push: weights may be others than were pushed
        self.touches = 0  # of any kind, pushes included; only grows
        self._room = WakeRoom()
        self._mute: object = None  # the core that gives no fingerprints
        self._asleep: object = None  # the core whose weights may be away: to read them would end it

    @contextlib.contextmanager
    def pushing(self) -> Iterator[None]:
        """Give a push that ends what it may have been touched with: what comes meanwhile counts again."""
        before, self.touched = self.touched, False
        self.touches += 1
        try:
            yield
        except BaseException:
            self.touched = self.touched or before
            raise

    def before(self, core: EngineCoreClient, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, which makes the method ``name`` of ``core``, watched."""
        if name in _SLEEPS:
            return self._sleeps(core, name, call)
        return self._async(core, call) if name.endswith("_async") else self._sync(core, call)

    def _sleeps(self, core: EngineCoreClient, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def passed(*args: Any, **kwargs: Any) -> Any:
            self.touched, self.touches = True, self.touches + 1
            if name.startswith("sleep"):
                self._asleep = core
                self._room.falls_asleep(core)
                return call(*args, **kwargs)
            tags = args[0] if args else kwargs.get("tags")
            self._room.awakes(core, whole=tags is None)
            if tags is None or "weights" in tags:
                self._asleep = None
            return call(*args, **kwargs)

        return passed

    def _sync(self, core: EngineCoreClient, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def watched(method: object, timeout: Any = None, args: Any = (), kwargs: Any = None) -> Any:
            name = self._touches(core, method, args)
            before, done = self._look(core, name), False
            try:
                answer = call(method, timeout, args, kwargs)
                done = True
            finally:
                after = None if before is None else self._look(core, name)
                self._book(name, before, after, done=done)
            return answer

        return watched

    def _async(self, core: EngineCoreClient, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        async def watched(method: object, timeout: Any = None, args: Any = (), kwargs: Any = None) -> Any:
            name = self._touches(core, method, args)
            before, done = await self._look_async(core, name), False
            try:
                answer = await call(method, timeout, args, kwargs)
                done = True
            finally:
                after = None if before is None else await self._look_async(core, name)
                self._book(name, before, after, done=done)
            return answer

        return watched

    def _touches(self, core: EngineCoreClient, method: object, args: Any) -> str:
        """Return what this call is known by."""
        name = method if isinstance(method, str) else f"function {_name(method)}"
        if name == "apply_model" and args:
            name = f"apply_model {_name(args[0])}"
        self.touched, self.touches = True, self.touches + 1
        if name in _AWAY:
            self._asleep = core
        elif name in _BACK:
            self._asleep = None
        return name

    def _book(self, name: str, before: Looked, after: Looked, *, done: bool) -> None:
        if not done and after is None:
            return  # the caller knows that it failed, and most often this life is over
        differ = None if before is None or after is None else before != after
        with harmless("weights"):
            self.changes.called(name, time.monotonic(), differ=differ, done=done)

    def _blind(self, core: EngineCoreClient, name: str) -> bool:
        return not self.changes.is_unclear(name) or core in (self._asleep, self._mute)

    def _look(self, core: EngineCoreClient, name: str) -> Looked:
        if self._blind(core, name):
            return None
        try:
            return core.collective_rpc(FINGERPRINT, _LOOK_S, (), None)
        except Exception:  # noqa: BLE001 - a worker without our methods, or a dead one
            self._mute = core
        return None

    async def _look_async(self, core: EngineCoreClient, name: str) -> Looked:
        if self._blind(core, name):
            return None
        try:
            return await asyncio.wait_for(core.collective_rpc_async(FINGERPRINT, _LOOK_S, (), None), _LOOK_S)
        except Exception:  # noqa: BLE001 - as above
            self._mute = core
        return None


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
