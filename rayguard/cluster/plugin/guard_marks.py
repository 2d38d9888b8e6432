"""What a checked configuration of the plugin means in the guard's own values: marks and policies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from rayguard.actors.mark import Guarding, said_state
from rayguard.errors import ConfigError
from rayguard.memory.pressure import Thresholds
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.memory_policy import MemoryPolicy
from rayguard.recovery.policy import GuardPolicy


def memory_policy(memory: dict[str, Any] | Literal[False] | None) -> MemoryPolicy | None:
    """Return the policy that ``memory`` of a configuration means; None: memory is not watched.

    Raises:
        ConfigError: It contradicts itself.
    """
    if memory is False:
        return None
    values: dict[str, Any] = {"recycle": None, **(memory or {})}
    if "node" in values:
        values["node"] = Thresholds(**values["node"])
    if "recycle_budget" in values:
        values["recycle_budget"] = RestartBudget(**values["recycle_budget"])
    return MemoryPolicy(**values)


def watching(config: dict[str, Any], target: object) -> Guarding:
    """Return the mark of a class or function that is only watched."""
    policy = _policy(config)
    memory = policy.memory
    if memory is not None:
        step = memory.step if memory.step is not None and hasattr(target, memory.step) else None
        policy = replace(policy, memory=replace(memory, recycle=None, step=step))
    return Guarding(policy=policy, watching=True, by_plugin=True)


def guarding(config: dict[str, Any], named: dict[str, Any]) -> Guarding:
    """Return the mark of a class that was named."""
    state, methods = said_state(named["state"])
    return Guarding(
        state=state,
        state_methods=methods,
        policy=_policy(config),
        idempotent=named["idempotent"],
        group=named["group"] or "",
        by_plugin=True,
    )


def _policy(config: dict[str, Any]) -> GuardPolicy:
    try:
        memory = memory_policy(config["memory"])
    except (ConfigError, TypeError):  # of a newer or older version, checked there: keys that we do not have
        memory = memory_policy(None)
    return GuardPolicy(memory=memory, flight_recorder=config["flight_recorder"])
