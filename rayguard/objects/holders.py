"""Names who holds a reference; how a name is found is ``rayguard.memory.growth.names``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rayguard.memory.growth.names import way_to
from rayguard.objects import heap
from rayguard.ray_internals import object_refs as ray_core

if TYPE_CHECKING:
    from collections.abc import Collection

_MOST_NAMES = 4
_DEADLINE_S = 1.0


def name_holders(object_ids: Collection[str], deadline_s: float = _DEADLINE_S) -> dict[str, list[str]]:
    """Return up to four names of holders for each of ``object_ids`` that this process refers to."""
    until = time.monotonic() + deadline_s
    wanted = set(object_ids)
    if not wanted:
        return {}
    try:
        found = heap.search(
            ray_core.reference_type(),
            lambda one: one.hex() in wanted,
            most=len(wanted) * _MOST_NAMES,
            deadline_s=deadline_s,
        )
    except heap.SlowHeapError:
        return {}
    ours = {id(found), *(id(one) for item in found for one in (item, item.holders))}
    names: dict[str, list[str]] = {}
    for item in found:
        name = way_to(item.target, deadline_s=until - time.monotonic(), not_ours=ours)
        of_object = names.setdefault(item.target.hex(), [])
        if name not in of_object and len(of_object) < _MOST_NAMES:
            of_object.append(name)
    return names
