"""The catalog as a page for people: from symptom to cause to cure, ``docs/why-did-my-actor-die.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.faults.counsel import NO_FAILURE, counsels
from rayguard.faults.diagnosis import Scope
from rayguard.faults.kinds import kinds
from rayguard.faults.quote import sentence
from rayguard.faults.signature import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.faults.catalog import Catalog
    from rayguard.faults.signature import Signature

MAX_SYMPTOMS = 6

RESTART = {
    Scope.REQUEST: "nothing: the one request is answered with its error",
    Scope.ENGINE: "the engine, in the same actor",
    Scope.PROCESS: "the process (Ray starts the actor again)",
    Scope.GROUP: "all ranks of the group together",
    Scope.NODE: "elsewhere: the node is left out",
    Scope.JOB: "the job, with corrected settings",
    Scope.CODE: "nothing: the code must be corrected",
    Scope.UNKNOWN: "by evidence",
}

_HEAD = """\
# Why did my actor die?

From what you see to what it is and what helps. Search this page for the words in your log, or let
`rayguard diagnose LOG` do it: it finds the earliest cause among the lines of all processes.

This page is generated from the catalog (`make docs`); `rayguard catalog show ID` tells more of one entry.

What a log says last is seldom the cause: `EngineDeadError`, `ActorDiedError`, a refused connection
are left when something else went wrong. Look for the first exception of the process that failed first.
"""


_NO_FAILURE = """\
Nothing in the text failed: `rayguard diagnose` then says what was said last and ends with exit code 4
(3 is a failure that it does not know). Where the job is gone all the same, ask its exit code, `dmesg -T`
and the scheduler."""


def handbook(catalog: Catalog) -> str:
    """Return the page, as Markdown."""
    return "\n".join([_HEAD, *_contents(catalog), "", *_chapters(catalog)])


def symptoms(signature: Signature) -> tuple[str, ...]:
    """Return what a person can look for: the words of the messages, the types, the lines that raise."""
    found: dict[str, None] = {}
    for when in signature.when:
        said = when.text or when.code or tuple(sorted(when.types)) or when.places
        found.update(dict.fromkeys(said))
    return tuple(found)[:MAX_SYMPTOMS]


def _contents(catalog: Catalog) -> Iterator[str]:
    yield "| kind | what it is | what must be restarted |"
    yield "|---|---|---|"
    for kind, text in kinds().items():
        scopes = dict.fromkeys(s.scope for s in catalog.signatures if s.kind is kind)
        restart = "; or ".join(RESTART[scope] for scope in scopes)
        yield f"| [`{kind.value}`](#{kind.value}) | {text.says} | {restart or '-'} |"


def _chapters(catalog: Catalog) -> Iterator[str]:
    for kind, text in kinds().items():
        signatures = [signature for signature in catalog.signatures if signature.kind is kind]
        if not signatures:
            continue
        yield f"## {kind.value}\n\n{text.says} {text.do}\n"
        for signature in sorted(signatures, key=lambda one: one.tier):
            yield from _entry(signature)
        yield from _causes_below({kind.value, *(signature.id for signature in signatures)})
    yield f"## no failure seen\n\n{_NO_FAILURE}\n"
    yield from _causes_below({NO_FAILURE})


def _causes_below(verdicts: set[str]) -> Iterator[str]:
    """Yield what is advised where a text tells the cause below one of ``verdicts``."""
    told = counsels()
    rules = [rule for rule in told.rules if not verdicts.isdisjoint(rule.of)]
    if rules:
        yield "### Where the text tells the cause below it\n"
    for rule in rules:
        cause = f"{_sentence(rule.cause)} " if rule.cause else ""
        yield f"- {cause}**Do:** {_sentence(told.plainly(rule))}"
    if rules:
        yield ""


def _entry(signature: Signature) -> Iterator[str]:
    yield f"### {_sentence(signature.cause)}\n"
    seen = symptoms(signature)
    if seen:
        yield "You see " + " or ".join(f"`{words.replace('`', '')}`" for words in seen) + ".\n"
    yield f"**Do:** {_sentence(signature.advice)}"
    if signature.cures:
        yield f"Safe settings that avoid it: {', '.join(f'`{cure}`' for cure in signature.cures)}."
    yield _again(signature)
    if signature.versions:
        yield f"Seen with {', '.join(signature.versions)}."
    if signature.links:
        yield "Threads: " + ", ".join(f"<{link}>" for link in signature.links) + "."
    yield f"\n<sub>`{signature.id}`</sub>\n"


def _again(signature: Signature) -> str:
    if signature.poisoned:
        return "The process that saw it must die."
    if not signature.retry_same_settings:
        return "The same settings fail again."
    return (
        "The same settings may work again."
        if signature.tier is Tier.CAUSE
        else "Look for an earlier cause first."
    )


def _sentence(text: str) -> str:
    return sentence(text) + ("" if text.endswith((".", "!", "?")) else ".")
