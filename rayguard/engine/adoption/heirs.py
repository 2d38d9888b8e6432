"""Which engine a new life of an actor may go on with: found by its lease, or ended.

After the death of a pool's owner that is any engine of its actors, each for one heir. An engine of the
actor's last life that cannot be gone on with is ended before another one is built: two do not fit on one
device. So is one of another actor that waits on the devices which this process was given.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.engine.adoption import lease as leases
from rayguard.engine.build.footprint import wait_for_memory
from rayguard.harmless import harmless
from rayguard.private import closed_after, locked, open_private
from rayguard.process.cleanup.reaper import free_after
from rayguard.process.deaths import ends
from rayguard.process.identity import ProcessId
from rayguard.process.tree import descendants, end

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.engine.adoption.lease import EngineLease
    from rayguard.engine.context import Surroundings

DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_FORCE_S = 5.0
_LOCK = "heirs.lock"
_TURN_S = 10.0
_DYING_S = 3.0
_me = ProcessId.me
_log = logging.getLogger("rayguard")


def claimed(home: Path, around: Surroundings) -> EngineLease | None:
    """Return the engine that this life may go on with, and have it wait for it. May raise ``OSError``.

    That of the actor's last life, the newest. Else one of the same pool that nobody else has claimed, where
    the pool's owner has begun another life since: its actors are other ones then.
    """
    if not around.actor_id:
        return None
    _wait_for_ends(home, around)
    folder = open_private(home / leases.FOLDER)
    with closed_after(folder), locked(folder, _LOCK, _TURN_S) as alone:
        if not alone:
            raise TimeoutError(f"another process held {_LOCK} for {_TURN_S:g} s")
        free = list(filter(is_free, leases.leases(home)))
        own = [one for one in free if one.actor_id == around.actor_id][-1:]
        found = own or [
            one
            for one in free
            if _is_of_last_pool(one, around)
            and one.devices == devices()
            and (not one.awaited() or one.wanted_by == _me())
        ]
        if not found:
            return None
        mine = next((one for one in found if one.wanted_by == _me()), found[0])
        wanted = replace(mine, wanted_by=_me())
        wanted.write(home)
        return wanted


def inherited(home: Path, around: Surroundings, applied: tuple[str, ...]) -> EngineLease | None:
    """Return the engine that this life of an actor may go on with; ends what it may not. Never raises."""
    with harmless("adoption"):
        found = claimed(home, around)
        for one in list(leases.leases(home)):
            # Of one that is not free: a life that Ray has given up, and that is not proved to be dead.
            if not is_free(one) or (found is not None and one.core == found.core):
                continue
            if around.actor_id and one.actor_id == around.actor_id:
                end_engine(home, one, "there is a newer one")
            elif _waits_on_my_device(one, around):
                end_engine(home, one, "its device was given to another actor")
        if found is None:
            return None
        if found.applied != applied or found.devices != devices():
            end_engine(home, found, "it has other settings or another device than this life of its actor")
            return None
        return found
    return None


def let_go(home: Path, pool: str) -> None:
    """Let no engine wait any more that an earlier life of a pool's owner has left. Never raises."""
    if not pool:
        return
    with harmless("adoption"):
        for one in list(leases.leases(home)):
            if one.pool == pool and is_free(one) and not one.awaited():
                leases.remove(home, one.core)


def _is_of_last_pool(one: EngineLease, around: Surroundings) -> bool:
    return bool(around.pool.name) and one.pool == around.pool.name and one.pool_life < around.pool.life


def _wait_for_ends(home: Path, around: Surroundings) -> None:
    """Wait for the process before this one, and for the actors of a pool whose owner is dead: they end.

    Ray starts the next life of an actor as soon as its last one has closed its connections.
    """
    until = time.monotonic() + _DYING_S
    for one in list(leases.leases(home)):
        mine = one.actor_id == around.actor_id and one.owner != _me()
        if mine or _is_of_last_pool(one, around):
            ends(one.owner, soon_s=until - time.monotonic())


def devices() -> str:
    """Return which accelerators this process was given."""
    return ";".join(f"{name}={os.environ[name]}" for name in DEVICES if os.environ.get(name))


def _waits_on_my_device(one: EngineLease, around: Surroundings) -> bool:
    """Say whether Ray gave its device to this process; another cluster's Ray cannot say so."""
    mine = bool(one.devices) and one.devices == devices() and one.gcs_address == around.gcs_address
    return mine and not one.awaited()


def is_free(one: EngineLease) -> bool:
    """Say whether its owner is dead."""
    return not one.owner.alive()


def end_engine(home: Path, one: EngineLease, why: str) -> None:
    """End an engine that its owner left, and wait for its memory."""
    _log.warning("rayguard: the engine %d that was left by a dead actor is ended: %s", one.core.pid, why)
    leases.remove(home, one.core)
    processes = (one.core, *descendants(one.core))
    left = end(processes, polite_s=0.0, force_s=_FORCE_S)
    wait_for_memory([process.pid for process in processes])
    free_after(processes, home, left_by=one.owner)
    if left:
        _log.error("rayguard: engine processes that would not die: %s", [process.pid for process in left])
