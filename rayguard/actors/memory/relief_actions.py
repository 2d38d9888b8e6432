"""Reliefs carried out in this process, each with what it gave back.

Which one comes next is ``rayguard.memory.relief``; when there is a need,
``rayguard.actors.memory.memory_guard``. A new process for the actor (``RECYCLE``) is
``rayguard.actors.life.recycle``.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from typing import TYPE_CHECKING

from rayguard.actors.mark import Task, mark_of
from rayguard.engine.build.footprint import measure
from rayguard.harmless import harmless
from rayguard.memory.relief import Need, Relief, Tried
from rayguard.process.resident import resident

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.supervision.supervisor import EngineSupervisor
    from rayguard.process.identity import ProcessId

# glibc's; None with another C library or allocator
_malloc_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
HOOK = "reduce_memory"
LEAVE = "rayguard_leave"  # of an actor that a pool serves (``PoolActor``)
_WATCHED = "it is only watched"
_OF_A_TASK = {
    Relief.REDUCE: "the task has ended",
    Relief.RECYCLE: "its process is Ray's, for the next task: @ray.remote(max_calls=...) has it replaced",
}
HOOKS = frozenset({HOOK, "state_dict", "load_state_dict"})  # the guard's own calls of a user's class


def collect() -> None:
    """Collect garbage, give torch's cached device memory and malloc's free pages back.

    In this order: what the collector frees is what the others can give back.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if _malloc_trim is not None:
        _malloc_trim(0)


def free_leaks() -> int:
    """End what outlived its scope, where it is proved that only data holds it; return its bytes.

    What was not made in a scope is left alone: nobody declared when it may end.
    """
    if "rayguard.objects.holdings" not in sys.modules:  # no scope was ever opened here
        return 0
    from rayguard.objects.watch import end_leaks  # noqa: PLC0415 - see above

    return end_leaks(dry_run=False).size_bytes


class ReliefActions:
    """Carries reliefs out for one actor, or for ``instance`` of the tasks that come one after the other."""

    def __init__(self, instance: object) -> None:
        self.instance = instance

    def cannot(self) -> dict[Relief, str]:
        """Say which reliefs are not open to this actor or task, and why."""
        if isinstance(self.instance, Task):
            return dict(_OF_A_TASK)
        mark = mark_of(type(self.instance))
        if mark is not None and mark.watching:
            return dict.fromkeys((Relief.REDUCE, Relief.RECYCLE, Relief.ENGINE), _WATCHED)
        if callable(getattr(self.instance, HOOK, None)):
            return {}
        return {Relief.REDUCE: f"{type(self.instance).__name__} has no {HOOK}(wanted_bytes)"}

    def engine_processes(self) -> tuple[ProcessId, ...]:
        """Return the processes of the engine that this actor owns and that serves."""
        slot = self._slot()
        return () if slot is None else slot.processes()

    @property
    def pooled(self) -> bool:
        """Whether a pool has this actor's requests, and another actor for them."""
        return bool(getattr(self.instance, "rayguard_served", False))

    def ask_to_leave(self, why: str) -> None:
        """Ask the pool to replace this actor; an empty ``why`` takes that back."""
        getattr(self.instance, LEAVE)(why)

    def enact(self, relief: Relief, need: Need) -> Tried:
        """Carry ``relief`` out; its own errors are logged and counted, and it then freed nothing."""
        before, began, freed = self._private(), time.monotonic(), 0
        with harmless(f"relief {relief.value}"):
            if relief is Relief.COLLECT:
                collect()
            elif relief is Relief.FREE:
                freed = free_leaks()
            elif relief is Relief.REDUCE:
                getattr(self.instance, HOOK)(need.wanted)
            elif relief is Relief.ENGINE:
                freed = self._new_engine()
        freed = max(freed, before - self._private(), 0)
        now = time.monotonic()
        return Tried(relief=relief, at=now, freed=freed, took_s=now - began)

    def _new_engine(self) -> int:
        slot = self._slot()
        before = measure(self.engine_processes()).host_bytes
        renewed = None if slot is None else slot.renew("it is replaced: its processes have grown")
        if slot is None or renewed is None:
            return 0  # it is being replaced anyway
        renewed.result(slot.patience_s)
        return before - measure(self.engine_processes()).host_bytes

    def _slot(self) -> EngineSupervisor | None:
        return getattr(self.instance, "_engine_slot", None)

    def _private(self) -> int:
        found = resident(os.getpid())
        return 0 if found is None else found.private
