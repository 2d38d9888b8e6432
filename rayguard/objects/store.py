"""What to do about a store that spills or is nearly full. Numbers in, advice out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.objects.leaks import Leak

SOFT_SHARE = 0.7  # Ray spills from 0.8 on (RAY_object_spilling_threshold)
FULL_SHARE = 0.95


class StoreAction(str, Enum):
    """What would help, cheapest first."""

    NONE = "none"
    END_LEAKS = "end_leaks"
    LOWER_CONCURRENCY = "lower_concurrency"
    MORE_STORE = "more_store"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """A node's object store at one moment, in bytes."""

    used_bytes: int
    limit_bytes: int
    spilled_bytes: int = 0  # on disk, since the node started
    spilled_before_bytes: int = 0  # the same, at the reading before
    fallback_bytes: int = 0  # allocated on disk because the store was full
    disk_free_bytes: int | None = None  # where it spills to


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAdvice:
    """What is wrong with a store, and what to do; ``action`` is NONE when nothing is wrong."""

    action: StoreAction
    message: str = ""
    hint: str = ""


def advise(state: StoreState, leaks: Sequence[Leak] = ()) -> StoreAdvice:
    """Return what to do about the store: free leaks where there are some, else ask for less or give more."""
    trouble = _trouble(state)
    if not trouble:
        return StoreAdvice(action=StoreAction.NONE)
    leaked = sum(leak.size_bytes or 0 for leak in leaks)
    if leaks:
        return StoreAdvice(
            action=StoreAction.END_LEAKS,
            message=f"{trouble}; {_mb(leaked)} of it are leaked: {leaks[0].sentence}",
            hint="open a rayguard.object_scope(step), or call rayguard.objects.watch.end_leaks()",
        )
    free = state.disk_free_bytes
    if free is not None and _spilling(state) and free < state.limit_bytes:
        return StoreAdvice(
            action=StoreAction.LOWER_CONCURRENCY,
            message=f"{trouble}, and the disk it spills to has {_mb(free)} left",
            hint="keep fewer results in flight: smaller batches, fewer calls at once",
        )
    if _spilling(state) or state.fallback_bytes:
        return StoreAdvice(
            action=StoreAction.MORE_STORE,
            message=f"{trouble}; nothing of it is known to be leaked",
            hint="start Ray with a larger object_store_memory, or keep fewer results in flight",
        )
    return StoreAdvice(
        action=StoreAction.LOWER_CONCURRENCY,
        message=f"{trouble}; nothing of it is known to be leaked",
        hint="keep fewer results in flight: read them as they come (ray.wait) and drop them",
    )


def _spilling(state: StoreState) -> bool:
    return state.spilled_bytes > state.spilled_before_bytes


def _trouble(state: StoreState) -> str:
    if state.limit_bytes <= 0:
        return ""
    share = state.used_bytes / state.limit_bytes
    level = f"the object store is {share:.0%} full ({_mb(state.used_bytes)} of {_mb(state.limit_bytes)})"
    if _spilling(state):
        return f"{level} and spills to disk: {_mb(state.spilled_bytes - state.spilled_before_bytes)} more"
    if state.fallback_bytes:
        return f"{level}; {_mb(state.fallback_bytes)} had to be allocated on disk"
    return level if share >= SOFT_SHARE else ""


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
