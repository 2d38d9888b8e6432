"""Views that pin: arrays from ``ray.get`` lie in the object store and keep their object there, refs or none.

They are never touched; only whose they are, and how much they pin, is said.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from typing import Any

_CHUNK = 256
LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Arrays in this process that lie in the object store, by what holds them."""

    holder: str
    count: int
    size_bytes: int


def pinning(least_bytes: int = LEAST_BYTES) -> list[View]:
    """Return who holds arrays of ``least_bytes`` or more that pin objects; the largest first.

    Arrays that only a variable of running code holds are not seen.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    heap = gc.get_objects()
    sizes: dict[str, dict[int, int]] = {}
    for start in range(0, len(heap), _CHUNK):
        chunk = heap[start : start + _CHUNK]
        if any(type(one) is numpy.ndarray for one in gc.get_referents(*chunk)):
            for holder in chunk:
                _collect(holder, numpy.ndarray, least_bytes, sizes)
    views = [
        View(holder=name, count=len(arrays), size_bytes=sum(arrays.values()))
        for name, arrays in sizes.items()
    ]
    return sorted(views, key=lambda view: -view.size_bytes)


def _collect(holder: Any, array: type, least_bytes: int, sizes: dict[str, dict[int, int]]) -> None:
    for one in gc.get_referents(holder):
        size = getattr(one, "nbytes", 0) if type(one) is array else 0
        if size >= max(1, least_bytes) and lies_in_store(one):
            sizes.setdefault(_named(holder), {})[id(one)] = size


def lies_in_store(array: Any) -> bool:
    """Say whether the memory of ``array`` is an object's: the end of its chain of bases is Ray's buffer."""
    base = array
    for _ in range(8):
        base = getattr(base, "base", None)
        kind = type(base)
        if kind.__module__ == "ray._raylet":
            return True
        if base is None:
            return False
    return False


def _named(holder: Any) -> str:
    owner = holder
    if isinstance(holder, (dict, list, tuple)):
        parents = [one for one in gc.get_referrers(holder) if hasattr(one, "__dict__")]
        if isinstance(holder, dict) and "__name__" in holder:
            return str(holder["__name__"])
        owner = parents[0] if parents else holder
    kind = type(owner)
    return f"{kind.__module__}.{kind.__qualname__}"
