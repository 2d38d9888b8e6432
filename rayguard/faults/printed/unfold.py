"""Lines that hold a whole traceback: the repr of a text or of a list, or without line ends."""

from __future__ import annotations

import re
from dataclasses import replace

from rayguard.faults.printed.frames import TRACEBACK
from rayguard.faults.printed.line import PrintedLine, peel

MAX_LINES = 400
_HEAD = f"{TRACEBACK}:"
_FRAME = 'File "'
_QUOTES = ("'", '"')
_WRITTEN_QUOTE = 'File \\"'  # as JSON writes it
_NESTED_QUOTE = 'File \\\\\\"'  # JSON within JSON
_WRITTEN_FRAME = '\\n  File "'  # of a text within a message, without its head
_NESTED = re.compile(r'\\(["\\])')
_WRITTEN_END = re.compile(r"""(?<!\\)\\n(?:['"], ?['"])?""")  # "\n" as repr writes it, also between items
_BEFORE_FRAME = re.compile(r'\s{1,8}(?=File "[^"]{1,400}", line \d{1,9})')
_JOINED_FRAME = re.compile(r'^(File "[^"]{1,400}", line \d{1,9}(?:, in [\w.<>]{1,200})?)\s(.{0,4000})$')
_LAST = re.compile(
    r"^(.{0,2000}?)\s{1,8}([A-Za-z_][\w.]{0,160}(?:Error|Exception|Timeout|Interrupt)(?:: .{0,4000})?)$"
)
_ASSERTED = re.compile(r"^\s{0,40}(assert .{1,400}?)\s{1,8}AssertionError(?:: (.{0,2000}))?$")


def unfolded(line: PrintedLine) -> tuple[PrintedLine, ...]:
    """Return ``line`` as the lines that it was made of; itself where it is one."""
    text = line.text
    if "AssertionError" in text and (found := _ASSERTED.match(text)) is not None:
        return (replace(line, text=f"AssertionError: {found[2] or found[1]}"),)
    if _NESTED_QUOTE in text:
        text = _NESTED.sub(r"\1", text)
    if "\n" in text:
        texts = text.splitlines()
    elif _HEAD in text and (_FRAME in text or _WRITTEN_QUOTE in text):
        texts = _of_repr(text) if _WRITTEN_END.search(text) else _of_joined(text)
    elif _WRITTEN_FRAME in text:
        texts = _of_repr(text)
    elif text[:1] in _QUOTES and text[-1:] == text[:1] and _WRITTEN_END.search(text):
        texts = _of_repr(text[1:-1])
    else:
        return (line,)
    return tuple(_part(line, one) for one in texts[:MAX_LINES])


def _part(line: PrintedLine, text: str) -> PrintedLine:
    """Return one of the lines that ``line`` was made of; it may have a prefix of its own."""
    part = peel(text, line.number)
    return replace(
        line,
        text=part.text,
        process=line.process or part.process,
        source=line.source or part.source,
        level=part.level or line.level,
    )


def _of_repr(text: str) -> list[str]:
    return [
        one.replace("\\'", "'").replace('\\"', '"')
        for one in _WRITTEN_END.split(text)
        if one.strip("'\"[](), ")
    ]


def _of_joined(text: str) -> list[str]:
    before, _, rest = text.partition(_HEAD)
    texts = [before + _HEAD]
    *frames, last = _BEFORE_FRAME.split(rest)
    for frame in filter(None, map(str.strip, frames)):
        texts += _of_frame(frame)
    found = _LAST.match(last)
    texts += [*_of_frame(found[1]), found[2]] if found is not None else _of_frame(last)
    return texts


def _of_frame(text: str) -> list[str]:
    found = _JOINED_FRAME.match(text)
    return [f"  {text}"] if found is None else [f"  {found[1]}", f"    {found[2]}"]
