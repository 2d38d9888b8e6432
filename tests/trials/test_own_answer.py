"""What the fault's own caller gets: the error that is promised, the right answer, in time."""

from __future__ import annotations

import asyncio

import pytest

from rayguard.errors import EngineCallError, RequestError, WeightsError
from tests.benchmarks.trials.own_answer import WAYS, Told, amiss, harmless, unnoticed, way
from tests.benchmarks.trials.plan import Fault, Trial


def trial(fault, which=""):
    variant = WAYS[fault].index(which) if which else 0
    return Trial(number=0, fault=fault, target=0, variant=variant)


def told(error, what="call", after_s=0.1):
    return Told.of(what, error, after_s)


RIGHT = [
    (Fault.UNENCODABLE, "pool", RequestError("a", "'seed' is 7")),
    (Fault.KILLING_CALL, "exit_now", EngineCallError("collective_rpc('exit_now')", "it died")),
    (Fault.KILLING_CALL, "update_weight_version", RequestError("", "must be text, got 7")),
    (Fault.HUNG_CALL, "its caller's deadline", asyncio.TimeoutError()),
    (Fault.MISFIT_PUSH, "foreign", WeightsError("'x.of_another_model' is foreign")),
]


@pytest.mark.parametrize(("fault", "which", "error"), RIGHT)
def test_the_error_that_is_promised_is_not_amiss(fault, which, error):
    """Any other one is, and so is none."""
    one = trial(fault, which)
    assert way(one) == which
    assert amiss(one, [told(error)], None) == []
    assert unnoticed(one, [told(error)], None if harmless(one) or fault is Fault.HUNG_CALL else 0.1) == []
    (wrong,) = amiss(one, [told(ValueError("why"))], None)
    assert wrong == "call -> ValueError: why after 0.10 s"
    assert amiss(one, [Told(what="call", value=None)], None) == ["no error: call -> None after 0.00 s"]


def test_an_error_is_known_by_what_it_was_raised_from():
    """Ray hands on errors of actors within its own."""
    outer = RuntimeError("of Ray")
    outer.cause = WeightsError("'down_proj' is missing")
    assert {"RuntimeError", "WeightsError"} <= set(told(outer).kinds)
    assert told(Exception("of vLLM")).kinds == ("Exception",)


def test_what_comes_after_the_fault_must_go_well():
    """A push of fit weights, the call that wakes an engine."""
    refused = told(WeightsError("down_proj"), "push")
    assert amiss(trial(Fault.MISFIT_PUSH, "missing"), [refused, told(RuntimeError("no"), "next push")], None)
    cut_off = told(EngineCallError("sleep", "it died"), "cut off: sleep")
    for fault in (Fault.KILL_IN_SLEEP, Fault.KILL_IN_WAKE):
        assert amiss(trial(fault), [cut_off, Told(what="wake", value=True)], None) == []
        assert amiss(trial(fault), [told(EngineCallError("wake_up", "it died"), "wake")], None)
    assert amiss(trial(Fault.KILL_ASLEEP), [cut_off], None), "nothing was under way"


def test_a_session_and_requests_with_adapters_are_answered_as_if_nothing_had_happened():
    """Or, where a part was told already, with the error that says so."""
    for fault, what in ((Fault.KILL_STREAM, "stream"), (Fault.KILL_ADAPTERS, "ask")):
        assert amiss(trial(fault), [Told(what=what, value=(1, 2))], (1, 2)) == []
        assert amiss(trial(fault), [Told(what=what, value=(1,))], (1, 2))
    cut_short = told(RequestError("s", "its input is a stream"), "stream")
    assert amiss(trial(Fault.KILL_STREAM), [cut_short], (1, 2)) == []


def test_a_fault_without_incident_and_without_answer_in_time_was_never_noticed():
    """An answer is enough where nothing dies; a death needs an incident."""
    late = told(asyncio.TimeoutError(), after_s=200.0)
    assert unnoticed(trial(Fault.HUNG_CALL), [late], 1.0) == ["hung_call was noticed after 200.0 s"]
    assert unnoticed(trial(Fault.HUNG_CALL), [Told(what="call", value=1)], None) == [
        "nobody noticed hung_call"
    ]
    assert unnoticed(trial(Fault.KILL_CORE), [], None) == ["nobody noticed kill_core"]
    assert unnoticed(trial(Fault.KILL_CORE), [], 61.0) == ["kill_core was noticed after 61.0 s"]
    assert unnoticed(trial(Fault.KILLING_CALL, "exit_now"), [late], 0.2) == []
    assert unnoticed(trial(Fault.KILL_OWNER), [], None) == [], "Ray notices that"
