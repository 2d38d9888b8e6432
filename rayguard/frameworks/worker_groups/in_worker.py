"""What a group's owner has its workers do beside their own methods: run within their processes by Ray."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import sys
import warnings
from typing import TYPE_CHECKING, TextIO

from rayguard.frameworks.worker_groups.snapshot_pace import WorkerLook

if TYPE_CHECKING:
    from collections.abc import Callable

_LOADS = "checkpoint_load_contents"


class _WithoutPath(io.TextIOBase):
    """Lets through what is printed, but the lines that speak of a path: of ours, which nobody asked for."""

    def __init__(self, path: str, to: TextIO) -> None:
        self._path, self._to, self._line = path, to, ""

    def write(self, text: str) -> int:
        """Write all whole lines, and keep the rest until its end."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if self._path not in line:
                self._to.write(f"{line}\n")
        return len(text)

    def flush(self) -> None:
        """Flush what is underneath."""
        self._to.flush()

    def end(self) -> None:
        """Write a last line that has no end."""
        if self._line and self._path not in self._line:
            self._to.write(self._line)
        self._line = ""


def look(worker: object, method: str, role: str) -> WorkerLook:
    """Return what must be known before the state of this worker is saved by ``method``."""
    import ray  # noqa: PLC0415 - an actor runs here

    save: Callable[..., object] = getattr(_holder(worker, role), "save_checkpoint", getattr(worker, method))
    return WorkerLook(
        node_id=str(ray.get_runtime_context().get_node_id()),
        parameters=tuple(inspect.signature(save).parameters),
        parameter_bytes=_parameter_bytes(),
        loads=_loads(),
    )


def save(worker: object, method: str, path: str) -> None:
    """Have this worker save its state into a folder of ours, and print nothing of it."""
    quiet = _WithoutPath(path, sys.stdout)
    with contextlib.redirect_stdout(quiet), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(worker, method)(path)
    quiet.end()


def _holder(worker: object, role: str) -> object:
    """Return the worker of a role, within a process that several share."""
    return getattr(worker, "worker_dict", {}).get(role, worker)


def _parameter_bytes() -> int:
    """Return the size of all parameters in this process, each piece of memory counted once."""
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    sizes: dict[int, int] = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.nn.Parameter):
            with contextlib.suppress(Exception):  # one without storage
                storage = one.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def _loads() -> tuple[str, ...]:
    """Return what the checkpoint managers of this process load, where one of them can be told."""
    for one in gc.get_objects():
        if type(one).__name__.endswith("CheckpointManager"):
            said = getattr(one, _LOADS, None)
            if said is not None:
                return tuple(str(part) for part in said)
    return ()
