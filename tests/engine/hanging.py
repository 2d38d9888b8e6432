"""Hangs on purpose inside a real engine's processes, each lit by a fuse from outside (``rayguard.testing.fuse``).

``HangingScheduler`` runs in the core, ``HangingWorker`` in the workers, once ``arm_hang`` was called there.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

from vllm.v1.core.sched.scheduler import Scheduler

from rayguard.testing.fuse import CONFIG_KEY, Fuse

STEP_S = 0.008  # a larger model computes as long; this one would keep both cores busy while nobody looks


def spin_for_ever() -> None:
    while True:
        pass


def wait_for_ever() -> None:
    threading.Event().wait()


def _runs(thread: threading.Thread) -> str:
    return getattr(getattr(thread, "_target", None), "__name__", "")


def end_thread(target: str) -> None:
    """End the thread that runs ``target`` the next time it wakes up: what it was given then is lost."""
    (thread,) = (t for t in threading.enumerate() if _runs(t) == target)
    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    assert raised == 1, raised


IN_CORE = {
    "core_spins": spin_for_ever,
    "core_waits": wait_for_ever,
    "input_dies": lambda: end_thread("process_input_sockets"),
    "output_dies": lambda: end_thread("process_output_sockets"),
}
IN_WORKER = {"worker_spins": spin_for_ever, "worker_waits": wait_for_ever}


def strike(folder: Path, faults: dict) -> None:
    for name, fault in faults.items():
        fuse = Fuse(folder / name)
        if fuse.calls_left() is not None and fuse.burn():
            fault()


class HangingScheduler(Scheduler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._fuses = Path(self.vllm_config.additional_config[CONFIG_KEY])

    def schedule(self, *args, **kwargs):
        if self.running:
            strike(self._fuses, IN_CORE)
            threading.Event().wait(STEP_S)
        return super().schedule(*args, **kwargs)


class HangingWorker:
    def arm_hang(self, folder: str) -> None:
        execute = self.model_runner.execute_model

        def hanging(*args, **kwargs):
            strike(Path(folder), IN_WORKER)
            return execute(*args, **kwargs)

        self.model_runner.execute_model = hanging

    def come_back_with(self, file: str) -> int:
        while not Path(file).exists():
            threading.Event().wait(0.05)
        return 7
