"""Reliefs carried out in this process, each with what it gave back.

Which one comes next is ``rayguard.memory.relief``; when there is a need, ``rayguard.actors.memory``. A new
process for the actor (``RECYCLE``) is ``rayguard.actors.recycle``.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rayguard.actors.leaks import free_leaks
from rayguard.actors.mark import Task, mark_of
from rayguard.engine.footprint import measure
from rayguard.memory.probes.process import ProcessMemory
from rayguard.memory.relief import Need, Relief, Tried
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from rayguard.engine.supervisor import EngineSupervisor
    from rayguard.process.identity import ProcessId

HOOK = "reduce_memory"
LEAVE = "rayguard_leave"  # of an actor that a pool serves (``pool.member``)
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
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


class Hands:
    """Carries reliefs out for one actor, or for ``instance`` of the tasks that come one after the other."""

    def __init__(self, instance: object) -> None:
        self.instance = instance
        self._memory = ProcessMemory()

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

    def close(self) -> None:
        """Give the descriptor back."""
        self._memory.close()

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
        found = self._memory.read()
        return 0 if found is None else found.private


@lru_cache(maxsize=1)
def _malloc_trim() -> Any:
    """Return glibc's ``malloc_trim``, None with another C library or allocator."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
