"""What is leaked in this process, scope or not: asked for by the memory watcher, a person, or a test.

Outside of scopes nobody declared when an object may end: ``end_leaks`` only says what it would do, unless
told ``dry_run=False``. Reads by ``await`` cannot be seen (Ray has no hook there), those by ``ray.get`` can.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.objects import core as ray_core
from rayguard.objects import leaks as decide
from rayguard.objects.handles import leaked_actors
from rayguard.objects.holders import name_holders
from rayguard.objects.holdings import HOLDINGS, Totals
from rayguard.objects.reaper import Reaped, reap, refresh

if TYPE_CHECKING:
    from rayguard.objects.leaks import Leak
    from rayguard.objects.lease import Lease


def track() -> bool:
    """Note from now on what user code makes in this process, scope or not; False where Ray is not there."""
    core = ray_core.core_worker()
    if core is None:
        return False
    from rayguard.objects.across import install  # noqa: PLC0415 - Ray is there now

    install()
    HOLDINGS.connect(core)
    HOLDINGS.tracking = True
    return True


def end_step(step: int) -> None:
    """Take the pass at the end of a step: who holds what now, and which lines made more."""
    core = ray_core.core_worker()
    if core is None:
        return
    HOLDINGS.connect(core)
    refresh(core, adopt=True)
    HOLDINGS.step, HOLDINGS.ended_step = max(HOLDINGS.step, step + 1), max(HOLDINGS.ended_step, step)
    with HOLDINGS.lock:
        HOLDINGS.objects.census(step)


def leases() -> list[Lease]:
    """Return what this process holds, as of the last pass."""
    with HOLDINGS.lock:
        return [replace(lease) for lease in HOLDINGS.objects]


def totals() -> Totals:
    """Return what was done since the process started."""
    with HOLDINGS.lock:
        return replace(HOLDINGS.totals, errors=HOLDINGS.totals.errors.copy())


def leaks(*, steps: int = decide.STEPS, name: bool = True) -> list[Leak]:
    """Return what outlived its scope, or grew for ``steps`` steps unread; holders named unless not wanted."""
    core = ray_core.core_worker()
    if core is None or core is not HOLDINGS.core:
        return []
    with HOLDINGS.lock:
        found = decide.outlived(HOLDINGS.objects.due(HOLDINGS.live_lanes()))
        declared = {one for leak in found for one in leak.object_ids}
        found += [
            leak
            for leak in decide.growing(HOLDINGS.objects, HOLDINGS.ended_step, steps)
            if not declared.intersection(leak.object_ids)
        ]
    found += leaked_actors()
    if not name:
        return found
    names = name_holders({leak.object_ids[-1] for leak in found if leak.what == "objects"})
    return [replace(leak, holders=tuple(names.get(leak.object_ids[-1], ()))) for leak in found]


def end_leaks(*, steps: int = decide.STEPS, dry_run: bool = True, declared: bool = False) -> Reaped:
    """End what ``leaks`` finds where only data holds it; with ``dry_run`` only say what would be ended.

    ``declared``: only what was made in a scope that has ended, nothing that merely looks leaked.
    """
    core = ray_core.core_worker()
    if core is None or core is not HOLDINGS.core:
        return Reaped()
    refresh(core)
    found = [leak for leak in leaks(steps=steps, name=False) if leak.outlived or not declared]
    wanted = {one for leak in found for one in leak.object_ids}
    with HOLDINGS.lock:
        due = [lease for lease in HOLDINGS.objects if lease.object_id in wanted]
    return reap(core, due, dry_run=dry_run)
