"""An actor's process that ends between two calls: the answer given last is delivered, what waits is repeated.

Not Ray's ``drain_and_exit_worker``: measured with Ray 2.60 on a busy machine, calls that were queued there
came back to their callers as errors that nobody could read, restarts and retries notwithstanding (17 of 40).
A process that just ends, a moment after its last answer, loses none: Ray repeats what was not answered, and
what it had answered all the same is not made again (``last_answer``).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING

from rayguard.actors.life import last_answer
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.actors.life.incarnation import Incarnation

# For the answer to reach its caller; it is on its way as soon as the method has returned.
DELIVERY_S = 1.0
_HELD_S = 60.0  # longer than any end takes

_leaving = False
_answers: dict[str, object] = {}  # of calls that ended since, by task


def leave_soon(life: Incarnation, before: Callable[[], None]) -> None:
    """End this process when the present call is answered; calls that begin now are for the next life.

    ``before`` is called last, in another thread.
    """
    global _leaving  # noqa: PLW0603 - there is one process to leave
    _leaving = True
    threading.Thread(target=_leave, args=(life, before), name="rayguard-leaving", daemon=True).start()


def is_leaving() -> bool:
    """Say whether the end has been decided on."""
    return _leaving


def answered(value: object) -> None:
    """Keep what a call returns that ends while this process leaves: its caller may not get it in time."""
    if _leaving:
        with harmless("kept answer"):
            task = last_answer.current_task()
            if task:  # a call of the user's own thread is repeated by nobody
                _answers[task] = value


def hold() -> None:
    """Keep a call from beginning in a process that is about to end; Ray repeats it in the next one."""
    if _leaving:
        threading.Event().wait(_HELD_S)


async def hold_async() -> None:
    """Do as ``hold``, and let the answers of other calls go out meanwhile."""
    if _leaving:
        await asyncio.sleep(_HELD_S)


def _leave(life: Incarnation, before: Callable[[], None]) -> None:
    threading.Event().wait(DELIVERY_S)
    with harmless("kept answer"):
        if _answers:
            last_answer.keep(_answers, life)
    with harmless("restart"):
        before()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(1)  # to Ray a failure, so that it starts the actor again
