"""What outlived its scope in this process: asked for by the memory watcher, a person, or a test.

What was not made in a scope is no leak here: nobody declared when it may end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.objects.handles import leaked_actors
from rayguard.objects.holders import name_holders
from rayguard.objects.holdings import HOLDINGS
from rayguard.objects.leaks import by_site
from rayguard.objects.reaper import Reaped, reap, refresh
from rayguard.ray_internals import object_refs as ray_core

if TYPE_CHECKING:
    from rayguard.objects.leaks import Leak
    from rayguard.objects.ledger import Lease


def leaks() -> list[Leak]:
    """Return what outlived its scope and is held still, its holders named."""
    core = ray_core.core_worker()
    if core is None or core is not HOLDINGS.core:
        return []
    found = by_site(_due())
    names = name_holders({leak.object_ids[-1] for leak in found})
    named = [replace(leak, holders=tuple(names.get(leak.object_ids[-1], ()))) for leak in found]
    return named + leaked_actors()


def end_leaks(*, dry_run: bool = True) -> Reaped:
    """End what outlived its scope where only data holds it; with ``dry_run`` only say what would be ended."""
    core = ray_core.core_worker()
    if core is None or core is not HOLDINGS.core:
        return Reaped()
    refresh(core)
    return reap(core, _due(), dry_run=dry_run)


def _due() -> list[Lease]:
    with HOLDINGS.lock:
        return HOLDINGS.objects.due(HOLDINGS.live_lanes())
