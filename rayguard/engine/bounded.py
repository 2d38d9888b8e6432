"""A deadline for a call that has none of its own."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING, TypeVar

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
