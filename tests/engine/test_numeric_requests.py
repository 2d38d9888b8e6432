"""Requests that were ended since their logits were NaN or infinite: each is counted, and a burst is few incidents."""

from __future__ import annotations

import threading

from rayguard.engine.spoiled_requests import SpoiledRequests, incident_of_spoiled
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import EngineTally
from tests.engine.load import until


def test_the_incident_names_the_requests_and_asks_for_no_restart():
    """The first eight; the rest as a number."""
    told = incident_of_spoiled([f"r{i}" for i in range(8)], 300)
    assert (told.kind, told.scope) == (Kind.NUMERIC_NAN.value, Scope.REQUEST.value)
    assert (told.outcome, told.requests, told.remedy) == (Outcome.ANSWERED, 300, "")
    assert "'r0', 'r1'" in told.cause
    assert told.cause.endswith("'r7' and 292 more")
    assert Incident.from_json(told.to_json()) == told


def test_a_burst_is_told_at_once_and_what_follows_together():
    """Where the weights are NaN, every request is hit: the journal must not fill with it."""
    told, tally = [], EngineTally("e")
    spoiled = SpoiledRequests(told.append, tally, pause_s=60.0)
    spoiled.take(["a"])
    until(lambda: len(told) == 1, limit_s=10.0)
    for i in range(1000):
        spoiled.take([f"b{i}", f"c{i}"])
    assert tally.spoiled == 2001
    assert len(told) == 1
    spoiled.close()
    until(lambda: len(told) == 2, limit_s=10.0)
    assert told[1].requests == 2000
    assert told[1].cause.count("'") == 16
    until(lambda: not any(t.name == "rayguard-spoiled" for t in threading.enumerate()), limit_s=10.0)


def test_a_journal_that_fails_disturbs_nobody():
    """And the next one is told."""
    told, fails = [], [True]

    def noticed(incident):
        if fails.pop() if fails else False:
            raise OSError("the disk is full")
        told.append(incident)

    spoiled = SpoiledRequests(noticed, EngineTally("e"), pause_s=0.01)
    spoiled.take(["a"])
    until(lambda: not fails, limit_s=10.0)
    spoiled.take(["b"])
    until(lambda: len(told) == 1, limit_s=10.0)
    assert "'b'" in told[0].cause
    spoiled.close()
