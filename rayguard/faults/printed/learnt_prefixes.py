"""Prefixes that nobody described: learnt from frames of tracebacks, which look the same in every log.

Everybody's logger, launcher and pod writes a prefix of its own, more than ``prefixes`` can know. What stands
before ``  File "x.py", line 1`` is one, and so is what has its form on other lines of the same text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from rayguard.faults.printed.frames import TRACEBACK, frame_in
from rayguard.faults.printed.line import PrintedLine, peel, without_colour
from rayguard.faults.printed.prefixes import LEVEL, SERVICE, SOURCE, STAMP

MAX_HEADS = 8
MAX_SERVICES = 64
_MAX_CHARS = 200
_FRAME = '  File "'  # both blanks are the frame's
_SERVICE = re.compile(rf"{SERVICE}(?: |$)")
_NO_HEAD = re.compile(
    r"Traceback|\\n|(?:Error|Exception|Interrupt|Timeout|Warning):?\s{0,8}$|^[\s|+\-'\"\[(]{0,200}$"
    r"|\w \w{2,40}[.!]\s{0,8}$"  # a sentence of another process, run into the frame
)
_VARIES = re.compile(rf"\d{{1,20}}|\b{LEVEL}\b(?: {{1,8}})?|[^\w\s]|\s{{1,40}}|[^\W\d]{{1,200}}")
_LEVELS = re.compile(rf"{LEVEL}\s{{0,8}}")
_CLOCK, _SOURCES = re.compile(STAMP), re.compile(SOURCE)
_PLACE = re.compile(r"[A-Za-z][A-Za-z_./\-]{0,60}[ :=]?\d[\w.\-]{0,60}")  # "rank3", "node-7", "pid=12"
# The words of a prefix, in a line that no frame explains; a plain one only after a time or a level.
_DATED = re.compile(rf"(?:{STAMP}|\b{LEVEL}\b)[\])]?")
_WORD = re.compile(
    rf"(?:{SOURCE}|\d{{1,12}}|\[[^\[\]]{{1,80}}\]|\([\w .,=:\-]{{1,60}}\)|\{{[^{{}}]{{1,60}}\}}"
    r"|<[\w .\-]{1,40}>|\w{1,40}=\S{1,60}|(?=[\w.\-/]{0,60}[\d_./])[\w.\-/]{1,120})"
)
_PLAIN = re.compile(r"[A-Za-z]\w{0,40}(?=\s{0,8}[|:\]\-])")
_BETWEEN = re.compile(r"\s{0,8}[|>:\-#*\]]{0,3}\s{0,8}")
_MAX_WORDS = 10
_ANCHOR = re.compile(
    r"(?<![\w.])(?:Traceback \(most|(?:[a-z_]\w{0,40}\.){0,8}[A-Z]\w{1,60}(?:Error|Exception)(?:: |$))"
)


@dataclass(slots=True)
class Heads:
    """The prefixes that one text has shown so far, beside those that everybody knows.

    Invariant: at most ``MAX_HEADS`` of them, those learnt last, and ``MAX_SERVICES`` names of services.
    """

    _forms: dict[str, re.Pattern[str]] = field(default_factory=dict)
    _services: dict[str, None] = field(default_factory=dict)

    def peel(self, raw: str, number: int = 0) -> PrintedLine:
        """Return the line within ``raw``, which may be anything."""
        line = peel(raw, number)
        if " |" in raw[:_MAX_CHARS] and (bar := _SERVICE.match(without_colour(raw))) is not None:
            plain = line.process.split(" ")[0] == bar[1]  # on this line, that a service is named
            if plain and _LEVELS.fullmatch(bar[1]) is None:
                self._services[bar[1]] = None
                _forget(self._services, MAX_SERVICES)
            elif not line.prefixed and bar[1] in self._services:
                rest = self.peel(line.text[bar.end() :], number)
                process = " ".join(filter(None, (bar[1], rest.process)))
                return replace(rest, process=process, prefixed=True, width=line.width, times=line.times)
        text = line.text
        end = self._known(text) or self._shown(text) or _logged(text)
        if not end:
            return line
        head, rest = text[:end], peel(text[end:], number)
        source = _SOURCES.search(head)
        places = _PLACE.findall(_SOURCES.sub(" ", _CLOCK.sub(" ", head)))
        level = _LEVELS.search(head)
        return replace(
            rest,
            process=" ".join(filter(None, (line.process, *places, rest.process))),
            source=rest.source or (source[0] if source is not None else line.source),
            level=rest.level or (level[0].strip().upper() if level is not None else line.level),
            prefixed=True,
            width=line.width,
            times=line.times,
        )

    def _known(self, text: str) -> int:
        """Return where a learnt prefix of ``text`` ends."""
        for form in self._forms.values():
            found = form.match(text)
            if found is not None:
                return found.end()
        return 0

    def _shown(self, text: str) -> int:
        """Return where the prefix of a frame ends, and keep its form."""
        at = text.find(_FRAME, 1, _MAX_CHARS)
        if at < 0 or frame_in(text) is not None:
            return 0
        head = text[:at]
        if _NO_HEAD.search(head) or frame_in(text[at:]) is None:
            return 0
        form = _form(head)
        self._forms[form] = re.compile(form)
        _forget(self._forms, MAX_HEADS)
        return at


def _forget(learnt: dict[str, Any], limit: int) -> None:
    while len(learnt) > limit:
        del learnt[next(iter(learnt))]


def _form(head: str) -> str:
    """Return the regular expression of a prefix: numbers and levels vary, the rest stays."""
    parts = []
    for token in _VARIES.findall(head.rstrip()):
        if token[0].isdigit():
            parts.append(r"\d{1,20}")
        elif _LEVELS.fullmatch(token):
            parts.append(rf"{LEVEL}\s{{0,8}}")
        else:
            parts.append(r"\s{1,40}" if token.isspace() else re.escape(token))
    blanks = len(head) - len(head.rstrip())
    return "".join(parts) + (rf"(?:\s{{{blanks}}}|\s{{0,{blanks}}}$)" if blanks else "")


def _logged(text: str) -> int:
    """Return where the prefix of a line ends that names an exception, or begins a traceback."""
    if "Error" not in text and "Exception" not in text and TRACEBACK not in text:
        return 0
    at, dated = _after(_BETWEEN, text, 0), False
    for _ in range(_MAX_WORDS):
        if _ANCHOR.match(text, at) is not None:
            return at
        end = _after(_DATED, text, at)
        dated = dated or end > at
        if end == at:
            end = _after(_WORD, text, at)
        if end == at and dated:
            end = _after(_PLAIN, text, at)
        if end == at:
            return 0
        at = _after(_BETWEEN, text, end)
    return 0


def _after(form: re.Pattern[str], text: str, at: int) -> int:
    found = form.match(text, at)
    return at if found is None else found.end()
