"""Which engine a new life of an actor may go on with: found by its lease, or ended.

An engine of the actor's last life that cannot be gone on with is ended before another one is built: two do
not fit on one device. So is one of another actor that waits on the devices which this process was given.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from rayguard.engine.adoption import lease as leases
from rayguard.engine.build.footprint import wait_for_memory
from rayguard.harmless import harmless
from rayguard.process.tree import descendants, end

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.engine.adoption.lease import EngineLease

DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_FORCE_S = 5.0
_log = logging.getLogger("rayguard")


def inherited(home: Path, actor_id: str, applied: tuple[str, ...]) -> EngineLease | None:
    """Return the engine that this life of an actor may go on with; ends what it may not. Never raises."""
    with harmless("adoption"):
        found: EngineLease | None = None
        for one in list(leases.leases(home)):
            if not actor_id or one.actor_id != actor_id:
                if is_free(one) and not one.awaited() and one.devices and one.devices == devices():
                    end_engine(home, one, "its device was given to another actor")
                continue
            if not is_free(one):
                continue  # a life that Ray has given up, and that is not proved to be dead
            if found is not None:
                end_engine(home, found, "there is a newer one")
            found = one
        if found is None:
            return None
        if found.applied != applied or found.devices != devices():
            end_engine(home, found, "it has other settings or another device than this life of its actor")
            return None
        return found
    return None


def devices() -> str:
    """Return which accelerators this process was given."""
    return ";".join(f"{name}={os.environ[name]}" for name in DEVICES if os.environ.get(name))


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
    if left:
        _log.error("rayguard: engine processes that would not die: %s", [process.pid for process in left])
