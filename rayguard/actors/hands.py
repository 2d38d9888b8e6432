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
from typing import Any

from rayguard.actors.leaks import free_leaks
from rayguard.actors.tasks import Task
from rayguard.memory.probes.process import ProcessMemory
from rayguard.memory.relief import Need, Relief, Tried
from rayguard.recovery.harmless import harmless

HOOK = "reduce_memory"
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
        if callable(getattr(self.instance, HOOK, None)):
            return {}
        return {Relief.REDUCE: f"{type(self.instance).__name__} has no {HOOK}(wanted_bytes)"}

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
        freed = max(freed, before - self._private(), 0)
        now = time.monotonic()
        return Tried(relief=relief, at=now, freed=freed, took_s=now - began)

    def close(self) -> None:
        """Give the descriptor back."""
        self._memory.close()

    def _private(self) -> int:
        found = self._memory.read()
        return 0 if found is None else found.private


@lru_cache(maxsize=1)
def _malloc_trim() -> Any:
    """Return glibc's ``malloc_trim``, None with another C library or allocator."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
