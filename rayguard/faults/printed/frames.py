"""One frame of a traceback, as Python, rich, pytest, notebooks, JSON logs and people write it."""

from __future__ import annotations

import re
from dataclasses import dataclass

TRACEBACK = "Traceback (most recent call last)"
# Its quotes may be those of a JSON text, and people leave numbers out: "line ~2124", "line N".
_FRAME = re.compile(
    r'^\s{0,40}\|?\s{0,8}File \\{0,3}"([^"]{1,400}?)\\{0,3}",?'
    r"(?: line (?:~?(\d{1,9})|[A-Z]{1,4}|[.?*…]{1,3})(?:,? in (.{1,200}))?| in (\w.{0,200}))"
)
# As rich and typer print it, in a box: a frame, and its line of code.
_BOXED_FRAME = re.compile(r"^(\S{1,400}\.py):(\d{1,9}) in (\S.{0,200})$")
_LINE, _FUNCTION = r"(?P<line>\d{1,9})", r"(?P<function>\w[\w.<>]{0,200}|<\w{1,40}>)"
_OTHERS = tuple(
    re.compile(form)
    for form in (
        # As a notebook prints it: "File ~/a.py:53, in f(x)"; before IPython 8 it was "~/a.py in f(x)",
        # and then "--> 53 code". As pytest writes it: "a.py:53: in f".
        rf"^\s{{0,12}}(?:File )?(?P<file>\S{{1,400}}\.py):{_LINE}[,:]? in {_FUNCTION}",
        # As people shorten it: "a.py, in f", "a.py, line 53, in f"; without its quotation marks.
        rf"^\s{{0,12}}(?P<file>[^\s\"']{{1,400}}\.py),?(?:,| line {_LINE},?) in {_FUNCTION}$",
        rf"^(?P<file>[^\s\"']{{1,400}}\.py)\",? line {_LINE},? in {_FUNCTION}$",  # the text begins within it
        rf"^\s{{0,12}}File (?P<file>[^\s\"',]{{1,400}}\.py),? line {_LINE}(?:,? in {_FUNCTION})?$",
        # As programs in other languages print theirs: "at f (a.py:53)".
        rf"^\s{{0,12}}at {_FUNCTION} \((?P<file>[^\s\"'()]{{1,400}}\.py):{_LINE}\)$",
        rf"^\s{{0,12}}File (?P<file>[^\s\"']{{1,400}}\.py):{_LINE}$",  # of no function: at import
        rf"^(?P<file>\S{{1,400}}\.py) in {_FUNCTION}\(",
    )
)
_LINK = re.compile(r"^\[(/[^\]\s]{1,400}\.py)\]\(https?://[^)\s]{1,200}\)")  # as Colab writes a file's name
_MODULE = "<module>"
_RUN_IN = re.compile(r"([A-Za-z_][\w.]{0,100}(?:\.?<\w{1,20}>)?|<\w{1,20}>) (?!\()(\S.*)")


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a traceback."""

    file: str
    line: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


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
        with_code = _RUN_IN.fullmatch(function)  # where line breaks were lost, its code follows
        function, code = with_code.groups() if with_code else (function, "")
        return Frame(found[1], int(found[2] or 0), function, code)
    if ".py" not in text[:400]:
        return None
    text = _LINK.sub(r"\1", text)
    found = next((found for found in (form.match(text) for form in _OTHERS) if found is not None), None)
    if found is None:
        return None
    told = found.groupdict()
    return Frame(told["file"], int(told.get("line") or 0), told.get("function") or _MODULE)
