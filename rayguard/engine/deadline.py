"""A deadline for a call that has none of its own; and what ends one that is neither a result nor an error."""

from __future__ import annotations

import concurrent.futures
import threading
import traceback
from typing import TYPE_CHECKING, TypeVar

from rayguard.errors import ConfigError
from rayguard.process.code_lines import line_of

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def begun(call: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Run ``call`` in a thread of its own, and return what will have its result."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


def bounded(call: Callable[[], T], deadline_s: float, name: str = "rayguard-bounded") -> T:
    """Run ``call`` in a thread of its own and return its result.

    A call that does not end in time goes on in its thread: whoever asks must end what it waits for.

    Raises:
        TimeoutError: It took longer than ``deadline_s``.
    """
    outcome = begun(call, name)
    done, _ = concurrent.futures.wait([outcome], deadline_s)
    if not done:
        raise TimeoutError(f"{name}: no result within {deadline_s:.1f} s")
    return outcome.result()


def as_error(ended: BaseException, what: str) -> Exception:
    """Return ``ended``, or what to raise for it where ``what`` meant to end a thread or the whole process.

    ``sys.exit()``, an argument parser, ``KeyboardInterrupt``, a cancelled task: none of them reaches whoever
    waits for ``what``, and Ray would begin the actor anew for ever.
    """
    if isinstance(ended, Exception):
        return ended
    frames = [frame for frame, _ in traceback.walk_tb(ended.__traceback__)][::-1]
    told = ConfigError(f"{what} ended with {ended!r}, at {line_of(frames, '')}")
    told.__cause__ = ended
    return told
