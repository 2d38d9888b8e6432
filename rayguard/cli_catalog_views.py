"""How known failures look: a table of them, and one of them in words."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from rayguard.cli_answer import spelled, sure
from rayguard.cli_diagnose_views import Page
from rayguard.faults.kinds import kinds
from rayguard.faults.quote import sentence
from rayguard.faults.signature import (
    Condition,
    CutOff,
    During,
    ExitedWith,
    FromCodeOf,
    InRole,
    PassedThrough,
    Place,
    RaisedAt,
    RaisedIn,
    SaysLike,
    SeenIn,
    Signature,
    Tier,
    When,
)
from rayguard.faults.witness import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_OR = " or "
_MOST_WORDS = 12  # of one condition for a person: some have hundreds of places
_TIERS = {
    Tier.CAUSE: "names what went wrong",
    Tier.EFFECT: "is often the effect of something else in the same log",
    Tier.END: "says only that something ended",
    Tier.GUESS: "is a guess, where no other signature knows the exception",
}
_SOURCES = {
    "record": "in the engine's own records",
    "chain": "in the chain of exceptions",
    "log": "in a line that was printed",
    "exit": "as the end of a process",
    "silence": "as a silence",
}


def show_signatures(signatures: Sequence[Signature]) -> None:
    """Print a row for each known failure; columns parted by tabs where the output is no terminal."""
    Page().table(
        ("id", "kind", "scope", "cause"),
        [(one.id, one.kind.value, one.scope.value, sentence(one.cause)) for one in signatures],
    )


def show_signature(one: Signature) -> None:
    """Print everything about one known failure."""
    page = Page()
    page.text(f"{sentence(one.cause).rstrip('.')}.", "bold red")
    page.text(f"{one.id}: {one.kind.value} (scope: {one.scope.value})", "dim")
    kind = kinds().get(one.kind)
    if kind is not None:
        page.text(kind.says, "dim")
    page.title("What to do")
    page.point(f"{sentence(one.advice).rstrip('.')}.")
    for cure in one.cures:
        page.point(f"Known to avoid it: {spelled(cure)}.")
    page.title("What it looks like")
    _blocks(page, one.when)
    if one.unless:
        page.title("What it is not")
        _blocks(page, one.unless)
    page.title("What follows from it")
    for name, value in _consequences(one):
        page.fact(name, value)
    if one.links:
        page.title("Others who had it")
        for link in one.links:
            page.text(link, indent=2)


def as_json(one: Signature) -> dict[str, Any]:
    """Return a known failure as plain JSON values."""
    return {
        "id": one.id,
        "kind": one.kind.value,
        "scope": one.scope.value,
        "tier": one.tier.name.lower(),
        "cause": one.cause,
        "advice": one.advice,
        "confidence": one.confidence,
        "cures": list(one.cures),
        "retry_same_settings": one.retry_same_settings,
        "deterministic": one.deterministic,
        "poisoned": one.poisoned,
        "looks_like": [list(in_words(when)) for when in one.when],
        "is_not": [list(in_words(when)) for when in one.unless],
        "links": list(one.links),
        "versions": list(one.versions),
    }


def _consequences(one: Signature) -> Iterator[tuple[str, str]]:
    yield "evidence", f"{_TIERS[one.tier]}; {sure(one.confidence)} ({one.confidence:.2f})"
    yield "same settings", "may work again" if one.retry_same_settings else "fail again"
    if not one.settings_help:
        yield "other settings", "none is known to help" + (" besides" if one.cures else "")
    if one.poisoned:
        yield "the process", "must end: its device state cannot be trusted"
    if one.versions:
        yield "seen with", ", ".join(one.versions)


def _blocks(page: Page, blocks: Sequence[When]) -> None:
    for when in blocks:
        page.point("; and ".join(map(_shortened, in_words(when))))


def _shortened(words: str) -> str:
    named = words.split(_OR)
    more = len(named) - _MOST_WORDS
    return f"{_OR.join(named[:_MOST_WORDS])}{_OR}{more} more (`--json` names all)" if more > 0 else words


def in_words(when: When) -> Iterator[str]:
    """Yield what must hold for one fact, each as half a sentence."""
    if when.types:
        yield f"the type is {_any(sorted(when.types))}"
    if when.text:
        times = f" {when.times} times" if when.times > 1 else ""
        yield f"the message holds{times} {_any(map(repr, when.text))}"
    for condition in when.conditions:
        yield _condition(condition)
    if when.beside:
        yield f"the same log also holds {_any(map(repr, when.beside))}"


def _condition(condition: Condition) -> str:
    told = _WORDS.get(type(condition))
    return told(condition) if told else str(condition)


def _any(words: Iterable[str]) -> str:
    return _OR.join(words)


def _place(place: Place) -> str:
    return (
        f"{place.function}() of {place.path}"
        if place.path and place.function
        else place.path or f"{place.function}()"
    )


def _code(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def _origin(origin: Origin) -> str:
    return {Origin.USER: "the user", Origin.LIBRARY: "a library", Origin.STDLIB: "Python itself"}[origin]


_WORDS: dict[type, Callable[[Any], str]] = {
    SaysLike: lambda c: f"the message looks like {_any(f'/{one.pattern}/' for one in c.patterns)}",
    RaisedIn: lambda c: f"raised in {_any(map(_place, c.places))}",
    PassedThrough: lambda c: f"called through {_any(map(_place, c.places))}",
    RaisedAt: lambda c: f"the line that raised holds {_any(map(repr, c.fragments))}",
    InRole: lambda c: f"seen by {_any(sorted(c.roles))}",
    SeenIn: lambda c: f"seen {_any(sorted(_SOURCES[source.value] for source in c.sources))}",
    ExitedWith: lambda c: f"the process ended with {_any(map(_code, sorted(c.codes))) or 'any code'}",
    During: lambda c: f"during {_any(sorted(c.operations))}",
    CutOff: lambda _: "its last line, which names the exception, is missing",
    FromCodeOf: lambda c: f"raised by code of {_origin(c.origin)}",
}
