"""One training job whose worker leaks host memory, object references and shared memory, step by step.

A process of its own, with a Ray of its own whose memory monitor kills early, as in the published failure
(EasyR1: dead at step 4, memory creeping, leaked shared-memory objects). Bare, or under guard; prints one
line of JSON. ``soak.py`` runs both and compares.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import ray

import rayguard
from rayguard.process.resident import resident

MIB = 1 << 20
HOST_MIB, REFS_MIB, SHM_MIB = 48, 4, 2  # that each step leaks
STEPS = 40
STEP_S = 1.5  # short for a step of training, and long enough that a search of the heap at its end is allowed
ROOM_MIB = (
    1_800  # from the node's use at the start, without Ray, to where Ray kills: less than all steps leak
)
_ANSWER_S = 300.0
_P = 1_000_003


class Trainer:
    """What a user writes: its state is the model, and it forgets to let go of what each step made."""

    def __init__(self, done: str) -> None:
        self.value = 1
        self.done = Path(done)
        self.seen: list[Any] = []
        self.rollouts: list[Any] = []
        self.buffers: list[Any] = []

    def update(self, step: int, batch: int) -> tuple[int, int]:
        """One step; returns the step and the model."""
        self.seen.append(bytearray(os.urandom(1)) * (HOST_MIB * MIB))
        self.rollouts.append(ray.put(os.urandom(1) * (REFS_MIB * MIB)))
        self.buffers.append(shared_memory.SharedMemory(create=True, size=SHM_MIB * MIB))
        self.buffers[-1].buf[: SHM_MIB * MIB : 4096] = b"x" * (SHM_MIB * MIB // 4096)
        threading.Event().wait(STEP_S)
        self.value = (self.value * 31 + batch + step) % _P
        with self.done.open("a") as file:
            file.write(f"{step} {os.getpid()}\n")
        return step, self.value

    def state_dict(self) -> dict[str, int]:
        """Return the model."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take the model up."""
        self.value = state["value"]


def right() -> list[tuple[int, int]]:
    """Return what the steps give when nothing happens to them."""
    value, found = 1, []
    for step in range(STEPS):
        value = (value * 31 + 7 * step + step) % _P
        found.append((step, value))
    return found


def guarded() -> Any:
    """Return the trainer as its user guards it: two lines more."""
    cls = type("GuardedTrainer", (Trainer,), {"__module__": __name__})
    cls.update = rayguard.object_scope(Trainer.update)  # type: ignore[attr-defined]
    return ray.remote(rayguard.guard(memory=rayguard.MemoryPolicy())(cls))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--guard", action="store_true")
    options.add_argument("--folder", type=Path, required=True)
    chosen = options.parse_args()
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=512 * MIB,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    done = chosen.folder / "done"
    actor = guarded() if chosen.guard else ray.remote(Trainer)
    got: list[Any] = []
    store: list[float] = []
    trainer_mib: list[float] = []
    error = ""
    try:
        trainer = actor.remote(str(done))
        for step in range(STEPS):
            got.append(ray.get(trainer.update.remote(step, 7 * step), timeout=_ANSWER_S))
            store.append(_store_used())
            trainer_mib.append(_private(done))
    except ray.exceptions.RayError as raised:
        error = f"{type(raised).__name__}: {str(raised)[:300]}"
    lines = done.read_text().splitlines() if done.exists() else []
    steps = [int(line.split()[0]) for line in lines]
    told = {
        "steps": len(got),
        "right": got == right()[: len(got)],
        "repeated": len(steps) - len(set(steps)),
        "lives": len({line.split()[1] for line in lines}),
        "store_mib": [round(used / MIB, 1) for used in store],
        "trainer_mib": trainer_mib,
        "error": error,
    }
    print(json.dumps(told), flush=True)
    ray.shutdown()
    return 0


def _private(done: Path) -> float:
    """Return the memory of the process that did the last step, in MiB; 0 when it is gone."""
    found = resident(int(done.read_text().split()[-1]))
    return 0.0 if found is None else round(found.private / MIB, 1)


def _store_used() -> float:
    total = ray.cluster_resources().get("object_store_memory", 0.0)
    return float(total - ray.available_resources().get("object_store_memory", total))


if __name__ == "__main__":
    sys.exit(main())
