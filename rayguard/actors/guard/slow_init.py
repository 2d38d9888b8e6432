"""An actor's ``__init__`` that does not come back is told once, with the line that it stands at.

Bare Ray says nothing of it, and whoever calls the actor waits. Nothing is judged and nothing ended: to load a
model takes minutes. Calls that stand still are found by the agent of a node, and these are none for it: it
compares with calls of the same method that have ended. Loads the standard library only, as every worker of a
watched job does that loads this.
"""

from __future__ import annotations

import _thread
import sys
import threading
from typing import TYPE_CHECKING

from rayguard.actors.methods import GUARDED_INIT
from rayguard.harmless import harmless
from rayguard.process.code_lines import frames_of, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

TOLD_AFTER_S = 45.0
_SUSPENDED = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


def begun(instance: object, coroutine: object = None) -> Callable[[], object]:
    """Watch the ``__init__`` of ``instance``, which begins in this thread; its ``coroutine``, if it is one.

    What is returned is to be called once, at its end. The bare thread and lock take 40 us; those of
    ``threading`` 140.
    """
    runs = _thread.allocate_lock()
    runs.acquire()
    with harmless("slow init"):
        _thread.start_new_thread(_tell_late, (instance, runs, threading.get_ident(), coroutine))
    return runs.release


def _tell_late(instance: object, runs: _thread.LockType, thread: int, coroutine: object) -> None:
    if runs.acquire(timeout=TOLD_AFTER_S):
        return
    with harmless("slow init"):
        from rayguard.process.flight import recorder  # noqa: PLC0415 - almost no ``__init__`` takes so long
        from rayguard.ray_internals.worker import this_actor  # noqa: PLC0415

        if this_actor() is not instance:
            return
        package = type(instance).__module__.partition(".")[0]
        where = line_of(_on_stack(thread) or list(_suspended(coroutine))[::-1], package)
        line = (
            f"rayguard: {type(instance).__name__}.__init__ has run for {TOLD_AFTER_S:.0f} s and still runs"
            f"{where and ', at '}{where}; calls of this actor wait for it. To load a model takes minutes; "
            "where nothing should take so long, look there"
        )
        if runs.locked():
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - Ray brings it to the driver's log
            recorder.record_event(line)


def _on_stack(thread: int) -> list[FrameType]:
    """Return the frames of the ``__init__`` that runs in a thread, innermost first; none where it awaits."""
    frames = frames_of(thread)
    ours = [at for at, one in enumerate(frames) if one.f_code.co_name == GUARDED_INIT]
    return frames[: ours[-1]] if ours else []


def _suspended(coroutine: object) -> Iterator[FrameType]:
    """Yield the frames that a suspended coroutine goes on with, outermost first."""
    while coroutine is not None:
        for frame, inner in _SUSPENDED:
            if hasattr(coroutine, inner):
                if (found := getattr(coroutine, frame, None)) is not None:
                    yield found
                coroutine = getattr(coroutine, inner)
                break
        else:
            return
