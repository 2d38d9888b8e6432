"""One frame of a traceback, as Python, rich, pytest, notebooks, JSON logs and people write it."""

from __future__ import annotations

import re

from rayguard.faults.frame import Frame

# Its quotes may be those of a JSON text, and people leave numbers out: "line ~2124", "line N".
_FRAME = re.compile(
    r'^\s{0,40}\|?\s{0,8}File \\{0,3}"([^"]{1,400}?)\\{0,3}",?'
    r"(?: line (?:~?(\d{1,9})|[A-Z]{1,4}|[.?*…]{1,3})(?:,? in (.{1,200}))?| in (\w.{0,200}))"
)
# As rich and typer print it, in a box: a frame, and its line of code.
_BOXED_FRAME = re.compile(r"^(\S{1,400}\.py):(\d{1,9}) in (\S.{0,200})$")
# As a notebook prints it: "File ~/a.py:53, in f(x)", before IPython 8 "~/a.py in f(x)", then "--> 53 code".
# As pytest writes it: "a.py:53: in f".
_CELL_FRAME = re.compile(r"^\s{0,12}(?:File )?(\S{1,400}\.py):(\d{1,9})[,:]? in (\w[\w.<>]{0,200})")
# As people shorten it: "a.py, in f", "a.py, line 53, in f".
_BARE_FRAME = re.compile(r"^\s{0,12}([^\s\"']{1,400}\.py),?(?:,| line (\d{1,9}),?) in (\w[\w.<>]{0,200})$")
_CELL_MODULE = re.compile(r"^\s{0,12}File ([^\s\"']{1,400}\.py):(\d{1,9})$")  # of no function: at import
_OLD_CELL_FRAME = re.compile(r"^(\S{1,400}\.py) in (\w[\w.<>]{0,200})\(")
_LINK = re.compile(r"^\[(/[^\]\s]{1,400}\.py)\]\(https?://[^)\s]{1,200}\)")  # as Colab writes a file's name
_MODULE = "<module>"


def boxed_frame_in(text: str) -> Frame | None:
    """Return the frame that a line of a box is."""
    found = _BOXED_FRAME.match(text)
    return None if found is None else Frame(found[1], int(found[2]), found[3].strip())


def frame_in(text: str) -> Frame | None:
    """Return the frame that ``text`` begins with; its line is 0 where none is given."""
    if "File" in text and (found := _FRAME.match(text)) is not None:
        function = (found[3] or found[4] or "").strip().removesuffix(" (Current frame)")  # of a debugger
        if function[:1] == "<" and _MODULE.startswith(function):  # the text ends within it
            function = _MODULE
        return Frame(found[1], int(found[2] or 0), function)
    if ".py" not in text[:400]:
        return None
    text = _LINK.sub(r"\1", text)
    if (found := _CELL_FRAME.match(text) or _BARE_FRAME.match(text)) is not None:
        return Frame(found[1], int(found[2] or 0), found[3])
    if (found := _CELL_MODULE.match(text)) is not None:
        return Frame(found[1], int(found[2]), _MODULE)
    old = _OLD_CELL_FRAME.match(text)
    return None if old is None else Frame(old[1], 0, old[2])
