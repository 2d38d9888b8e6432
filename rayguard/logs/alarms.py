"""Whether a line tells of something wrong, known or not: what a text without any may be called healthy by.

Coarse on purpose: it never says what failed, only that "no failure was seen" would be a lie. Which failure it
is, ``rayguard.faults.signature`` says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayguard.faults.printed.line import PrintedLine
    from rayguard.faults.witness import Witness

_GRAVE = frozenset({"ERROR", "CRITICAL", "FATAL", "SEVERE", "Error", "Fatal"})
_WORD = (
    r"errors?|exceptions?|traceback|fatal|failed|fails|failures?|failing|abort(?:ed|ing)|killed"
    r"|crash(?:ed|es)?|segfault|segmentation fault|core dumped|panic(?:ked)?|timed out|time-?outs?"
    r"|hung|hangs|stuck|deadlock(?:ed)?|died|dead|cannot|can't|couldn't|could not|unable|refused"
    r"|denied|corrupt(?:ed)?|not found|no such|out of memory|oom|terminated|unreachable"
    r"|not responding|unresponsive|unexpected(?:ly)?|disconnected|broken|defunct|zombie"
)
_TELLING = re.compile(
    rf"(?i)(?<![\w/.=-])(?:{_WORD})(?![\w/=(-])|(?<![\w.])(?-i:[A-Z]\w{{0,80}}(?:Error|Exception)\b)"
)
# "0 errors", "no failures", "if it failed", "errors: 0", "timeout: 600 s", "error: 0.031" of a metric
_BEFORE = (
    "no|0|zero|without|any|if|on|when|in case|never|not|retry(?:ing)?|ignore[sd]?|skip(?:ping)?|handles?"
    "|per-request|default|request|with|set|max(?:imum)?"
)
_VALUE = r"(?:[\d.+-]|none\b|null\b|false\b|no\b|ok\b|\[\]|\{\}|[\"'])"
_CALM = re.compile(
    rf"(?i)\b(?:{_BEFORE})\b(?: \w{{1,12}})?(?: \w{{1,12}})? (?:{_WORD})\b"
    rf"|\b(?:{_WORD})[\"']?(?: ?\(\w{{1,4}}\))?\s?(?:[:=]|is|of|rate)\s?[\"']?{_VALUE}"
)


def is_alarming(line: PrintedLine) -> bool:
    """Say whether ``line`` tells of something wrong: by its level, else by its words."""
    if line.mild:
        return False
    if line.level in _GRAVE:
        return True
    found = _TELLING.search(line.text)
    return found is not None and _TELLING.search(_CALM.sub(" ", line.text)) is not None


def is_grave(fact: Witness) -> bool:
    """Say whether ``fact`` is an exception, and no warning."""
    return not fact.mild and bool(fact.frames)
