"""``RolloutMixin``: for classes that own an inference engine. ``MemoryMixin``: for those that may leak.

The engine's life is ``rayguard.engine.supervisor``'s; the guarding of ordinary methods is
``rayguard.actors.guard``'s. Here they meet in one actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rayguard.actors.guard import guard_class
from rayguard.actors.hands import HOOKS
from rayguard.actors.mark import Guarding, mark_of
from rayguard.actors.methods import MARK, leave
from rayguard.actors.surroundings import surroundings_of
from rayguard.actors.tokens import keep_tokens
from rayguard.errors import ConfigError
from rayguard.faults.fault import Role
from rayguard.recovery.memory_policy import MemoryPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rayguard.engine.protocol import Engine
    from rayguard.engine.settings import EngineSettings
    from rayguard.engine.supervisor import EngineSupervisor
    from rayguard.engine.token_log import TokenLog
    from rayguard.recovery.policy import GuardPolicy

T = TypeVar("T")


class RolloutMixin:
    """An actor that owns an inference engine and outlives its deaths.

    Write ``build_engine``, call ``start_engine`` in ``__init__`` and use the engine through
    ``with_engine``. With an ``AsyncLLM``, await what ``with_engine`` and ``update_weights`` return; with an
    ``LLM`` they block and return the value.
    """

    _engine_slot: EngineSupervisor | None = None
    _token_log: TokenLog | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Guard the class that owns an engine, as ``@rayguard.guard`` does; that may be said as well."""
        super().__init_subclass__(**options)
        recipe = vars(cls).get("build_engine")
        if recipe is not None:
            leave(recipe)  # its failures are the supervisor's
        if "__ray_actor_class__" not in vars(cls):  # not for Ray's own subclass, made by @ray.remote
            marks = [vars(base)[MARK] for base in cls.__mro__ if MARK in vars(base)]
            said = next((mark for mark in marks if not mark.implied), Guarding(role=Role.ROLLOUT))
            # What was said of a base holds for what is made of it, as by a pool.
            guard_class(cls, replace(said, implied=True))

    @leave
    def build_engine(self, settings: EngineSettings) -> Any:
        """Build and return an engine. Called again for each restart, with safer settings.

        ``settings.as_kwargs(model=..., max_num_seqs=...)`` are the engine's arguments: your own values with
        the safe settings in force over them.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no build_engine(self, settings)")

    @leave
    def start_engine(self, *, weights: Any = None, policy: GuardPolicy | None = None) -> None:
        """Build the first engine; returns when it is there.

        Args:
            weights: Where the current weights are: a callable that returns ``rayguard.Weights``, a
                ``WeightSource``, or a checkpoint path. No request is served by an engine that has others.
            policy: What may be done and for how long; by default what ``@rayguard.guard(policy=...)`` said.

        Raises:
            ConfigError: ``build_engine`` is missing, returns nothing or ignores its settings.
            Exception: What ``build_engine`` raised, when no restart could help.
        """
        if self._engine_slot is not None:
            raise ConfigError("start_engine was called twice: one actor owns one engine")
        if type(self).build_engine is RolloutMixin.build_engine:
            raise ConfigError(
                f"{type(self).__qualname__} needs build_engine(self, settings), which returns its engine"
            )
        from rayguard.engine.slot import engine_slot  # noqa: PLC0415

        mark, around = mark_of(type(self)), surroundings_of(self)
        self._engine_slot = engine_slot(
            self.build_engine,
            weights=weights,
            policy=policy or (None if mark is None else mark.policy),
            surroundings=around,
        )
        self._engine_slot.start()
        self._token_log = keep_tokens(self._engine_slot.engine(0.0), around.actor_id)

    @overload
    def with_engine(self, use: Callable[[Any], Awaitable[T]]) -> Awaitable[T]: ...
    @overload
    def with_engine(self, use: Callable[[Any], T]) -> T: ...
    @leave
    def with_engine(self, use: Callable[[Any], Any]) -> Any:
        """Return ``use(engine)``, whatever happens to the engine meanwhile.

        vLLM requests go on where they were cut. What cannot go on (other calls, other engines) is called
        again with the new engine: ``use`` may run twice.
        """
        slot = self._slot()
        return _use_async(slot, use) if slot.is_async else _use(slot, use)

    @leave
    def update_weights(self) -> Any:
        """Bring the engine to the source's current version and return that version.

        Raises:
            WeightsError: The source failed or its weights are unfit; the engine keeps what it had.
        """
        slot = self._slot()
        return _update_async(slot) if slot.is_async else slot.bring_weights()

    @leave
    def engine_status(self) -> dict[str, Any]:
        """Return what runs here: epoch, rung, settings, weight version, process ids, counters."""
        return self._slot().status()

    @leave
    def stop_engine(self) -> None:
        """End the engine to its last process."""
        slot, self._engine_slot = self._engine_slot, None
        log, self._token_log = self._token_log, None
        if slot is not None:
            slot.close()
        if log is not None:
            log.close()

    def _slot(self) -> EngineSupervisor:
        if self._engine_slot is None:
            raise ConfigError(
                f"{type(self).__qualname__} has no engine yet: call self.start_engine() in __init__"
            )
        return self._engine_slot


class MemoryMixin:
    """An actor whose memory is watched, and relieved before Ray kills it: ``guard(memory=MemoryPolicy())``.

    What a class may offer, all of it by name and none of it needed: ``state_dict()`` and
    ``load_state_dict(state)``, by which a growing process can be replaced between two calls without a loss;
    ``reduce_memory(wanted_bytes)``, which makes batches or concurrency smaller.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Guard the class, as ``@rayguard.guard`` does; that may be said as well."""
        super().__init_subclass__(**options)
        for hook in HOOKS:
            offered = vars(cls).get(hook)
            if isinstance(offered, FunctionType):
                leave(offered)  # called by the guard itself
        if "__ray_actor_class__" not in vars(cls):
            said = mark_of(cls) or Guarding()
            memory = said.policy.memory
            if memory is None or memory.recycle is None:
                said = replace(said, policy=replace(said.policy, memory=MemoryPolicy()))
            guard_class(cls, replace(said, implied=True))


def _use(slot: EngineSupervisor, use: Callable[[Any], T]) -> T:
    slot.maintain()
    while True:
        engine = slot.engine(slot.patience_s)
        if slot.weights_pending:
            slot.bring_weights()
        try:
            return use(engine.handle)
        except Exception as error:
            recovery = slot.failed(error, engine)
            if recovery is None:
                raise
            recovery.result(slot.patience_s)  # raises when there is no next engine; else: once more


async def _use_async(slot: EngineSupervisor, use: Callable[[Any], Any]) -> Any:
    slot.maintain()
    while True:
        engine = await _ready(slot)
        try:
            result = use(engine.handle)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            recovery = await asyncio.to_thread(slot.failed, error, engine)
            if recovery is None:
                raise
            # Shielded: a caller that is cancelled must not cancel the recovery that others wait for.
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(recovery)), slot.patience_s)


async def _update_async(slot: EngineSupervisor) -> str:
    engine = await asyncio.to_thread(slot.engine, slot.patience_s)
    _bind(engine)
    return await asyncio.to_thread(slot.bring_weights)


async def _ready(slot: EngineSupervisor) -> Engine:
    """Return the engine once it serves with the current weights; never blocks the loop."""
    while (ready := slot.ready) is None:  # by the time a wait is over the next recovery may have begun
        engine = await asyncio.to_thread(slot.engine, slot.patience_s)
        if slot.weights_pending:
            _bind(engine)
            await asyncio.to_thread(slot.bring_weights)
    return ready


def _bind(engine: Engine) -> None:
    """Tell the engine which loop it lives on: its sockets belong to the first one that uses it."""
    bind = getattr(engine, "bind", None)
    if bind is not None:
        with contextlib.suppress(RuntimeError):
            bind()
