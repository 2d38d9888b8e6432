"""How known failures look: a table of them, and one of them in words."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from rayguard.cli.logs.answer import plain, spelled, sure
from rayguard.cli.logs.diagnose_views import DiagnosisPage
from rayguard.faults import signature
from rayguard.faults.kinds import kinds
from rayguard.faults.quote import sentence
from rayguard.faults.witness import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_OR = " or "
_MOST_WORDS = 12  # of one condition for a person: some have hundreds of places
_TIERS = {
    signature.Tier.CAUSE: "names what went wrong",
    signature.Tier.EFFECT: "is often the effect of something else in the same log",
    signature.Tier.END: "says only that something ended",
    signature.Tier.GUESS: "is a guess, where no other signature knows the exception",
}
_SOURCES = {
    "record": "in the engine's own records",
    "chain": "in the chain of exceptions",
    "log": "in a line that was printed",
    "exit": "as the end of a process",
    "silence": "as a silence",
}
_ORIGINS: dict[Origin | None, str] = {
    Origin.USER: "the user",
    Origin.LIBRARY: "a library",
    Origin.STDLIB: "Python itself",
    None: "",
}


def show_signatures(signatures: Sequence[signature.Signature]) -> None:
    """Print a row for each known failure; columns parted by tabs where the output is no terminal."""
    DiagnosisPage().table(
        ("id", "kind", "scope", "cause"),
        [(one.id, one.kind.value, one.scope.value, sentence(one.cause)) for one in signatures],
    )


def show_signature(one: signature.Signature) -> None:
    """Print everything about one known failure."""
    page = DiagnosisPage()
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
    page.links(one.links)


def as_json(one: signature.Signature) -> dict[str, object]:
    """Return a known failure as plain JSON values."""
    return {
        "id": one.id,
        **plain(one),
        "tier": one.tier.name.lower(),
        "confidence": one.confidence,
        "looks_like": [list(in_words(when)) for when in one.when],
        "is_not": [list(in_words(when)) for when in one.unless],
        "versions": list(one.versions),
    }


def _consequences(one: signature.Signature) -> Iterator[tuple[str, str]]:
    yield "evidence", f"{_TIERS[one.tier]}; {sure(one.confidence)} ({one.confidence:.2f})"
    yield "same settings", "may work again" if one.retry_same_settings else "fail again"
    if not one.settings_help:
        yield "other settings", "none is known to help" + (" besides" if one.cures else "")
    if one.poisoned:
        yield "the process", "must end: its device state cannot be trusted"
    if one.versions:
        yield "seen with", ", ".join(one.versions)


def _blocks(page: DiagnosisPage, blocks: Sequence[signature.When]) -> None:
    for when in blocks:
        page.point("; and ".join(map(_shortened, in_words(when))))


def _shortened(words: str) -> str:
    named = words.split(_OR)
    more = len(named) - _MOST_WORDS
    return f"{_OR.join(named[:_MOST_WORDS])}{_OR}{more} more (`--json` names all)" if more > 0 else words


def in_words(when: signature.When) -> Iterator[str]:
    """Yield what must hold for one fact, each as half a sentence."""
    if when.types:
        yield f"the type is {_any(sorted(when.types))}"
    if when.text:
        times = f" {when.times} times" if when.times > 1 else ""
        yield f"the message holds{times} {_any(map(repr, when.text))}"
    for key, told in _WORDS.items():
        if getattr(when, key):
            yield told(when)


def _any(words: Iterable[str]) -> str:
    return _OR.join(words)


def _place(place: str) -> str:
    path, _, function = place.partition("::")
    return " of ".join(filter(None, (f"{function}()" if function else "", path)))


def _number(code: int | str) -> int:
    return 0 if isinstance(code, str) else code


def _code(code: int | str) -> str:
    if isinstance(code, str):
        return f"{code} code"
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


# By the keys of a block, in the order of asking.
_WORDS: dict[str, Callable[[signature.When], str]] = {
    "seen_in": lambda when: f"seen {_any(sorted(_SOURCES[source.value] for source in when.seen_in))}",
    "roles": lambda when: f"seen by {_any(sorted(role.value for role in when.roles))}",
    "exit": lambda when: f"the process ended with {_any(map(_code, sorted(when.exit, key=_number)))}",
    "operations": lambda when: f"during {_any(sorted(when.operations))}",
    "raised_by": lambda when: f"raised by code of {_ORIGINS[when.raised_by]}",
    "cut": lambda _: "its last line, which names the exception, is missing",
    "raised_in": lambda when: f"raised in {_any(map(_place, when.raised_in))}",
    "frames": lambda when: f"called through {_any(map(_place, when.frames))}",
    "code": lambda when: f"the line that raised holds {_any(map(repr, when.code))}",
    "message": lambda when: f"the message looks like {_any(f'/{one.pattern}/' for one in when.message)}",
    "beside": lambda when: f"the same log also holds {_any(map(repr, when.beside))}",
}
