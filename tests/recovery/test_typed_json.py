"""JSON of others becomes a value of ours only where every type is right: as pydantic judges it."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter, ValidationError

from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.status import Page, Who
from rayguard.recovery.tally import EngineTally
from rayguard.recovery.typed_json import read_as

INCIDENT = Incident(kind="k", scope="s", cause="c", evidence=("a",), closed_at=3.0, outcome=Outcome.FAILED)
PAGE = Page(pid=1, started=2, who=Who(incarnation=3), engines=(EngineTally(name="e", settings=("eager",)),))
WRONG = [
    {"kind": 3},
    {"kind": None},
    {"kind": "\ud800"},
    {"confidence": "high"},
    {"pid": 1.5},
    {"pid": "x"},
    {"evidence": "text"},
    {"evidence": [1]},
    {"outcome": "unheard of"},
    {"closed_at": []},
]


@pytest.mark.parametrize("value", [INCIDENT, PAGE], ids=["incident", "page"])
def test_what_we_wrote_is_read(value):
    """With what a newer version knows besides."""
    written = json.dumps({**asdict(value), "newer": {"a": 1}}, default=str).encode()
    assert read_as(type(value), written) == value == TypeAdapter(type(value)).validate_json(written)


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_another_type_is_refused(change):
    """A line that somebody else wrote, or half a line, is none of ours."""
    written = json.dumps({**INCIDENT.to_json(), **change}).encode()
    with pytest.raises(ValueError):  # noqa: PT011 - any
        read_as(Incident, written)
    with pytest.raises(ValidationError):
        TypeAdapter(Incident).validate_json(written)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"3", b"null", b'{"kind": "k"}', b"\xff", b"[" * 100_000, b'{"pid": NaN}']
)
def test_what_is_no_such_object_is_refused(text):
    """Without any other error than ``ValueError``."""
    with pytest.raises(ValueError):  # noqa: PT011 - any
        read_as(Incident, text)
