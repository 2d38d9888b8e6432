"""Whether a lost replica is made again, with what, and how often. Pure."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.frameworks.verl_rollouts.lost_servers import NAIVE
from rayguard.recovery.budget import RestartBudget

if TYPE_CHECKING:
    from rayguard.frameworks.verl_rollouts.interfaces import CheckpointEngineManager, RolloutReplica

# What verl 0.8 to 0.9 makes a replica with; it keeps each on the replica, as it was when that was made.
_MADE_WITH = frozenset(
    {
        "replica_rank",
        "config",
        "model_config",
        "gpus_per_node",
        "is_reward_model",
        "is_teacher_model",
        "name_suffix",
    }
)
GROUP_MAKER = "placement_group"  # what verl makes a placement group with, beside its resource pools
_STANDALONE = "standalone"  # the value of verl's mode of replicas that have GPUs of their own
_WHOLE = "named_tensors"  # verl's name of updates that carry all weights


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildLimits:
    """How often a lost replica is made again, and how long each step may take, in seconds.

    ``budget``: for each replica; each try counts. ``end_s``: until its actors and placement groups are gone;
    ``room_s``: until what they held is free; ``make_s``: until the new one is up; ``ask_s``: for an answer of
    the balancer, or of a server; ``again_s``: between two tries; ``watch_s``: between looks at who is dead.
    """

    budget: RestartBudget = field(default_factory=lambda: RestartBudget(max_restarts=3, within_s=3_600.0))
    end_s: float = 120.0
    room_s: float = 600.0
    make_s: float = 1_800.0
    ask_s: float = 15.0
    again_s: float = 30.0
    watch_s: float = 1.0


def construction_of(replica: RolloutReplica) -> dict[str, object]:
    """Return what to make a replica's class with to have another one like it.

    Raises:
        TypeError: It is made with something that is not known.
    """
    parameters = inspect.signature(type(replica)).parameters
    others = sorted(set(parameters) - _MADE_WITH)
    if others:
        raise TypeError(f"{type(replica).__name__} is made with {others[0]}")
    found = {name: getattr(replica, name) for name in parameters}
    if "name_suffix" in found:
        found["name_suffix"] = str(found["name_suffix"]).removeprefix("_")  # which verl puts before it
    return found


def why_not_made_again(manager: CheckpointEngineManager, replica: RolloutReplica, *, is_placed: bool) -> str:
    """Say why a lost replica of ``manager`` cannot be made again; '' if it can.

    Args:
        manager: Pushes its weights.
        replica: The lost one.
        is_placed: Whether the server manager that made it, and its balancer, are in this process.
    """
    disaggregation = getattr(getattr(replica, "config", None), "disaggregation", None)
    pool = getattr(replica, "resource_pool", None)
    groups, beside = getattr(pool, "pgs", None), sys.modules.get(type(pool).__module__)
    mode = getattr(getattr(replica, "rollout_mode", None), "value", None)
    wire = getattr(getattr(manager, "backend_cls", None), "wire_format", _WHOLE)  # verl 0.8 has no other
    reasons = {
        "it shares its GPUs": manager.backend == NAIVE or mode != _STANDALONE,
        f"updates carry changes alone (wire_format={wire}), it would lack the rest": wire != _WHOLE,
        "its LLMServerManager is not in this process": not is_placed,
        "it is disaggregated": bool(getattr(disaggregation, "enabled", False)),
        "it is not as known (resource_pool.pgs)": not isinstance(groups, list) or not groups,
        f"it is not as known ({GROUP_MAKER})": not callable(getattr(beside, GROUP_MAKER, None)),
        "it is not as known (init_standalone)": not inspect.iscoroutinefunction(
            getattr(replica, "init_standalone", None)
        ),
        "it is not as known (CheckpointEngineManager.add_replicas)": not callable(
            getattr(manager, "add_replicas", None)
        ),
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    if why:
        return why
    try:
        construction_of(replica)
    except (TypeError, ValueError, AttributeError) as error:
        return f"it is not as known ({error})"
    return ""
