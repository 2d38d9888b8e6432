"""Facts as short text for people: one line, no colours, nothing that could not be printed or written.

Every function takes garbage and returns text; which facts are worth quoting is ``rayguard.faults.witness``.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from rayguard.faults.printed.line import without_colour

if TYPE_CHECKING:
    from rayguard.faults.fault import ExceptionFact, Frame

MAX_TEXT_CHARS = 4_000  # of one fact: what signatures are matched against
MAX_LINE_CHARS = 600
MAX_QUOTE_CHARS = 320
MOST = 10**15  # a larger number is garbage, and Python may refuse to print it
PACKAGES = ("site-packages/", "dist-packages/")

_MIN_FIRST_LINE = 60


def exception_quote(fact: ExceptionFact, frames: tuple[Frame, ...]) -> str:
    """Return ``Type: message (file:line in function)`` in one line."""
    said = _first_lines(clean(fact.message, MAX_TEXT_CHARS))
    if not said and frames:  # a bare assert says only where it stands
        code = one_line(clean(frames[-1].code, MAX_LINE_CHARS))
        said = f"`{code}`" if code else ""
    where = f" ({frame_quote(frames[-1])})" if frames else ""
    kind = one_line(clean(fact.type_name, MAX_LINE_CHARS)) or "an exception without a type"
    text = f"{kind}: {said}" if said else kind
    return cut(text, MAX_QUOTE_CHARS - len(where)) + where


def signal_quote(code: int) -> str:
    """Return ``9 (SIGKILL)`` for the exit code -9."""
    try:
        return f"{-code} ({signal.Signals(-code).name})"
    except ValueError:
        return str(-code)


def frame_quote(frame: Frame) -> str:
    """Return ``file:line in function``, short and in one line."""
    file = short_path(clean(frame.file, MAX_LINE_CHARS))[-120:]
    name = clean(frame.function, MAX_LINE_CHARS)[:60]
    return cut(f"{file}:{number(frame.line)}" + (f" in {name}" if name else ""))


def short_path(file: str) -> str:
    """Cut the installation's own path off: ``vllm/v1/core/sched/scheduler.py``."""
    for part in PACKAGES:
        _, found, tail = file.rpartition(part)
        if found:
            return tail
    return file


def clean(value: object, limit: int) -> str:
    """Return text that can be printed and written; what is no text, or too much of it, is cut away."""
    if not isinstance(value, str):
        return ""
    if len(value) > limit:
        value = value[: limit // 2] + "\n" + value[-(limit // 2) :]
    if not value.isascii():  # a lone surrogate cannot be written to the journal
        value = value.encode("utf-8", "replace").decode("utf-8")
    return without_colour(value).replace("\0", "?")


def one_line(text: str) -> str:
    """Return ``text`` without line breaks and runs of blanks."""
    return " ".join(text.split())


def sentence(text: str) -> str:
    """Return ``text`` in one line with a capital at its beginning; a name ("vLLM") keeps its own form."""
    text = one_line(text)
    first, _, rest = text.partition(" ")
    return text if not first.islower() or not first.isalpha() else f"{first.capitalize()} {rest}".rstrip()


def cut(text: str, limit: int = MAX_QUOTE_CHARS) -> str:
    """Return one line of at most ``limit`` characters."""
    text = one_line(text)
    short = text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"
    return short if short.isprintable() else "".join(c if c.isprintable() else "?" for c in short)


def number(value: object) -> int:
    """Return ``value`` where it is a sane whole number, else 0."""
    return value if isinstance(value, int) and abs(value) < MOST else 0


def _first_lines(message: str) -> str:
    """Return the first line; with what follows where it alone says little ("1 validation error for X")."""
    said = ""
    for line in message.splitlines():
        said = f"{said} {line.strip()}".strip()
        if len(said) >= _MIN_FIRST_LINE:
            break
    return said
