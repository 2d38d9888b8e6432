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
_TAGGED = re.compile(
    r"^\W{0,4}(?:[\w:.,/-]{1,30}\W{1,3}){0,3}?(?:WARN(?:ING)?|INFO|DEBUG|NOTICE|Warning|Info|Note)\b\W"
)
_WORD = (
    r"errors?|exceptions?|traceback|fatal|failed|fails|failures?|abort(?:ed|ing)|killed|crash(?:ed|es)?"
    r"|segfault|segmentation fault|core dumped|panic(?:ked)?|timed out|time-?out|hung|hangs|stuck"
    r"|deadlock(?:ed)?|died|marked dead|out of memory|oom|not responding|unresponsive|corrupted"
    r"|unreachable|terminated unexpectedly|defunct"
)
# Said of the line's own subject: "bash: vllm: command not found", "Cannot open the file".
_REFUSED = (
    r"(?:cannot|can't|could not|couldn't|unable to|permission denied|access denied|no such|command not found"
    r"|connection refused|connection reset|not found$|is dead|unexpected(?:ly)?)"
)
_TELLING = re.compile(
    rf"(?i)(?<![\w/.=-])(?:{_WORD})(?![\w/=(-])|(?:^\s{{0,4}}|[:>\])]\s{{1,3}}){_REFUSED}"
    rf"|(?<!\w)(?-i:[A-Z]\w{{0,80}}(?:Error|Exception)\b)"
)
# "0 errors", "no failures", "if it failed", "errors: 0", "timeout: 600 s", "error: 0.031" of a metric
_BEFORE = (
    "no|0|zero|without|any|if|on|when|in case|never|not|retry(?:ing)?|ignore[sd]?|skip(?:ping)?|handles?"
    "|after|until|per-request|default|request|with|set|max(?:imum)?|recent|than|expected|of|for|word|training"
    "|mean|validation|test|absolute|squared|standard|relative|rounding|numerical|token"
)
_AFTER = r"rates?|ratio|norm|bounds?|bars?|correction|feedback|handl\w{1,4}|budget|tolerance|count|log"
_VALUE = r"(?:[\d.+-]|none\b|null\b|false\b|no\b|ok\b|\[\]|\{\}|[\"']|$)"
_CALM = re.compile(
    rf"(?i)\b(?:{_BEFORE})\b(?: \w{{1,12}})?(?: \w{{1,12}})? (?:{_WORD})\b"
    rf"|\b(?:{_WORD})[\"']?(?: ?\(\w{{1,4}}\))?\s?(?:[:=]|is|of)\s?[\"']?{_VALUE}"
    rf"|\b(?:{_WORD}) (?:{_AFTER})\b"
)


def is_alarming(line: PrintedLine) -> bool:
    """Say whether ``line`` tells of something wrong: by its level, else by its words."""
    if line.mild:
        return False
    if line.level in _GRAVE:
        return True
    text = line.text
    if _TELLING.search(text) is None or _TAGGED.match(text) is not None:
        return False
    return _TELLING.search(_CALM.sub(" ", text)) is not None


def is_grave(fact: Witness) -> bool:
    """Say whether ``fact`` is an exception, and no warning."""
    return not fact.mild and bool(fact.frames)
