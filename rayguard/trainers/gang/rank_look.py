"""Where a rank's main thread stands, told by another thread of its process; evidence of who is guilty."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, TypedDict

from rayguard.process.code_lines import frames_of, line_of

if TYPE_CHECKING:
    from types import FrameType

_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_COMPILERS = (
    "/torch/_dynamo/convert_frame.py",
    "/torch/_inductor/compile_fx.py",
    "/triton/compiler/",
    "<frozen importlib",
)
_WRITERS = ("/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/")
_TORCH = "/torch/"
_SEQUENCE = "_get_sequence_number_for_group"  # of a ProcessGroup; torch has no public word for it
_LOOK_S = 0.1  # between two readings of the thread's CPU time
_IDLE = 0.2  # of it, spent on a CPU: a thread that waits for others spends less


class RankLook(TypedDict):
    """Where a rank's main thread stands."""

    in_collective: bool
    operation: str
    collectives: int | None
    where: str
    busy: str


def look_at(thread: int, package: str, native_id: int) -> RankLook:
    """Return where a thread stands: ``in_collective``, ``operation``, ``collectives``, ``where``, ``busy``.

    ``busy`` says what takes its time by right: "compiles", "writes". A thread that waits within torch is
    taken to be in a collective too: DDP's and FSDP's are waited for in C++.
    """
    frames = frames_of(thread)
    files = [frame.f_code.co_filename for frame in frames]
    before = _cpu_s(native_id)
    threading.Event().wait(_LOOK_S)
    spent = _cpu_s(native_id) - before
    operation = _operation(frames)
    waits = bool(files) and _TORCH in files[0] and spent < _IDLE * _LOOK_S
    return {
        "in_collective": bool(operation) or waits,
        "operation": operation,
        "collectives": _collectives(),
        "where": line_of(frames, package),
        "busy": _busy(files),
    }


def _operation(frames: list[FrameType]) -> str:
    """Return the collective that was called, by the outermost frame of torch's module of them."""
    names = [one.f_code.co_name for one in frames if one.f_code.co_filename.endswith(_COLLECTIVES)]
    return names[-1] if names else ""


def _busy(files: list[str]) -> str:
    for what, places in (("compiles", _COMPILERS), ("writes", _WRITERS)):
        if any(place in file for file in files for place in places):
            return what
    return ""


def _collectives() -> int | None:
    """Return how many collectives the default group has begun."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return None
    count = getattr(distributed.group.WORLD, _SEQUENCE, None)
    try:
        return None if count is None else int(count())
    except RuntimeError:  # not of every backend
        return None


def _cpu_s(native_id: int) -> float:
    """Return the CPU seconds of a thread of this process; 0 where it has ended."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", "rb") as file:  # noqa: PTH123 - as light as can be
            return int(file.read().split()[0]) / 1e9
    except OSError:
        return 0.0
