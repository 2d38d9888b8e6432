"""Frames: which line of user code makes an object, and what other threads work with. No Ray here."""

from __future__ import annotations

import inspect
import sys
import threading
from typing import TYPE_CHECKING

from rayguard.ray_internals.module_names import CALLED_BY_USERS

if TYPE_CHECKING:
    from types import FrameType

_PASSED_THROUGH = (*CALLED_BY_USERS, "rayguard.objects.hooks", "rayguard.ray_internals.actor_creation")
_STRANGERS = ("ray", "rayguard")
_DEPTH = 16
_MOST_FRAMES = 2000


def call_site(start: FrameType | None = None) -> str | None:
    """Return "file:line in function" of the user's line that called into Ray; None when no user did.

    About a microsecond: a few steps up, no source is read.
    """
    frame = start if start is not None else sys._getframe(1)  # noqa: SLF001 - the way to the caller's line
    for _ in range(_DEPTH):
        module = frame.f_globals.get("__name__", "")
        if not (isinstance(module, str) and module.startswith(_PASSED_THROUGH)):
            strange = isinstance(module, str) and module.partition(".")[0] in _STRANGERS
            return None if strange else _named(frame)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _named(frame: FrameType) -> str:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    return f"{code.co_filename}:{frame.f_lineno} in {name}"


def in_other_threads() -> set[int] | None:
    """Return the ids of what the variables of all other running threads hold, one level of arguments deep.

    None when there are too many frames to look at.
    """
    tops = sys._current_frames()  # noqa: SLF001 - the only way to other threads
    tops.pop(
        threading.get_ident(), None
    )  # a variable for our own frame would be a cycle that keeps what it holds
    found: set[int] = set()
    looked_at = 0
    for top in tops.values():
        frame: FrameType | None = top
        while frame is not None:
            looked_at += 1
            if looked_at > _MOST_FRAMES:
                return None
            _collect(frame, found)
            frame = frame.f_back
    return found


def _collect(frame: FrameType, found: set[int]) -> None:
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return  # a module's or class's body: its variables are a dict that the heap shows
    variables = frame.f_locals
    for value in list(variables.values()):
        found.add(id(value))
        if type(value) in (tuple, dict):
            found.update(map(id, value.values() if isinstance(value, dict) else value))
    _forget(frame, variables)


def _forget(frame: FrameType, variables: object) -> None:
    """Empty the copy of the variables that Python before 3.13 leaves in the frame: it would keep them alive.

    Left alone where somebody else has it (``locals()``) or a tracer may write it back.
    """
    held_by_us = 4  # the frame, our caller's name, our own, and getrefcount's argument
    if type(variables) is dict and frame.f_trace is None and sys.getrefcount(variables) <= held_by_us:
        variables.clear()


def runs_in_this_thread(frame: FrameType | None) -> bool:
    """Say whether ``frame`` is on the stack of this thread."""
    caller: FrameType | None = sys._getframe(1)  # noqa: SLF001 - our own stack
    while caller is not None and frame is not None:
        if caller is frame:
            return True
        caller = caller.f_back
    return False
