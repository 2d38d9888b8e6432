"""One rollout actor of OpenRLHF, its engine watched and built again in its place.

The actor goes on with the object that it holds: requests go on where they were cut. A new engine gets the
weights that were pushed last before it serves; where they were not kept it answers nobody until the next
whole push. The group that they come by died with the engine: a push by it is refused at once, until whoever
pushes has made it anew (``weight_group``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import types
import weakref
from typing import TYPE_CHECKING, Any

from rayguard.actors.guard.mixins import surroundings_of
from rayguard.actors.life.incarnation import ActorMemory
from rayguard.engine.supervision.slot import engine_slot
from rayguard.errors import ConfigError, WeightsError
from rayguard.frameworks.openrlhf import in_engine, weight_file
from rayguard.frameworks.openrlhf.weight_file import PushKept
from rayguard.harmless import counted, harmless

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rayguard.engine.settings import EngineSettings
    from rayguard.engine.supervision.supervisor import EngineSupervisor

REBUILDING, LOST, JOINED = "rebuilding", "lost", ""
_MEMORY = "openrlhf"
_GROUP_LOST = (
    "the engine of this actor died and was built again, with the weights that were pushed last; the group by "
    "which weights are pushed died with it, and was not made anew. Restart the job from its last checkpoint"
)
_log = logging.getLogger("rayguard")
_rollouts: weakref.WeakKeyDictionary[object, GuardedRollout] = weakref.WeakKeyDictionary()


def rollout_of(actor: object) -> GuardedRollout | None:
    """Return what looks after an actor's engine; None for one that is left alone."""
    return _rollouts.get(actor)


def look_after(
    actor: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> GuardedRollout | None:
    """Return what will look after the engine of an actor that is being made so; None where that cannot be."""
    backend = kwargs.get("distributed_executor_backend")
    if args or backend == "ray":
        why = "its workers are Ray actors of their own" if backend == "ray" else "its arguments have no names"
        _log.warning("rayguard: the engine of this %s is not guarded: %s", type(actor).__name__, why)
        return None
    guarded = _rollouts[actor] = GuardedRollout(actor)
    return guarded


def group_state(actor: object) -> str:
    """Say whether the engine of an actor is in the group for weights. Called in the actor, by Ray."""
    guarded = rollout_of(actor)
    return JOINED if guarded is None else guarded.group_state


class GuardedRollout:
    """Looks after one actor's engine.

    Invariant: an engine that follows one which was pushed into serves with those weights, or nobody.
    """

    def __init__(self, actor: object) -> None:
        self._actor = weakref.ref(actor)
        self._around = surroundings_of(actor)
        self.slot: EngineSupervisor | None = None  # None until it is built, and where it is not ours
        self._values: dict[str, Any] = {}  # what it is built with
        self._vllm: Any = None
        self._file = weight_file.made()
        weakref.finalize(self, os.close, self._file)
        self._life = 0  # of the engine
        self._joined: int | None = None  # the life that joined the group for weights
        self._whole_in: int | None = None  # the life that the last whole push went to
        self._pushes = 0  # that came to their end
        self._first = ""  # the parameter that each push begins with
        self._into: int | None = None  # the life that the push under way goes to
        self._memory = ActorMemory(self._around.actor_id, _MEMORY)
        self._was_pushed = bool(self._memory.load()) if self._around.incarnation else False

    # -- how it is built

    @contextlib.contextmanager
    def building(self, names: dict[str, Any]) -> Iterator[None]:
        """Have the engine that OpenRLHF builds meanwhile, by what ``names`` calls ``vllm``, be ours."""
        before = self._vllm = names["vllm"]
        names["vllm"] = _Vllm(before, self._made)
        try:
            yield
        finally:
            names["vllm"] = before

    def _made(self, engine_args: object) -> object:
        """Return an engine as ``AsyncLLMEngine.from_engine_args`` does."""
        self._values = dict(getattr(self._actor(), "kwargs", {}))
        slot = None
        try:
            slot = engine_slot(self._build, weights=self._replay, surroundings=self._around)
            slot.start()
        except ConfigError as error:  # a rule of ours, not vLLM's
            if slot is not None:
                slot.close()
            counted("openrlhf", error)
            return self._vllm.AsyncLLMEngine.from_engine_args(engine_args)
        self.slot = slot
        return slot.engine(0.0).handle

    def _build(self, settings: EngineSettings) -> object:
        values = settings.as_kwargs(**self._values)
        return self._vllm.AsyncLLMEngine.from_engine_args(self._vllm.AsyncEngineArgs(**values))

    async def ready(self) -> None:
        """Return once the first engine may serve: its loop runs, and it keeps what it is pushed."""
        if self.slot is not None:
            await asyncio.to_thread(self.slot.catch_up)

    async def _replay(self, frontend: Any) -> str:
        """Bring an engine to the weights that were pushed last, and have it keep those to come.

        Raises:
            WeightsError: They were not kept.
        """
        kept = weight_file.kept_in(self._file)
        load = self._was_pushed and kept is PushKept.WHOLE
        version = f"push {self._pushes}" if load else ""
        try:
            path = weight_file.path_of(self._file)
            answers = await frontend.collective_rpc(in_engine.adopt, args=(path, version, self._first))
        except Exception as error:
            if self._was_pushed:
                raise
            counted("openrlhf", error)  # it serves as it is, and none will follow it
            return ""
        if all(answers):
            self._life += 1
        if self._was_pushed and not load and self._whole_in != self._life:
            raise WeightsError(_why_not(kept, begun_anew=bool(self._around.incarnation) and not self._pushes))
        return version

    # -- what OpenRLHF asks of the actor

    def joined(self) -> None:
        """Take note that the engine has joined the group for weights."""
        self._joined = self._life

    @property
    def group_state(self) -> str:
        """Whether the engine is in the group for weights, has lost it, or is being built again."""
        slot = self.slot
        if slot is None:
            return JOINED
        if slot.final is None and not slot.serving:
            return REBUILDING
        return LOST if self._joined not in {None, self._life} else JOINED

    @contextlib.contextmanager
    def pushing(self, name: str, *, by_group: bool) -> Iterator[None]:
        """Push one parameter in this block.

        Raises:
            WeightsError: The group that it would come by died with an engine: who waits in it waits for
                ever. Or the engine died within this push: the next one has only a part of it.
        """
        if by_group and self.group_state == LOST:
            raise WeightsError(_GROUP_LOST)
        if not self._was_pushed:
            self._was_pushed = True
            if self._around.restartable():
                self._memory.save({"pushed": True})
        self._first = self._first or name
        if name == self._first:
            self._into = self._life
        self._refuse_half()
        try:
            yield
        except BaseException:
            self._into = None
            raise
        self._refuse_half()  # it may have waited for the next engine

    def _refuse_half(self) -> None:
        if self._into not in {None, self._life}:
            raise WeightsError(
                "the engine of this actor died within this push, and the next one has only a part of it: "
                "push all weights again"
            )

    async def pushed(self) -> None:
        """Take note of the last parameter of a push."""
        if self._into is None or self.slot is None:
            return
        self._into, self._whole_in = None, self._life
        self._pushes += 1
        if weight_file.kept_in(self._file) is not PushKept.WHOLE and self._pushes == 1:
            _log.warning(
                "rayguard: the weights that were pushed are not kept, for want of memory on this host: an "
                "engine that follows this one answers nobody until the next push"
            )
        if self.slot.weights_pending:
            with harmless("openrlhf"):
                await asyncio.to_thread(self.slot.catch_up)


def _why_not(kept: PushKept, *, begun_anew: bool) -> str:
    if kept is PushKept.PART:
        found = "the engine died within a push of weights"
    elif begun_anew:
        found = "an earlier process of this actor was pushed weights, and they died with it"
    else:
        found = "there was not enough memory on this host to keep the weights that were pushed"
    return (
        f"{found}: the new engine has those of the checkpoint, and answers nobody until the next whole push"
    )


class _Vllm:
    """The module ``vllm``, but for its engine."""

    def __init__(self, vllm: object, make: object) -> None:
        self._vllm = vllm
        self.AsyncLLMEngine = types.SimpleNamespace(from_engine_args=make)

    def __getattr__(self, name: str) -> object:
        return getattr(self._vllm, name)
