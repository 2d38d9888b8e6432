"""The actor that holds one rank of a gang: it joins, makes the user's trainer, runs its calls, keeps state.

Ray never restarts it; its gang replaces it. Its main thread runs the user's code, another one follows the
gang's orders meanwhile (``orders``).
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import process_group
from rayguard.actors.methods import bare
from rayguard.errors import ConfigError
from rayguard.process import stacks
from rayguard.process.identity import ProcessId
from rayguard.trainers.gang.gang_weights import Trainer, weights_of
from rayguard.trainers.gang.generation import GangBrokenError, RankGeneration
from rayguard.trainers.gang.kept.rank_files import forget_gang
from rayguard.trainers.gang.orders import CUT, LOOK, OrderThread
from rayguard.trainers.gang.rank_error import RankReply, reply_of
from rayguard.trainers.gang.rank_group import JoinOrder, RankGroup
from rayguard.trainers.gang.rank_look import look_at
from rayguard.trainers.gang.rank_state import RankState
from rayguard.trainers.held_parts import held_by, is_module
from rayguard.trainers.trainer_mixin import RANKS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from rayguard.trainers.gang.orders import StoreAddress
    from rayguard.trainers.gang.rank_look import RankLook

_CONNECT_S = 60.0


class RankHost:
    """One rank. Its methods answer with a ``RankReply`` and never raise, but for what ends a process."""

    def __init__(self, name: str, address: StoreAddress, make: Callable[[], object], package: str) -> None:
        _load_torch()
        process_group.lead()
        self._name, self._make, self._package = name, make, package
        self._store = address.connect(_CONNECT_S)
        self._generation: RankGeneration | None = None
        self._trainer: Trainer = None
        self._state: RankState | None = None
        self._order: JoinOrder | None = None
        self._main = threading.get_ident(), threading.get_native_id()
        stacks.register()
        OrderThread(address, name, {CUT: self._cut, LOOK: self._look})

    def hello(self) -> tuple[str, int, int, str]:
        """Say that this process is there: its name, its pid, when that began, and its node."""
        me = ProcessId.me()
        return self._name, me.pid, me.started, _node()

    # -- by the main thread

    def join(self, order: JoinOrder) -> RankReply:
        """Leave the last generation, if there was one; join the next with a new trainer, in its state."""
        return self._replied(self._join, order)

    def call(self, number: int, method: str, /, *args: object, **kwargs: object) -> tuple[RankReply, object]:
        """Call the trainer, and keep its state as that of ``number`` calls; return what it returned, too."""
        reply = self._replied(self._call, number, method, args, kwargs)
        return (reply, None) if reply.error is not None else (RankReply(), reply.value)

    def weights(self) -> tuple[RankReply, object]:
        """Gather all weights, for rollouts: the reply, and on rank 0 what ``weights_of`` returned."""
        reply = self._replied(self._weights)
        return (reply, None) if reply.error is not None else (RankReply(), reply.value)

    def forget(self) -> bool:
        """Remove what ranks of this gang have kept on this node: the gang is over."""
        if self._order is not None:
            forget_gang(self._order.gang)
        return True

    def _replied(self, do: Callable[..., object], *args: object) -> RankReply:
        try:
            return RankReply(value=do(*args))
        except Exception as error:  # noqa: BLE001 - told to the gang, which decides
            after_cut = self._generation is not None and self._generation.is_cut
            reply = reply_of(error, after_cut=after_cut or isinstance(error, GangBrokenError))
            traceback.clear_frames(error.__traceback__)  # they hold the model
            return reply

    def _join(self, order: JoinOrder) -> None:
        self._leave()
        self._order = order
        self._generation = RankGeneration(order, self._store)
        self._generation.join()
        group = RankGroup(rank=order.rank, size=order.size, generation=order.generation, device=_device())
        self._trainer = self._make()
        getattr(self._trainer, "__dict__", {})[RANKS] = order.size  # past any ``__setattr__``
        _same_group(self._trainer, group)
        self._generation.find_sockets()
        if order.exact:
            _refuse_inexact(self._trainer)
        if self._state is None or self._state.place != (order.layout, order.rank):
            if self._state is not None:
                self._state.close()
            self._state = RankState(order)
        if order.number is None:
            self._state.keep(0, self._trainer)
        else:
            self._state.restore(order, self._trainer, _node())

    def _leave(self) -> None:
        if self._generation is not None:
            generation, self._generation = self._generation, None
            self._trainer = None
            gc.collect()  # models are rings of references, and hold the old group
            generation.leave()
            _empty_caches()

    def _call(self, number: int, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if self._state is None or self._trainer is None or self._order is None:
            raise GangBrokenError("the rank has not joined")
        if self._order.layout != self._order.from_layout:
            forget_gang(self._order.gang, but_layout=self._order.layout)
            self._order = replace(self._order, from_layout=self._order.layout)  # once, and not at each call
        answer = bare(self._trainer, method)(*args, **kwargs)
        self._state.keep(number, self._trainer)
        return answer

    def _weights(self) -> object:
        if self._trainer is None or self._order is None:
            raise GangBrokenError("the rank has not joined")
        return weights_of(self._trainer, self._order.rank)

    # -- by the thread that follows orders

    def _cut(self, generation: int) -> bool:
        mine = self._generation
        return mine is not None and mine.number == generation and mine.cut()

    def _look(self) -> RankLook:
        ident, native_id = self._main
        return look_at(ident, self._package, native_id)


def _same_group(trainer: Trainer, group: RankGroup) -> None:
    """Let the trainer set itself up.

    Raises:
        ConfigError: It has made the default process group itself.
        Exception: What ``setup`` raised.
    """
    import torch.distributed as dist  # noqa: PLC0415 - loaded by now

    before = dist.group.WORLD
    bare(trainer, "setup")(group)
    if not dist.is_initialized() or dist.group.WORLD is not before:
        raise ConfigError(
            f"{type(trainer).__name__}.setup has ended or replaced the default process group: the gang makes "
            "it, and makes it anew after a fault; leave init_process_group and destroy_process_group out"
        )


def _refuse_inexact(trainer: object) -> None:
    """Refuse a trainer whose replayed step would differ.

    Raises:
        ConfigError: It has a plain DDP module. That moves gradients between its buffers after the first
            backward of each new module, and on three ranks and more their place decides the order of sums.
    """
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is None:
        return
    own = list(trainer.named_modules())[1:] if is_module(trainer) else []  # type: ignore[attr-defined]
    for name, value in [*((held.path, held.value) for held in held_by(trainer)), *own]:
        if not isinstance(value, parallel.DistributedDataParallel):
            continue
        if not value.find_unused_parameters or value.static_graph:
            raise ConfigError(
                f"{type(trainer).__name__}.{name} is a DistributedDataParallel that rebuilds its "
                "buckets after the first backward: after a recovery its losses would differ in their last "
                "bits. Give it find_unused_parameters=True, which keeps the buckets, or allow the "
                "difference: GangPolicy(exact=False)"
            )


def _load_torch() -> None:
    """Load what a first step would: a spare that only has torch itself takes as long again when needed."""
    import torch  # noqa: PLC0415 - slow to load
    import torch.distributed  # noqa: PLC0415

    weight = torch.zeros(1, requires_grad=True)
    torch.optim.AdamW([weight])


def _device() -> torch.device:
    import torch  # noqa: PLC0415 - loaded by now

    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def _empty_caches() -> None:
    import torch  # noqa: PLC0415 - loaded by now

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _node() -> str:
    import ray  # noqa: PLC0415 - an actor runs here

    return str(ray.get_runtime_context().get_node_id())
