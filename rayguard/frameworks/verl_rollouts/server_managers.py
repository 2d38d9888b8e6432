"""verl's ``LLMServerManager``: which of them made a replica, and where that stands in its lists."""

from __future__ import annotations

import functools
import inspect
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayguard.frameworks.change_once import change_once
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from types import ModuleType

    from rayguard.frameworks.verl_rollouts.interfaces import LLMServerManager, RolloutReplica

_ATTACHED = "__rayguard_server_managers__"
_managers: weakref.WeakSet[LLMServerManager] = weakref.WeakSet()


def attach(module: ModuleType) -> bool:
    """Have note taken of all server managers that this process makes; say whether it is."""
    return change_once(
        module,
        _ATTACHED,
        lambda: _change(module),
        unknown=_unknown,
        framework="verl",
        otherwise="lost replicas are not made again",
    )


def _change(module: Any) -> None:
    manager_class = module.LLMServerManager
    bare = manager_class.__init__

    @functools.wraps(bare)
    def __init__(self: LLMServerManager, *args: object, **kwargs: object) -> None:  # noqa: N807 - takes its place
        bare(self, *args, **kwargs)
        with harmless("rollout"):
            _managers.add(self)

    manager_class.__init__ = __init__


def _unknown(module: ModuleType) -> str:
    manager_class: Any = getattr(module, "LLMServerManager", None)
    if not inspect.isclass(manager_class):
        return "LLMServerManager"
    for method, names in (
        ("_initialize_llm_servers", {"rollout_replicas", "server_handles", "server_addresses"}),
        ("_init_global_load_balancer", {"global_load_balancer"}),
    ):
        code = getattr(getattr(manager_class, method, None), "__code__", None)
        if code is None or not names <= set(code.co_names):
            return f"LLMServerManager.{method}"
    return ""


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Where a replica stands among those of the server manager that made it."""

    _manager: LLMServerManager
    _first: RolloutReplica  # which stands there now

    @property
    def balancer(self) -> object:
        """Return the handle of the load balancer that sends it requests."""
        return self._manager.global_load_balancer

    @property
    def stands_there(self) -> RolloutReplica:
        """Return the replica that the server manager has in its lists."""
        return self._first

    def taken_by(self, replica: RolloutReplica) -> ReplicaPlace:
        """Put another replica into the server manager's lists; return its place, which is the same one."""
        replicas = self._manager.rollout_replicas
        at = next((at for at, one in enumerate(replicas) if one is self._first), None)
        if at is not None:
            replicas[at] = replica
            addresses, handles = self._manager.server_addresses, self._manager.server_handles
            address = self._first.server_address
            if address in addresses:
                at = addresses.index(address)
                addresses[at], handles[at] = replica.server_address, replica.server_handle
        return ReplicaPlace(self._manager, replica)


def place_of(replica: RolloutReplica) -> ReplicaPlace | None:
    """Return where a replica stands; None where no server manager of this process has made it."""
    for manager in list(_managers):
        if any(one is replica for one in vars(manager).get("rollout_replicas", ())):
            return ReplicaPlace(manager, replica)
    return None
