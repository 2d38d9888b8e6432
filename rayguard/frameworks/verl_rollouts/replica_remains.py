"""What Ray holds for a replica with GPUs of its own: its actors, and placement groups made for it alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import threading
import time
from typing import TYPE_CHECKING

from rayguard.engine.deadline import bounded
from rayguard.frameworks.verl_rollouts.rebuild_plan import GROUP_MAKER, construction_of
from rayguard.frameworks.worker_groups.roll_call import end_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from rayguard.frameworks.verl_rollouts.interfaces import PlacementGroup, RolloutReplica
    from rayguard.frameworks.verl_rollouts.rebuild_plan import RebuildLimits

_POLL_S = 0.5
_REMOVED = "REMOVED"
_NOTING = "__rayguard_noting__"
_here = threading.local()  # ``groups``: those that this thread makes


def made_anew(lost: RolloutReplica, limits: RebuildLimits) -> RolloutReplica:
    """End what is left of a lost replica, and return another one like it, with the weights it begins with.

    Raises:
        TimeoutError: A step took too long; what was made is ended.
        Exception: What verl raises while it makes a replica.
    """
    groups = list(lost.resource_pool.pgs)
    held: dict[str, float] = {}
    for bundle in (bundle for group in groups for bundle in group.bundle_specs):
        held.update({name: held.get(name, 0.0) + amount for name, amount in bundle.items()})
    _end([*lost.servers, *lost.workers], groups, limits.end_s)
    _wait_for_room(held, limits.room_s)
    _note_groups(sys.modules[type(lost.resource_pool).__module__])
    made = type(lost)(**construction_of(lost))
    new_groups: list[PlacementGroup] = []
    given_up = threading.Event()

    def begin() -> None:
        _here.groups = new_groups
        try:
            asyncio.run(made.init_standalone())
        finally:
            if given_up.is_set():  # too late: nobody waits for it any more
                _end_made(made, new_groups, limits.end_s)

    try:
        bounded(begin, limits.make_s, "rayguard-replica")
        if not made.servers or not made.server_address:
            raise TypeError(f"{type(made).__name__}.init_standalone made no server")  # noqa: TRY301 - as any other
    except BaseException:
        given_up.set()
        _end_made(made, new_groups, limits.end_s)
        raise
    return made


def _note_groups(module: ModuleType) -> None:
    """Have the placement groups noted that a thread of ours makes in this module.

    verl knows one that waits for its resources by its name alone, which somebody else may bear.
    """
    bare = getattr(module, GROUP_MAKER)
    if hasattr(bare, _NOTING):
        return

    @functools.wraps(bare)
    def placement_group(*args: object, **kwargs: object) -> object:
        made = bare(*args, **kwargs)
        getattr(_here, "groups", []).append(made)
        return made

    setattr(placement_group, _NOTING, True)
    setattr(module, GROUP_MAKER, placement_group)


def _end_made(replica: RolloutReplica, groups: list[PlacementGroup], within_s: float) -> None:
    """End a replica that was made here, also one that is half made."""
    with contextlib.suppress(TimeoutError):
        _end([*replica.servers, *replica.workers], list(groups), within_s)


def _end(actors: list[object], groups: list[PlacementGroup], within_s: float) -> None:
    """End actors, then give their places back.

    Raises:
        TimeoutError: The places were not back in time.
    """
    from ray.util import placement_group_table, remove_placement_group  # noqa: PLC0415 - where verl is, Ray is

    until = time.monotonic() + within_s
    end_all(actors, within_s)
    for group in groups:
        remove_placement_group(group)
    _until(
        lambda: all(placement_group_table(one).get("state", _REMOVED) == _REMOVED for one in groups),
        until,
        "its placement groups are still there",
    )


def _wait_for_room(wanted: dict[str, float], within_s: float) -> None:
    """Wait until the cluster has so much free: verl asks once, and gives up.

    Raises:
        TimeoutError: It had not in time.
    """
    import ray  # noqa: PLC0415 - as above

    def fits() -> bool:
        free = ray.available_resources()
        return all(free.get(name, 0.0) >= amount for name, amount in wanted.items())

    asked = ", ".join(f"{amount:g} {name}" for name, amount in sorted(wanted.items()))
    _until(fits, time.monotonic() + within_s, f"the cluster has no room for {asked}")


def _until(holds: Callable[[], bool], until: float, otherwise: str) -> None:
    wait = threading.Event()
    while not holds():
        if time.monotonic() >= until:
            raise TimeoutError(otherwise)
        wait.wait(_POLL_S)
