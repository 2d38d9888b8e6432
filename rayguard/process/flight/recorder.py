"""The flight recorder of this process, as plain functions: one line for whoever has something to tell.

Until ``start``, and after ``stop`` or a fork, they do nothing. How it writes is ``writer``; what can
be read after a death, ``recording``; who ended the process, ``rayguard.process.death_cause.killer``.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING

from rayguard.process.flight.sampler import EVERY_S
from rayguard.process.flight.writer import FlightRecorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import NoReturn

_lock = threading.Lock()
_flight: FlightRecorder | None = None
_NOT_STARTED = 0


def start(
    home: Path | str,
    *,
    title: str = "",
    actor_id: str = "",
    every_s: float = EVERY_S,
    failed: Callable[[Exception], None] | None = None,
) -> FlightRecorder:
    """Record this process from now on; the first call counts. Takes less than a millisecond.

    ``failed`` gets the first error of the recorder, if it ever has one.

    Raises:
        OSError: There is no room for the file, or its directory cannot be written.
    """
    global _flight  # noqa: PLW0603 - one recorder per process, and its calls must find it at once
    with _lock:
        if _flight is None:
            _flight = FlightRecorder(home, title=title, actor_id=actor_id, failed=failed)
            _flight.start(every_s)
            _watch_the_end()
        return _flight


def stop() -> None:
    """Record no more; the recording stays until it is swept."""
    global _flight
    with _lock:
        flight, _flight = _flight, None
    if flight is not None:
        flight.close()


def current() -> FlightRecorder | None:
    """Return the recorder of this process, if it records."""
    return _flight


def begin(owner: str, name: str) -> int:
    """Note that a method begins; give what is returned to ``end``. Takes about 0.3 us."""
    flight = _flight
    if flight is None:
        return _NOT_STARTED
    try:
        return flight.begin(owner, name)
    except Exception as error:  # noqa: BLE001 - a user's call enters here, and goes on without its record
        flight.went_wrong(error)
        return _NOT_STARTED


def end(call: int) -> None:
    """Note that the call has ended, well or not. Takes about 0.3 us."""
    flight = _flight
    if flight is not None and call != _NOT_STARTED:
        try:
            flight.end(call)
        except Exception as error:  # noqa: BLE001 - see `begin`
            flight.went_wrong(error)


def record_memory(
    *,
    private: int,
    shared: int = 0,
    device: int = 0,
    node_ratio: float | None = None,
    step: int | None = None,
) -> None:
    """Record what somebody measured: bytes of this process, and the share of the node's memory in use.

    Who calls this at least every three seconds spares the recorder its own reading.
    """
    flight = _flight
    if flight is not None:
        flight.record_memory(private=private, shared=shared, device=device, node_ratio=node_ratio, step=step)


def record_event(line: str) -> None:
    """Record a line: what an engine, a policy or a user has to say."""
    flight = _flight
    if flight is not None:
        flight.record_event(line)


def ending(how: str) -> None:
    """Record how this process is about to end, and by whom. The first word counts."""
    flight = _flight
    if flight is not None:
        flight.ending(how)


def _watch_the_end() -> None:
    """Have an end by its own hand leave a word: outside, ``os._exit`` looks like a SIGKILL."""
    global _watched  # noqa: PLW0603 - once per process, and for ever
    if _watched:
        return
    _watched = True
    os._exit = _Exit(os._exit)
    atexit.register(_at_exit)


class _Exit:
    """Stands for ``os._exit``, and is pickled as it: a user's process may have it as its target."""

    def __init__(self, real: Callable[[int], NoReturn]) -> None:
        self._real = real
        functools.update_wrapper(self, real)

    def __call__(self, status: int) -> NoReturn:
        ending(f"os._exit({status}) in {_caller()}")
        self._real(status)

    def __reduce__(self) -> tuple[Callable[[], Callable[[int], NoReturn]], tuple[()]]:
        return _current_exit, ()


def _current_exit() -> Callable[[int], NoReturn]:
    return os._exit


def _caller() -> str:
    frame = sys._getframe(2)  # noqa: SLF001 - Python's documented way to the stack
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _at_exit() -> None:
    error = getattr(sys, "last_value", None)
    after = "" if error is None else f" after {type(error).__name__}"
    ending(f"the interpreter came to its end{after}")


def _forked() -> None:
    global _flight, _lock
    _flight, _lock = None, threading.Lock()


_watched = False
os.register_at_fork(after_in_child=_forked)
