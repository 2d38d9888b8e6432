"""``RolloutMixin``: for classes that own an inference engine. ``MemoryMixin``: for those that may leak.

The engine's life is ``rayguard.engine.supervision.supervisor``'s; the guarding of ordinary methods is
``rayguard.actors.guard.guard``'s. Here they meet in one actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rayguard.actors.guard import no_recipe
from rayguard.actors.guard.guard import guard_class
from rayguard.actors.life import current_life, publishing
from rayguard.actors.life.incarnation import ActorMemory, Incarnation
from rayguard.actors.life.process_exit import end_process
from rayguard.actors.mark import Guarding, mark_of
from rayguard.actors.memory import heap
from rayguard.actors.memory.relief_actions import HOOK
from rayguard.actors.methods import MARK, leave
from rayguard.actors.token_logs import keep_tokens
from rayguard.engine.context import OfPool, Surroundings
from rayguard.errors import ConfigError, WeightsError
from rayguard.faults.fault import Role
from rayguard.harmless import harmless
from rayguard.options import explained
from rayguard.recovery.memory_policy import MemoryPolicy
from rayguard.recovery.policy import GuardPolicy
from rayguard.tried import VLLM, warn_untried

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rayguard.engine.protocol import Engine
    from rayguard.engine.settings import EngineSettings
    from rayguard.engine.supervision.supervisor import EngineSupervisor
    from rayguard.engine.tokens.log import TokenLog

T = TypeVar("T")


class RolloutMixin:
    """An actor that owns an inference engine and outlives its deaths.

    Write ``build_engine``, call ``start_engine`` in ``__init__`` and use the engine through
    ``with_engine``. With an ``AsyncLLM``, await what ``with_engine`` and ``update_weights`` return; with an
    ``LLM`` they block and return the value.
    """

    _engine_slot: EngineSupervisor | None = None
    _token_log: TokenLog | None = None

    def __init_subclass__(cls, **options: object) -> None:
        """Guard the class that owns an engine, as ``@rayguard.guard`` does; that may be said as well."""
        super().__init_subclass__(**options)
        recipe = vars(cls).get("build_engine")
        if recipe is not None:
            leave(recipe)  # its failures are the supervisor's
        no_recipe.install()
        if "__ray_actor_class__" not in vars(cls):  # not for Ray's own subclass, made by @ray.remote
            marks = [vars(base)[MARK] for base in cls.__mro__ if MARK in vars(base)]
            mark = next(
                (one for one in marks if not one.implied), Guarding(role=Role.ROLLOUT, idempotent=True)
            )
            # What was said of a base holds for what is made of it, as by a pool.
            guard_class(cls, replace(mark, implied=True))

    @leave
    def build_engine(self, settings: EngineSettings) -> Any:
        """Build and return an engine. Called again for each restart, with safer settings.

        ``settings.as_kwargs(model=..., max_num_seqs=...)`` are the engine's arguments: your own values with
        the safe settings in force over them.
        """
        raise NotImplementedError(no_recipe.what_to_write(type(self)))

    @leave
    @explained
    def start_engine(self, *, weights: Any = None, policy: GuardPolicy | None = None) -> None:
        """Build the first engine; returns when it is there.

        Args:
            weights: Where the current weights are: a callable that returns ``rayguard.Weights``, a
                ``WeightSource``, or a checkpoint path. No request is served by an engine that has others.
                Where your own code pushes weights: a callable that takes the new engine and pushes the
                current ones into it (``lambda engine: engine.collective_rpc(...)``), under an ``AsyncLLM``
                on its loop, and awaited. Without it an engine that follows one which you pushed into
                answers nobody until you push again.
            policy: What may be done and for how long; by default what ``@rayguard.guard(policy=...)`` said.

        Raises:
            ConfigError: ``build_engine`` is missing, returns nothing or ignores its settings.
            Exception: What ``build_engine`` raised, when no restart could help.
        """
        if self._engine_slot is not None:
            raise ConfigError("start_engine was called twice: one actor owns one engine")
        if type(self).build_engine is RolloutMixin.build_engine:
            raise ConfigError(no_recipe.what_to_write(type(self)))
        if policy is not None and not isinstance(policy, GuardPolicy):
            raise ConfigError(f"start_engine(policy=...) takes a rayguard.GuardPolicy, got {policy!r}")
        from rayguard.engine.supervision.slot import engine_slot  # noqa: PLC0415

        with harmless("tried versions"):
            warn_untried(VLLM)
        mark, around = mark_of(type(self)), surroundings_of(self)
        self._engine_slot = engine_slot(
            self.build_engine,
            weights=weights,
            policy=policy or (None if mark is None else mark.policy),
            surroundings=around,
        )
        self._engine_slot.start()
        if self._engine_slot.status()["adopted"]:
            current_life.note("its engine outlived it, and goes on in this life")
        lost = self._engine_slot.changes.lost  # then what the last life left was made by other weights
        self._token_log = keep_tokens(self._engine_slot.engine(0.0), around.actor_id, go_on=not lost)
        heap.freeze()

    @overload
    def with_engine(self, use: Callable[[Any], Awaitable[T]]) -> Awaitable[T]: ...
    @overload
    def with_engine(self, use: Callable[[Any], T]) -> T: ...
    @leave
    def with_engine(self, use: Callable[[Any], object]) -> object:
        """Return ``use(engine)``, whatever happens to the engine meanwhile.

        vLLM requests go on where they were cut. A call to vLLM that is no request (``collective_rpc`` ...) is
        made again with the new engine only where it changes nothing. What cannot go on with other engines is
        called again: ``use`` may run twice.

        Raises:
            EngineCallError: The engine died while such a call ran, which may be why.
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

    def __init_subclass__(cls, **options: object) -> None:
        """Guard the class, as ``@rayguard.guard`` does; that may be said as well."""
        super().__init_subclass__(**options)
        offered = vars(cls).get(HOOK)
        if isinstance(offered, FunctionType):
            leave(offered)  # called by the guard itself
        if "__ray_actor_class__" not in vars(cls):
            mark = mark_of(cls) or Guarding()
            memory = mark.policy.memory
            if memory is None or memory.recycle is None:
                mark = replace(mark, policy=replace(mark.policy, memory=MemoryPolicy()))
            guard_class(cls, replace(mark, implied=True))


def surroundings_of(owner: object) -> Surroundings:
    """Return who the engine belongs to that ``owner`` (an actor, or a plain object) starts now."""
    life = Incarnation()
    with harmless("incarnation"):
        life = Incarnation.current()
    memory = ActorMemory(life.actor_id, part="engine")
    name = type(owner).__qualname__.rpartition(".")[2]
    publishing.show(life, name)
    return Surroundings(
        target=name,
        actor_id=life.actor_id,
        job_id=life.job_id,
        node=life.node_id,
        incarnation=life.number,
        gcs_address=life.gcs_address,
        pool=getattr(owner, "rayguard_pool", OfPool()),
        recall=memory.load,
        remember=memory.save,
        changed=publishing.refresh,
        restartable=lambda: life.restartable,
        die=lambda: end_process(None),
    )


def _use(slot: EngineSupervisor, use: Callable[[Any], T]) -> T:
    with slot.turns.turn():
        slot.maintain()
        while True:
            engine = slot.engine(slot.patience_s)
            if slot.weights_pending:
                slot.catch_up()
            try:
                return use(engine.handle)
            except BaseException as error:
                slot.turns.left(engine, error)
                recovery = slot.failed(error, engine) if isinstance(error, Exception) else None
                if recovery is None:
                    _raise_own(error)
                    raise
                recovery.result(slot.patience_s)  # raises when there is no next engine; else: once more
                if (lost := slot.lost_call(error)) is not None:
                    raise lost from error


async def _use_async(slot: EngineSupervisor, use: Callable[[Any], object]) -> object:
    slot.maintain()
    while True:
        engine = await _ready(slot)
        try:
            result = use(engine.handle)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            _refuse_another_loop(engine, error)
            recovery = await asyncio.to_thread(slot.failed, error, engine)
            if recovery is None:
                _raise_own(error)
                raise
            # Shielded: a caller that is cancelled must not cancel the recovery that others wait for.
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(recovery)), slot.patience_s)
            if (lost := slot.lost_call(error)) is not None:
                raise lost from error


async def _update_async(slot: EngineSupervisor) -> str:
    engine = await asyncio.to_thread(slot.engine, slot.patience_s)
    _bind_if_free(engine)
    return await asyncio.to_thread(slot.bring_weights)


async def _ready(slot: EngineSupervisor) -> Engine:
    """Return the engine once it serves with the current weights; never blocks the loop."""
    while (ready := slot.ready) is None:  # by the time a wait is over the next recovery may have begun
        engine = await asyncio.to_thread(slot.engine, slot.patience_s)
        if slot.weights_pending:
            _bind_if_free(engine)
            await asyncio.to_thread(slot.catch_up)
    return ready


def _raise_own(error: BaseException) -> None:
    """Raise what rayguard refused a request with, where an ``AsyncLLM`` wrapped it in its own error."""
    if isinstance(error.__cause__, WeightsError):
        raise error.__cause__


def _bind_if_free(engine: Engine) -> None:
    """Weights come by way of the engine's own loop, from whichever loop that is asked."""
    if engine.loop is None:
        _bind(engine)


def _refuse_another_loop(engine: Engine, error: Exception) -> None:
    """Say what is wrong where vLLM says that something is, or that its engine is dead, as its loop is."""
    if isinstance(error.__cause__, ConfigError) or type(error).__name__ == "EngineDeadError":
        _bind(engine)


def _bind(engine: Engine) -> None:
    """Tell the engine which loop it lives on: its sockets belong to the first one that uses it."""
    bind = getattr(engine, "bind", None)
    if bind is not None:
        with contextlib.suppress(RuntimeError):
            bind()
