"""What is decided when a command has ended: a table of cases, and what holds for any story."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery.budget import RestartBudget
from rayguard.runner.correction import Correction
from rayguard.runner.ending import Ending
from rayguard.runner.machine import NoStart, Relaunch, RunFailed, RunPolicy, RunState, Stop, handle

POLICY = RunPolicy(budget=RestartBudget(max_restarts=3, within_s=100.0))
OFF = Correction(name="chunked_prefill_off", settings={"chunked_prefill": False})
EAGER = Correction(name="eager", settings={"enforce_eager": True})
SERVER = Correction(name="vllm_mode_server", settings={"vllm_mode": "server"})


def diagnosis(kind=Kind.ACTOR_DIED, scope=Scope.PROCESS, signature="s", **more):
    return Diagnosis(signature=signature, kind=kind, scope=scope, cause="c", confidence=0.9, **more)


def failed(now=0.0, verdict=None, code=1, **more):
    return RunFailed(
        diagnosis=verdict or diagnosis(), ending=Ending(code), now=now, **{"lasted_s": 10.0, **more}
    )


def told(*events, policy=POLICY, state=None):
    """The actions for ``events``, one after the other."""
    state, actions = state or RunState(), []
    for event in events:
        state, action = handle(state, event, policy)
        actions.append(action)
    return actions


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (failed(verdict=diagnosis(Kind.USER_CODE, Scope.CODE)), "the user's own"),
        (failed(verdict=diagnosis(Kind.DEPENDENCY_MISMATCH, Scope.JOB)), "packages"),
        (
            failed(verdict=diagnosis(Kind.RUNTIME_ENV_FAILED, Scope.JOB)),
            "environment of the job|job's environment",
        ),
        (failed(verdict=diagnosis(Kind.REQUEST_INVALID, Scope.REQUEST)), "the same data"),
        (failed(verdict=diagnosis(Kind.CONFIG_INVALID, Scope.JOB)), "the same settings fail again"),
        (failed(verdict=diagnosis(Kind.BATCH_INDIVISIBLE, Scope.JOB)), "the same settings fail again"),
        (failed(verdict=diagnosis(deterministic=True)), "the same settings fail again"),
        (failed(verdict=diagnosis(retry_same_settings=False)), "the same settings fail again"),
        (failed(refused=True, code=2), "the command line is refused"),
        (failed(code=-2), "told it to end"),
        (failed(code=143), "told it to end"),
        (failed(verdict=diagnosis(Kind.UNKNOWN, Scope.UNKNOWN)), "does not know"),
    ],
)
def test_what_another_start_cannot_help_is_stopped_at_once(event, why):
    """Each with its own reason."""
    (action,) = told(event)
    assert isinstance(action, Stop)
    assert any(one in action.why for one in why.split("|")), action.why


@pytest.mark.parametrize(
    "event",
    [
        failed(),
        failed(code=-9, verdict=diagnosis(Kind.UNKNOWN, Scope.UNKNOWN)),
        failed(lasted_s=600.0, verdict=diagnosis(Kind.UNKNOWN, Scope.UNKNOWN)),
        failed(furthest=20, verdict=diagnosis(retry_same_settings=False)),
    ],
)
def test_what_may_not_come_again_is_met_with_the_same_settings_once(event):
    """A transient fault; one without a word, after work; one that came after a new checkpoint."""
    first, second = told(event, dataclasses.replace(event, now=5.0))
    assert (first.added, isinstance(second, Stop)) == (None, True)
    assert "the same failure came again" in second.why


def test_a_known_cure_is_taken_at_once_and_the_next_one_after_it():
    """In order; and when none is left, that is the end."""
    event = failed(verdict=diagnosis(retry_same_settings=False), corrections=(OFF, EAGER))
    actions = told(*(dataclasses.replace(event, now=float(n)) for n in range(3)))
    assert [getattr(one, "added", None) for one in actions] == [OFF, EAGER, None]
    assert isinstance(actions[2], Stop)


def test_a_safe_setting_waits_for_a_second_time_where_the_failure_may_not_come_again():
    """It costs speed for the rest of the run; a launcher or a server does not."""
    first, second = told(failed(corrections=(OFF,)), failed(1.0, corrections=(OFF,)))
    assert (first.added, second.added) == (None, OFF)
    assert told(failed(corrections=(SERVER,)))[0].added == SERVER


def test_progress_makes_the_same_failure_a_new_one():
    """A later checkpoint, or a run that lasted much longer."""
    by_checkpoint = [failed(float(n), furthest=n) for n in range(1, 4)]
    assert all(isinstance(one, Relaunch) for one in told(*by_checkpoint))
    by_time = [failed(float(n), lasted_s=10.0 * 10**n) for n in range(3)]
    assert all(isinstance(one, Relaunch) for one in told(*by_time))
    slightly = told(failed(), failed(1.0, lasted_s=15.0))
    assert isinstance(slightly[1], Stop)


def test_a_checkpoint_that_was_there_before_is_no_progress():
    """The run began with it."""
    event = failed(furthest=40, verdict=diagnosis(retry_same_settings=False))
    assert isinstance(told(event, state=RunState(furthest=40))[0], Stop)


def test_a_correction_that_the_framework_refuses_is_taken_back_for_the_next():
    """And the failure that it was for is looked at again."""
    cause = failed(verdict=diagnosis(retry_same_settings=False), corrections=(OFF, EAGER))
    refusal = failed(1.0, verdict=diagnosis(Kind.CONFIG_INVALID, Scope.JOB, "refused"))
    state, first = handle(RunState(), cause, POLICY)
    state, second = handle(state, refusal, POLICY)
    assert (first.added, second.added) == (OFF, EAGER)
    assert (state.made, state.useless) == ((EAGER,), (OFF.name,))
    state, third = handle(state, failed(2.0, refused=True, code=2), POLICY)
    assert isinstance(third, Stop)
    assert state.made == ()


def test_an_unknown_command_is_left_alone_until_its_user_allows_it():
    """How, is said."""
    unknown = dataclasses.replace(POLICY, known=False)
    (action,) = told(failed(), policy=unknown)
    assert "--retry-unknown" in action.why
    (action,) = told(failed(verdict=diagnosis(Kind.USER_CODE, Scope.CODE)), policy=unknown)
    assert "--retry-unknown" not in action.why


def test_a_server_is_started_again_with_longer_and_longer_waits():
    """As long as it serves in between; one that never comes up is left."""
    server = RunPolicy(budget=RestartBudget(max_restarts=5, within_s=1e6), serves=True)
    actions = told(*(failed(float(n), code=0, lasted_s=900.0) for n in range(5)), policy=server)
    assert [one.wait_s for one in actions] == [5.0, 10.0, 20.0, 40.0, 60.0]
    assert isinstance(told(failed(lasted_s=1.0), failed(1.0, lasted_s=1.0), policy=server)[1], Stop)


def test_a_signal_of_rayguard_s_own_is_no_word_of_a_person():
    """A server that served nobody was ended by it, within the same budget."""
    server = dataclasses.replace(POLICY, serves=True)
    ended = failed(code=-15, lasted_s=900.0, by_us=True)
    actions = told(*(dataclasses.replace(ended, now=float(n)) for n in range(4)), policy=server)
    assert [isinstance(one, Relaunch) for one in actions] == [True, True, True, False]
    (action,) = told(dataclasses.replace(ended, by_us=False), policy=server)
    assert "told it to end" in action.why


def test_a_port_that_is_held_is_waited_for():
    """Its holder may be on its way out; other failures need no wait."""
    assert told(failed(verdict=diagnosis(Kind.PORT_CONFLICT)))[0].wait_s == 5.0
    assert told(failed())[0].wait_s == 0.0


def test_without_a_place_to_go_on_from_it_stops():
    """Whatever was decided before."""
    assert told(failed(), NoStart("no whole checkpoint"))[1] == Stop(why="no whole checkpoint")


KINDS = st.sampled_from(list(Kind))
EVENTS = st.builds(
    RunFailed,
    diagnosis=st.builds(
        diagnosis,
        KINDS,
        st.sampled_from(list(Scope)),
        st.sampled_from(["a", "b"]),
        retry_same_settings=st.booleans(),
        deterministic=st.booleans(),
    ),
    ending=st.builds(Ending, st.sampled_from([-15, -9, -2, 0, 1, 2, 137, 247])),
    now=st.just(0.0),
    lasted_s=st.floats(0, 1e5),
    corrections=st.lists(st.sampled_from([OFF, EAGER, SERVER]), unique_by=lambda one: one.name).map(tuple),
    furthest=st.none() | st.integers(0, 5),
    refused=st.booleans(),
)
POLICIES = st.builds(
    RunPolicy,
    budget=st.builds(RestartBudget, max_restarts=st.integers(0, 4), within_s=st.floats(1, 1e4)),
    known=st.booleans(),
    serves=st.booleans(),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 3000)), max_size=12), POLICIES)
def test_whatever_happens_the_promises_hold(story, policy):
    """The budget, no doubled and no useless correction, never the user's own errors, never blind."""
    state, now, relaunches = RunState(), 0.0, []
    for happened, pause in story:
        now += pause
        event = dataclasses.replace(happened, now=now)
        before = state
        state, action = handle(state, event, policy)
        names = [one.name for one in state.made]
        assert len(names) == len(set(names))
        assert not set(names) & set(state.useless)
        if isinstance(action, Stop):
            assert action.why
            continue
        relaunches.append(now)
        recent = [at for at in relaunches if policy.budget.counts(at, now)]
        assert len(recent) <= policy.budget.max_restarts
        assert policy.known
        taken_back = state.useless != before.useless
        assert taken_back or event.diagnosis.scope is not Scope.CODE
        assert event.ending.told_to_go is None or taken_back
        if action.added is None:
            assert not event.diagnosis.deterministic or taken_back
        else:
            assert action.added == state.made[-1]
