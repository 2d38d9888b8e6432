"""The group by which rank 0 of the policy pushes weights, made anew before a push where an engine lost it.

By OpenRLHF's own ``_init_vllm_sync_group``, on another port, with all engines: those that were in the old
group leave it. Without this the push ends at once with an error of the engine's actor, never in a wait.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from rayguard.errors import RecoveryTimeoutError
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.frameworks import told
from rayguard.frameworks.openrlhf.rollout import LOST, REBUILDING, group_state
from rayguard.harmless import harmless
from rayguard.recovery.incident import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAKE = "_init_vllm_sync_group"
_REBUILT_S = 1_800.0  # a large model takes minutes to load
_ANSWER_S = 120.0
_POLL_S = 1.0


def guarding(push: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return ``ActorPPOTrainer.broadcast_to_vllm`` with the group looked at first."""

    @functools.wraps(push)
    def broadcast_to_vllm(self: Any) -> object:
        lost: Sequence[int] = ()
        with harmless("group for weights"):
            if _has_group(self):
                lost = lost_by(self.vllm_engines)
        if lost:
            make_anew(self, lost)
        return push(self)

    return broadcast_to_vllm


def lost_by(
    engines: Sequence[object], rebuilt_s: float = _REBUILT_S, poll_s: float = _POLL_S
) -> Sequence[int]:
    """Return which engines have lost the group, once none is being built again.

    Raises:
        RecoveryTimeoutError: One still is, or does not answer.
        RayError: One's actor is dead.
    """
    until, pause = time.monotonic() + rebuilt_s, threading.Event()
    while REBUILDING in (states := _states(engines)):
        if time.monotonic() > until:
            raise RecoveryTimeoutError(f"an engine was not built again within {rebuilt_s:g} s")
        pause.wait(poll_s)
    return [number for number, state in enumerate(states) if state == LOST]


def _states(engines: Sequence[object]) -> list[str]:
    import ray  # noqa: PLC0415 - an actor runs here

    from rayguard.ray_internals.actor_classes import run_in_actor  # noqa: PLC0415 - as above

    found: list[str] = ray.get([run_in_actor(one, group_state) for one in engines], timeout=_ANSWER_S)
    return found


def make_anew(trainer: Any, lost: Sequence[int]) -> None:
    """Make the group anew with all engines.

    Raises:
        Exception: It could not be: some may be in the new one and some in the old, so nothing is pushed.
    """
    which = ", ".join(map(str, lost))
    incident = told.opened(
        Kind.WEIGHT_SYNC_FAILED,
        Scope.GROUP,
        f"the group for weights died with the engine of rollout actor {which}",
        signature="openrlhf.weight_group",
        target="ActorPPOTrainer",
    )
    told.still_open(incident)
    try:
        getattr(trainer, _MAKE)(getattr(trainer.strategy.args.vllm, "sync_backend", "nccl"))
    except Exception:
        told.ended(incident, Outcome.FAILED, remedy="make_group_anew")
        raise
    told.ended(incident, Outcome.RECOVERED, remedy="make_group_anew")


def _has_group(trainer: Any) -> bool:
    """Say whether this rank pushes by a group that it can make anew: one of Ray's has a name for good."""
    by_ray = bool(getattr(trainer.strategy.args.vllm, "sync_with_ray", False))
    torch = sys.modules.get("torch")
    first = torch is not None and torch.distributed.get_rank() == 0
    return first and bool(trainer.vllm_engines) and not trainer.use_cuda_ipc and not by_ray
