"""Where a thread of this process stands: a line for people, the user's own where there is one.

Other processes' stacks are ``rayguard.process.stacks``. Loads the standard library only.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def frames_of(thread: int) -> list[FrameType]:
    """Return the frames that a thread runs now, innermost first; none where it has ended."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to other threads
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def line_of(frames: list[FrameType], package: str) -> str:
    """Return "function (file:line)" of the innermost frame that is the user's, or the actor's ``package``'s.

    And of the innermost of all, where that is another one; '' for no frames.
    """
    theirs = next((one for one in frames if _is_users(one, package)), None)
    if theirs is None or theirs is frames[0]:
        return "".join(map(_named, frames[:1]))
    return f"{_named(theirs)}, in {_named(frames[0])}"


def _is_users(frame: FrameType, package: str) -> bool:
    import sysconfig  # noqa: PLC0415 - almost nobody asks

    if frame.f_globals.get("__name__", "").partition(".")[0] == package:
        return True
    ours = str(PurePath(__file__).parents[1])
    libraries = ("<frozen", ours, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    return not frame.f_code.co_filename.startswith(libraries)


def _named(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name} ({'/'.join(code.co_filename.split('/')[-3:])}:{frame.f_lineno})"
