"""The line of a traceback that names its exception: its type, what a wrapper carries, and its message."""

from __future__ import annotations

import re

from rayguard.faults.printed.guess import ENDINGS

NAME = r"[A-Za-z_][\w.]{0,160}"
# What torch.OutOfMemoryError, RayTaskError(ValueError) and a bare AssertionError look like.
_TYPED = re.compile(
    rf"^(?:\w{{1,40}} )?(Exception|{NAME}{ENDINGS}|[a-z_][\w.]{{0,120}}\.[A-Z]\w{{2,80}})"
    rf"(\({NAME}\))?(?:: ?(.*))?$"
)
# Not "wandb: run history", "ERROR: gone": what other programs print next.
_OTHERS = r"(?![a-z]\w{0,40}: |(?:DEBUG|INFO|NOTE|HINT|WARN|WARNING|ERROR|CRITICAL|FATAL): )"
_AFTER_FRAMES = re.compile(rf"^{_OTHERS}({NAME})(\({NAME}\))?: (.*)$|^({NAME}{ENDINGS})$")


def named_exception(text: str) -> tuple[str, str, str] | None:
    """Return type, wrapped type and message of a line that names an exception by itself."""
    found = _TYPED.match(text)
    if found is None:
        return None
    name, message = found[1], found[3] or ""
    half = name[: len(name) // 2]
    if half * 2 == name:  # two ranks wrote at once: "KeyErrorKeyError: : 'id'"
        name, message = half, message.removeprefix(": ")
    return name, (found[2] or "").strip("()"), message


def exception_after_frames(text: str) -> tuple[str, str, str] | None:
    """Return the same of the line after frames, where a name of any form is an exception's."""
    by_itself = named_exception(text)
    if by_itself is not None:
        return by_itself
    found = _AFTER_FRAMES.match(text)
    if found is None:
        return None
    return (found[1] or found[4], (found[2] or "").strip("()"), found[3] or "")
