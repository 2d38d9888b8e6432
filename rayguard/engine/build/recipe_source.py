"""What a recipe passes to vLLM, read in its source without running it: there, vLLM's import comes first.

A value is known only where it is written plainly: a string, a variable of the module or of the actor that
nothing in the recipe may have changed. Says nothing where anything is unsure: no source, or another one than
what runs, or one that does this or that. What to refuse is ``recipe``'s.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import tokenize
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Tokens = list[str]

_VLLM = frozenset({"LLM", "EngineArgs", "AsyncEngineArgs"})  # what takes engine arguments by name
_BRANCHES = frozenset(
    {"if", "else", "try", "except", "match", "while", "for", "with", "lambda", "def", "class"}
)
_SKIPPED = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER})
_PLAIN = re.compile(r"""(?:"([^"\\]*)"|'([^'\\]*)')\Z""")


@dataclass(slots=True)
class Passed:
    """What goes to vLLM.

    ``classes``: which of its own are called. ``values``: those of its arguments that are known, by name.
    ``all_of_settings``: everything that is given to ``settings.as_kwargs(...)`` goes there, and nowhere else.
    """

    classes: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    all_of_settings: bool = False


def passed_to_vllm(recipe: Callable[..., object]) -> Passed:
    """Return what ``recipe`` passes to vLLM's classes, as far as its source says so."""
    owner = recipe.__self__ if isinstance(recipe, MethodType) else None
    function = inspect.unwrap(recipe.__func__ if isinstance(recipe, MethodType) else recipe)
    if not isinstance(function, FunctionType):
        return Passed()
    try:
        source = inspect.getsource(function)
        read = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return Passed()
    tokens = _body(function.__name__, [one.string for one in read if one.type not in _SKIPPED])
    if not tokens or not _BRANCHES.isdisjoint(tokens):
        return Passed()
    return _Reading(function, owner, source, tokens).passed()


def _body(name: str, tokens: Tokens) -> Tokens:
    """Return what follows ``def name(...):``, nothing where that is not there."""
    for at in range(len(tokens) - 2):
        if tokens[at : at + 3] == ["def", name, "("]:
            return tokens[tokens.index(":", _end(tokens, at + 2)) + 1 :]
    return []


class _Reading:
    """One recipe as it is read."""

    def __init__(self, function: FunctionType, owner: object, source: str, tokens: Tokens) -> None:
        self._function = function
        self._owner = owner
        self._source = source
        self._tokens = tokens
        self._words = set(_words(function.__code__))

    def passed(self) -> Passed:
        found = Passed()
        calls = [at for at in range(len(self._tokens) - 1) if self._is_vllm(at)]
        ways = range(1, len(self._tokens))
        settings = [at for at in ways if self._tokens[at - 1 : at + 2] == [".", "as_kwargs", "("]]
        kept = {name: at for at in settings if (name := self._kept_as(at))}
        taken: list[int] = []
        for at in calls:
            found.classes.add(self._tokens[at])
            for argument in _arguments(self._tokens, at + 1):
                inner = self._settings_in(argument, kept)
                if inner is None:
                    self._take(argument, at, found)
                    continue
                taken.append(inner)
                for one in _arguments(self._tokens, inner + 1):
                    self._take(one, inner, found)
        found.all_of_settings = bool(settings) and sorted(taken) == settings
        found.names = [name for name in found.names if name in self._words or name in found.values]
        return found

    def _is_vllm(self, at: int) -> bool:
        """Say whether a call of one of vLLM's own classes stands here."""
        name, before = self._tokens[at], self._tokens[max(0, at - 2) : at]
        if name not in _VLLM or self._tokens[at + 1] != "(" or before[-1:] in (["def"], ["class"]):
            return False
        if before[-1:] == ["."]:
            return before == ["vllm", "."]
        if re.search(
            rf"from\s+vllm[\w.]*\s+import\s+(?:\([^)]*\b{name}\b|[^\n;(]*\b{name}\b)(?!\s+as\b)", self._source
        ):
            return True
        found = self._function.__globals__.get(name)
        return name not in self._function.__code__.co_varnames and (
            str(getattr(found, "__module__", "")).partition(".")[0] == "vllm"
        )

    def _kept_as(self, at: int) -> str:
        """Return the variable that keeps what ``as_kwargs(...)`` returns, used for one thing alone."""
        start = at - 1
        while start > 1 and self._tokens[start] == "." and self._tokens[start - 1].isidentifier():
            start -= 2
        name = self._tokens[start - 1] if start > 0 and self._tokens[start] == "=" else ""
        return name if self._tokens.count(name) == 2 else ""  # noqa: PLR2004 - here, and in the call

    def _settings_in(self, argument: Tokens, kept: Mapping[str, int]) -> int | None:
        """Return where ``as_kwargs`` stands whose whole answer is this argument."""
        if argument[:1] != ["**"]:
            return None
        if len(argument) == 2:  # noqa: PLR2004 - ** and a name
            return kept.get(argument[1])
        head = argument[1 : argument.index("(")] if "(" in argument else []
        if head[-2:] != [".", "as_kwargs"] or _end(argument, argument.index("(")) != len(argument) - 1:
            return None
        return next(
            at + len(head)
            for at in range(len(self._tokens))
            if self._tokens[at : at + len(argument)] == argument
        )

    def _take(self, argument: Tokens, call: int, found: Passed) -> None:
        if argument[1:2] == ["="]:
            found.names.append(argument[0])
            self._take_value(argument[0], self._value(argument[2:], call), found)
        elif argument[:1] == ["**"]:
            values = self._value(argument[1:], call)
            for name, value in values.items() if isinstance(values, dict) else ():
                found.names.append(str(name))
                found.values[str(name)] = value
        elif "model" not in found.names:
            found.names.append("model")  # the only one that vLLM takes by place
            self._take_value("model", self._value(argument, call), found)

    @staticmethod
    def _take_value(name: str, value: object, found: Passed) -> None:
        if isinstance(value, (str, os.PathLike)):
            found.values[name] = os.fspath(value)

    def _value(self, tokens: Tokens, call: int) -> object:
        """Return what is written, None where that is not known before the recipe runs."""
        if tokens[:2] == ["str", "("] and tokens[-1] == ")":
            tokens = tokens[2:-1]
        if len(tokens) == 1 and (plain := _PLAIN.match(tokens[0])):
            text = plain[1] if plain[1] is not None else plain[2]
            return text if text in self._words and not self._acts_before(call) else None
        if not self._words.issuperset(one for one in tokens if one.isidentifier()) or self._acts_before(call):
            return None
        code = self._function.__code__
        if len(tokens) == 1 and tokens[0] in code.co_freevars:
            cells = dict(zip(code.co_freevars, self._function.__closure__ or (), strict=True))
            return _content(cells[tokens[0]])
        if len(tokens) == 1 and tokens[0] not in code.co_varnames:
            return self._function.__globals__.get(tokens[0])
        if len(tokens) == 3 and tokens[:2] == [*code.co_varnames[:1], "."] and self._owner is not None:  # noqa: PLR2004
            return getattr(self._owner, "__dict__", {}).get(tokens[2])
        return None

    def _acts_before(self, call: int) -> bool:
        """Say whether the recipe does anything before: download the model, say, or set the value."""
        statement: Tokens = []
        for word in self._tokens[:call]:
            if word not in ("\n", "\r\n", ";"):
                statement.append(word)
            elif statement and statement[0] not in ("from", "import") and not _is_text(statement):
                return True
            else:
                statement = []
        return False


def _is_text(statement: Tokens) -> bool:
    return len(statement) == 1 and statement[0][-1] in "\"'"


def _arguments(tokens: Tokens, opening: int) -> Iterator[Tokens]:
    """Yield what stands between the commas of a call whose parenthesis opens here."""
    depth, argument = 0, list[str]()
    for word in tokens[opening:]:
        depth += (word in ("(", "[", "{")) - (word in (")", "]", "}"))
        if depth == 0:
            break
        if depth == 1 and word == ",":
            yield argument
            argument = []
        elif not (depth == 1 and not argument and word == "("):
            argument.append(word)
    if argument:
        yield argument


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not yet set
        return None


def _end(tokens: Tokens, opening: int) -> int:
    depth = 0
    for at in range(opening, len(tokens)):
        depth += (tokens[at] in ("(", "[", "{")) - (tokens[at] in (")", "]", "}"))
        if depth == 0:
            return at
    return -1


def _words(code: CodeType) -> Iterator[str]:
    """Yield the names and texts in compiled code: what does not stand there was not what was compiled."""
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _words(const)
        yield from (one for one in (const if isinstance(const, tuple) else (const,)) if isinstance(one, str))
