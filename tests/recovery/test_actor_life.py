"""One life of an actor as a machine: any order of events keeps what it promises."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.recovery.actor_life import (
    BEGUN_ANEW,
    NOTHING_KEPT,
    OF_A_GROUP,
    REPEATED_S,
    ActorLife,
    CallArrived,
    CallVerdict,
    LifeBegan,
    LifeEntered,
    LifePhase,
    Refusal,
    StateFound,
    StateUnreadable,
    handle,
)
from rayguard.recovery.budget import RestartBudget

BUDGET = RestartBudget(max_restarts=2, within_s=100.0)
ENTERED = LifeEntered(number=1, now=1000.0, budget=BUDGET)


def lived(*events, life=None):
    """Return the life after ``events``, and the verdicts on them."""
    verdicts = []
    life = life or ActorLife()
    for event in events:
        life, verdict = handle(life, event)
        verdicts.append(verdict)
    return life, verdicts


@pytest.mark.parametrize(
    ("changes", "refusal", "restarts", "lost"),
    [
        ({"number": 0}, None, 0, ""),
        ({}, None, 1, ""),
        ({"earlier": (990.0,)}, None, 2, ""),
        ({"earlier": (980.0, 990.0)}, Refusal.BUDGET, 2, ""),
        ({"earlier": (800.0, 850.0)}, None, 1, ""),  # long ago
        ({"earlier": (980.0, 990.0), "recycled": True}, None, 2, ""),
        ({"earlier": (980.0, 990.0), "unsaid": True}, None, 3, BEGUN_ANEW),
        ({"unsaid": True, "recycled": True}, None, 0, ""),
        ({"of_a_group": True}, Refusal.GROUP, 1, ""),
        ({"of_a_group": True, "asked": True}, None, 1, OF_A_GROUP),
        ({"of_a_group": True, "unsaid": True}, None, 1, BEGUN_ANEW),
        ({"of_a_group": True, "recycled": True}, None, 0, ""),
    ],
)
def test_whether_a_life_may_begin(changes, refusal, restarts, lost):
    """The budget counts our own restarts; what Ray does for its user is told and not stopped."""
    life, (verdict,) = lived(replace(ENTERED, **changes))
    assert (life.refusal, len(life.restarts), life.lost) == (refusal, restarts, lost)
    assert verdict is (CallVerdict.REFUSED if refusal else CallVerdict.GOES_ON)
    assert life.phase is (LifePhase.REFUSED if refusal else LifePhase.ENTERED)


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        (StateFound(now=5.0), ""),
        (StateFound(now=5.0, kept=False), NOTHING_KEPT),
        (StateFound(now=5.0, missing=("step",)), "1 call (step) that had ended since is lost"),
        (StateFound(now=5.0, missing=("", "")), "2 calls that had ended since are lost"),
        (StateFound(now=5.0, missing=("step", "sync")), "2 calls (step, sync) that had ended since are lost"),
    ],
)
def test_what_is_lost_is_told(found, lost):
    """By name and number."""
    life, _ = lived(ENTERED, LifeBegan(), found)
    assert lost in life.lost
    assert bool(lost) is bool(life.lost)


@pytest.mark.parametrize(
    ("found", "refusal"),
    [
        (StateFound(now=5.0, may_lack=False), None),
        (StateFound(now=5.0, may_lack=False, kept=False), Refusal.STATE),
        (StateFound(now=5.0, may_lack=False, missing=("step",)), Refusal.STATE),
        (StateFound(now=5.0, may_lack=True, missing=("step",)), None),
    ],
)
def test_a_state_that_lacks_something_is_taken_only_by_who_says_so(found, refusal):
    """Else the actor is as dead as it would be without us."""
    life, verdicts = lived(ENTERED, LifeBegan(), found, CallArrived(call="a", now=0.0, may_run_twice=True))
    assert life.refusal is refusal
    assert verdicts[-1] is (CallVerdict.REFUSED if refusal else CallVerdict.GOES_ON)
    assert not refusal or life.lost, "it is said"


def test_a_state_that_cannot_be_had_refuses_every_call():
    """Whatever was known of them."""
    life, verdicts = lived(
        ENTERED, LifeBegan(), StateUnreadable(), CallArrived(call="a", now=0.0, may_run_twice=True)
    )
    assert life.refusal is Refusal.STATE
    assert verdicts[-2:] == [CallVerdict.REFUSED, CallVerdict.REFUSED]


CALLS = st.sampled_from(["a", "b", "c", "d"])
EVENTS = st.one_of(
    st.builds(
        LifeEntered,
        number=st.integers(0, 3),
        now=st.just(1000.0),
        budget=st.just(BUDGET),
        earlier=st.lists(st.floats(800, 1000), max_size=3).map(tuple),
        unsaid=st.booleans(),
        recycled=st.booleans(),
        of_a_group=st.booleans(),
        asked=st.booleans(),
    ),
    st.just(LifeBegan()),
    st.builds(
        StateFound,
        now=st.just(0.0),
        kept=st.booleans(),
        may_lack=st.booleans(),
        cut_off=st.frozensets(CALLS),
        answered=st.frozensets(CALLS),
    ),
    st.just(StateUnreadable()),
    st.builds(CallArrived, call=CALLS, now=st.floats(0.0, 2 * REPEATED_S), may_run_twice=st.booleans()),
)


@given(st.lists(EVENTS, max_size=12))
def test_no_order_of_events_breaks_a_promise(events):
    """Refused for ever; nothing runs that was answered; what was cut off runs only where it may."""
    life = ActorLife()
    for event in events:
        before = life
        life, verdict = handle(before, event)
        if before.refusal is not None and not isinstance(event, LifeEntered):
            assert life.refusal is not None
            assert verdict is CallVerdict.REFUSED
        if isinstance(event, CallArrived) and verdict is CallVerdict.GOES_ON and event.now <= before.until:
            assert event.call not in before.answered
            assert event.call not in before.cut_off or event.may_run_twice
        if isinstance(event, CallArrived) and verdict is CallVerdict.CUT_OFF:
            assert event.call in before.cut_off
            assert event.call not in life.cut_off, "told once"
        assert len(life.restarts) <= 4
