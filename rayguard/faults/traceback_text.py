"""Exceptions read from text: what Ray leaves of a chain when an exception crosses a process.

Ray pickles an exception without its traceback and without its ``__cause__``; both survive only as text in
the message of ``RayTaskError`` and ``ActorDiedError``. Reading whole log files is not done here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_TEXT_CHARS = 32_000  # the end of a traceback is what counts; a longer one is cut at its start
MAX_SECTIONS = 8

_LINKS = re.compile(
    r"\n(?:During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:)\n"
)
_FRAME = re.compile(r'^\s{1,12}File "([^"\n]{1,400})", line (\d{1,9})(?:, in ([^\n]{1,200}))?$')
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]{0,200}(?:\([\w.]{1,200}\))?)(?:: (.{0,4000}))?$")
_INDENTED = (" ", "\t")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,12}m")  # Ray paints the name of the task


def without_colour(text: str) -> str:
    """Return ``text`` without terminal colours."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


@dataclass(frozen=True, slots=True)
class TextFrame:
    """One ``File "...", line n, in f`` of a traceback, with the source line below it."""

    file: str
    line: int
    function: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class TextException:
    """One exception of a printed chain."""

    type_name: str
    message: str
    frames: tuple[TextFrame, ...]


def exceptions_in(text: str) -> tuple[TextException, ...]:
    """Return the exceptions of a printed chain, the root cause first (as Python prints them)."""
    if '  File "' not in text:
        return ()
    sections = _LINKS.split(without_colour(text[-MAX_TEXT_CHARS:]))[-MAX_SECTIONS:]
    found = (_exception(section.splitlines()) for section in sections)
    return tuple(exception for exception in found if exception is not None)


def _exception(lines: list[str]) -> TextException | None:
    frames: list[TextFrame] = []
    type_name, message = "", ""
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is not None:
            code = lines[number + 1].strip() if number + 1 < len(lines) else ""
            seen = TextFrame(frame[1], int(frame[2]), frame[3] or "", "" if _FRAME.match(code) else code)
            frames.append(seen)
        elif line.startswith(_INDENTED) or not line:
            continue
        elif (named := _EXCEPTION.match(line)) is not None and frames:
            type_name, message = named[1], (named[2] or "").strip()
            if message.startswith("ray::"):  # a task called a task: its own frames and exception follow
                frames.clear()
    return TextException(type_name, message, tuple(frames)) if frames and type_name else None
