"""One printed line, taken out of what others put before it: whose it is, how serious, what it says.

Ray, vLLM, torchrun, Slurm, Kubernetes and every logger write a prefix of their own, often several on one
line (``prefixes``). Only known ones are taken off. Never raises, whatever the bytes were; bounded time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import unescape

from rayguard.faults.printed.prefixes import prefix

MAX_LINE_CHARS = 8_000
_MAX_PREFIXES = 10

_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]{0,24}[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][A-B0-2])")
_BARE_COLOUR = re.compile(r"(?:^|(?<=\s))\[[0-9]{1,2}(?:;[0-9]{1,3}){0,3}m|\[0m")  # its escape byte was lost
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_REPEATED = re.compile(
    r"\s?\[repeated (\d{1,9})x across cluster\](?: \(Ray deduplicates logs[^\n]{0,300})?\s?$"
)
_QUOTED = re.compile(r"^>{1,4} (?:- )?\S")
_PYTEST = re.compile(r"^\s{0,8}(?:\|\s{1,8})?E {3}(?: {4})?(?=\s{0,80}\S)")  # what pytest says of an error
_ENTITY = re.compile(r"&(?:quot|apos|lt|gt|amp|nbsp|#x?[0-9a-fA-F]{2,4});")
_TYPESET = {0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'", 0xA0: " "}  # a word processor's
_PYTHONS_WARNING = re.compile(r"^\s{0,8}[^\s:]{1,400}\.py:\d{1,9}: \w{0,60}Warning: ")
_OURS = "rayguard: "  # tells of what it saw to; what ended a job stands elsewhere too
_PROGRESS = re.compile(r"\d{1,3}%\||it/s\]|s/it\]")
_BY_LETTER = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "C": "CRITICAL"}
_MILD = frozenset({"WARNING", "WARN", "INFO", "DEBUG", "TRACE", "Warning", "Info"})
_JSON_SAID = ("log", "message", "msg", "event", "MESSAGE", "textPayload", "data")
_JSON_RAISED = ("exc_info", "exception", "traceback", "stack_trace", "exc_text", "error")


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """One line. ``process`` and ``source`` together tell apart what was interleaved."""

    number: int  # in its file, from 1
    text: str
    process: str = ""  # "WorkerDict pid=1, ip=10.0.0.1", "rank3"
    source: str = ""  # the logger's "core.py:399", where it names itself
    level: str = ""
    prefixed: bool = False
    width: int = 0  # with its prefixes, as a terminal counted it
    times: int = 1  # "[repeated 12x across cluster]"

    @property
    def mild(self) -> bool:
        """Whether it was printed as a warning or less."""
        return self.level in _MILD


def peel(raw: str, number: int = 0) -> PrintedLine:
    """Return the line within ``raw``, which may be anything."""
    text = _unquoted(printable(raw))
    times, width = 1, len(text)
    if "[repeated " in text:
        text, times = _counted(text)
    if text.startswith('{"'):
        text = _unwrapped(text)
    who: list[str] = []
    source = level = ""
    taken = False
    for _ in range(_MAX_PREFIXES):
        found = prefix(text)
        if found is None:
            break
        told = found.groupdict()
        text, taken = text[found.end() :], True
        who += [told[key].strip("[]() ") for key in ("who", "role") if told.get(key)]
        source = told.get("source") or told.get("source2") or source
        level = told.get("level") or level
    if text.startswith(_OURS) or ("Warning: " in text and _PYTHONS_WARNING.match(text)):
        level = "WARNING"
    return PrintedLine(
        number, text, " ".join(who), source.rstrip(":"), _BY_LETTER.get(level, level), taken, width, times
    )


def printable(raw: str) -> str:
    """Return ``raw`` without colours, control characters and overwritten progress."""
    half = MAX_LINE_CHARS // 2
    text = without_colour(raw if len(raw) <= MAX_LINE_CHARS else f"{raw[:half]} … {raw[-half:]}")
    if "\r" in text:
        text = _last_written(text)
    if "m" in text and "[" in text:
        text = _BARE_COLOUR.sub("", text)
    if "&" in text:  # copied out of a web page
        text = _ENTITY.sub(lambda found: unescape(found[0]), text)
    if not text.isascii():  # a lone surrogate cannot be written anywhere
        text = text.encode("utf-8", "replace").decode("utf-8").translate(_TYPESET)
    if not text.isprintable():
        text = _CONTROL.sub("?", text.replace("\t", " "))
    return text.rstrip()


def without_colour(text: str) -> str:
    """Return ``text`` without terminal sequences."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def _unquoted(text: str) -> str:
    """Take off the marks of a quotation and of a box that a program drew around a log line."""
    if text[:1] == ">":
        return text.lstrip("> -") if _QUOTED.match(text) else text
    if "E   " in text[:24]:
        text = _PYTEST.sub("", text)
    inner = text.strip("│").strip() if text[:1] in "│ " else ""
    return inner if inner and inner[:1] not in "[(" and prefix(inner) is not None else text


def _counted(text: str) -> tuple[str, int]:
    """Take off the mark with which Ray's driver says that workers printed the same."""
    found = _REPEATED.search(text)
    return (text, 1) if found is None else (text[: found.start()], int(found[1]) + 1)


def _last_written(text: str) -> str:
    """Return what a terminal would show, without progress bars."""
    parts = [part for part in text.split("\r") if part.strip()]
    told = [part for part in parts if not _PROGRESS.search(part)]
    if all(map(_only_prefix, told)):
        told = [*map(str.strip, told), *[part for part in parts if _PROGRESS.search(part)][-1:]]
    return " ".join(told)


def _only_prefix(text: str) -> bool:
    """Say whether a line holds nothing but who printed it."""
    bare = text.strip()
    found = prefix(f"{bare} ")
    return found is not None and found.end() >= len(bare)


def _unwrapped(text: str) -> str:
    """Return the message of a line that is a JSON object (docker, structured logging), and its traceback."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(data, dict):
        return text
    said = [data[key] for key in _JSON_SAID if isinstance(data.get(key), str)]
    said = sorted(said, key=lambda one: " " not in one.strip())[:1]  # rather a sentence than an event's name
    raised = (data[key] for key in _JSON_RAISED if isinstance(data.get(key), str))
    said += [one for one in raised if "Traceback" in one and one not in said][:1]
    return printable("\n".join(said)) if said else text
