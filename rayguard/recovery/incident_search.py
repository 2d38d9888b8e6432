"""``incident_of(error)``: the incident of an error, also where the error's text alone still tells it.

What was hung on the error (``rayguard.recovery.incident``) is lost with an exception that pickles itself, and
with an actor that dies in ``__init__``: Ray keeps the text of that one alone. The text names the incident,
and this node's journal has it; where it is another node's, what the text says of it is returned.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.harmless import harmless
from rayguard.home import home
from rayguard.recovery import incident as known
from rayguard.recovery.incident import MAX_CHAIN, Incident, Outcome
from rayguard.recovery.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMED = re.compile(r"rayguard incident ([0-9a-f]{12}): ([^\n]*)")
_SENTENCE = re.compile(
    r"(?P<kind>\w+) \((?P<scope>\w+)\) in (?P<target>.*?): (?P<cause>.*); (?P<remedy>[^;:]*): "
    rf"(?P<outcome>{'|'.join(one.value for one in Outcome)})(?: in (?P<recover_s>[\d.]+) s)?$"
)
_DEATHS = frozenset({"process", "group", "node", "job"})  # scopes
_NO_REMEDY = "no remedy"


def incident_of(error: BaseException) -> Incident | None:
    """Return the incident of ``error`` or of anything in its chain, Ray's wrappers included; None: none.

    Where only the text is left of an incident of another node, it has no evidence, times and advice: ask
    ``rayguard incidents --address`` for the whole.
    """
    attached = known.incident_of(error)
    if attached is not None:
        return attached
    with harmless("incident"):
        links = list(_chain(error))
        told = next((found for link in links if (found := _told(link)) is not None), None)
        if told is not None:
            return next((one for one in _journal() if one.id == told.id), told)
        return _of_actor(next((id_ for link in links if (id_ := getattr(link, "actor_id", None))), None))
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return
        yield link
        wrapped = getattr(link, "cause", None)
        link = wrapped if isinstance(wrapped, BaseException) else (link.__cause__ or link.__context__)


def _told(error: BaseException) -> Incident | None:
    """Return what the text of ``error`` says of its incident; of several, the last one: the outermost."""
    text = ""
    with contextlib.suppress(Exception):  # the user's own ``__str__``
        text = "\n".join([str(error), *map(str, getattr(error, "__notes__", ()))])
    named = _NAMED.findall(text)
    if not named:
        return None
    id_, sentence = named[-1]
    return replace(_said(sentence.strip()), id=id_)


def _said(sentence: str) -> Incident:
    """Return what ``Incident.sentence`` was made of."""
    found = _SENTENCE.match(sentence)
    if found is None:
        return Incident(kind="unknown", scope="unknown", cause=sentence)
    seconds = found["recover_s"]
    return Incident(
        kind=found["kind"],
        scope=found["scope"],
        target=found["target"],
        cause=found["cause"],
        remedy="" if found["remedy"] == _NO_REMEDY else found["remedy"],
        outcome=Outcome(found["outcome"]),
        recover_s=None if seconds is None else float(seconds),
    )


def _of_actor(actor_id: object) -> Incident | None:
    """Return the newest incident that tells of the death of this actor (Ray's id, in hex)."""
    if not isinstance(actor_id, str) or not actor_id:
        return None
    deaths = [
        one
        for one in _journal()
        if one.actor_id == actor_id and (one.scope in _DEATHS or one.outcome is Outcome.FAILED)
    ]
    return max(deaths, key=lambda one: one.detected_at, default=None)


def _journal() -> list[Incident]:
    return Journal(home()).read()
