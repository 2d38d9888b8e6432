"""What a cut off exception was, or said: from the code that raised it, or from its words."""

from __future__ import annotations

import re

ENDINGS = (
    r"(?:Error|Errors|Exception|Warning|Interrupt|Exit|Timeout|TimeoutExpired|Failure|Fault|Group|Died|Cancelled|Empty|Full"
    r"|Invalid|Failed|NotFound|Aborted|StopIteration|OutOfMemory|Unavailable)"
)
_RAISE = re.compile(
    r"^raise ((?:\w{1,80}\.){0,8}_{0,2}[A-Z]\w{0,160})\b(?!\.)(\(| from )?(.{0,400})"
)  # a class, not `raise value`
_FORMATTED = re.compile(r"['\"] ?(?:\.format\(|%|\+|,)")  # after the literal
_WHOLE_NAME = re.compile(rf"{ENDINGS}$")
_MISTAKES = frozenset({"AttributeError", "NameError", "UnboundLocalError", "TypeError", "ZeroDivisionError"})
_ENDS_OF_MISTAKES = ("'", " not defined", " by zero", " a value", "callable", "iterable", "subscriptable")
# What Python itself says with one type only: it names the type where that was cut off.
_SAID_BY = {
    name: re.compile(form)
    for name, form in {
        "AttributeError": (
            r"^(?:(?:type object )?'\w{1,80}'|.{0,24}module '[\w.]{1,160}')(?: object)? has no attribute '"
        ),
        "ModuleNotFoundError": r"^No module named '?[\w.]",
        "ImportError": r"^cannot import name '",
        "NameError": r"^name '\w{1,80}' is not defined",
        "UnboundLocalError": r"^(?:cannot access local|local) variable '\w{1,80}'",
        "IndexError": r"^(?:list|tuple|string|pop) ?\w{0,12} index out of range|^pop from empty",
        "ValueError": r"^(?:not enough|too many) values to unpack|^invalid literal for int",
        "ZeroDivisionError": r"^(?:integer |float )?(?:division|modulo)(?: or modulo)? by zero",
        "TypeError": (
            r"^[\w.]{1,160}\(\) (?:got an unexpected keyword|got multiple values|missing \d{1,2} required"
            r"|takes (?:no|from|exactly|\d))|^unsupported operand type|^unhashable type"
            r"|^'\w{1,80}' object is not (?:callable|iterable|subscriptable|an iterator)"
        ),
        "OSError": r"^\[Errno \d{1,3}\] ",
    }.items()
}


def from_code(code: str) -> tuple[str, str]:
    """Return type and message of an exception whose last line was cut off, from the code that raised it."""
    if code.startswith(("assert ", "assert(")):
        return "AssertionError", ""
    found = _RAISE.match(code)
    if found is None or not (
        found[2] or _WHOLE_NAME.search(found[1])
    ):  # `raise Async`: cut off within the name
        return "", ""
    return found[1], found[3].strip("()\"' ") if found[2] == "(" else ""


def completed(name: str, message: str, code: str) -> str:
    """Return ``message`` of a ``name`` as the code that raised it has it, where the text ends within it."""
    raised, whole = from_code(code)
    same = raised.rpartition(".")[2] == name.rpartition(".")[2]
    return _FORMATTED.split(whole)[0] if same and whole.startswith(message) else message


def mistake_saying(text: str) -> str:
    """Return the type of a mistake in code that says ``text``, where it is printed without its type."""
    name = type_saying(text) if text.endswith(_ENDS_OF_MISTAKES) else ""
    return name if name in _MISTAKES else ""


def type_saying(message: str) -> str:
    """Return the only type that says ``message``, if there is one."""
    return next((name for name, form in _SAID_BY.items() if form.match(message)), "")


def asserted(text: str) -> str:
    """Return the assertion that a line of code is, if it is one."""
    code = text.strip(" |\t")
    return code if code.startswith(("assert ", "assert(")) else ""
