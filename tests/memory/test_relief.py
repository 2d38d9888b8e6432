"""Which relief comes next: the cheapest that is open and has not failed."""

from __future__ import annotations

import pytest

from rayguard.memory.pressure import Pressure
from rayguard.memory.relief import AGAIN_S, MIB, ORDER, Need, Relief, ReliefDecision, Tried, decide

SHORT = Need(pressure=Pressure.HARD, wanted=400 * MIB, grown=600 * MIB, engine_grown=600 * MIB)
ALL: dict[Relief, str] = {}


def failed(*reliefs, at=100.0):
    return [Tried(relief=relief, at=at, freed=10 * MIB) for relief in reliefs]


def test_what_costs_work_waits_until_it_is_urgent():
    """Soft pressure is for what costs nothing; a forecast within the horizon is urgent whatever is free now."""
    soft = Need(pressure=Pressure.SOFT, wanted=400 * MIB, grown=600 * MIB)
    told = decide(soft, failed(Relief.COLLECT, Relief.FREE), ALL, 101.0)
    assert told.relief is Relief.NONE
    assert told.reason.count("not before it is urgent") == 2
    soon = Need(soon=True, wanted=400 * MIB, grown=600 * MIB)
    assert decide(soon, failed(Relief.COLLECT, Relief.FREE), ALL, 101.0).relief is Relief.REDUCE


def test_nothing_is_done_without_need():
    assert decide(Need(), [], ALL, 100.0) == ReliefDecision(Relief.NONE)


@pytest.mark.parametrize("need", [SHORT, Need(soon=True, wanted=1, grown=600 * MIB)])
def test_what_costs_least_comes_first(need):
    """Whether memory is short or will be."""
    assert decide(need, [], ALL, 100.0).relief is Relief.COLLECT


@pytest.mark.parametrize("place", range(len(ORDER) - 1))
def test_what_freed_little_is_followed_by_the_next(place):
    tried = failed(*ORDER[: place + 1])
    assert decide(SHORT, tried, ALL, 101.0).relief is ORDER[place + 1]


def test_what_freed_enough_is_tried_again():
    """A garbage collection that helps is better than a new process, every minute."""
    tried = [Tried(relief=Relief.COLLECT, at=100.0, freed=300 * MIB)]
    assert decide(SHORT, tried, ALL, 101.0).relief is Relief.COLLECT


def test_what_failed_is_tried_again_after_a_while():
    tried = failed(*ORDER)
    assert decide(SHORT, tried, ALL, 101.0).relief is Relief.NONE
    assert decide(SHORT, tried, ALL, 101.0 + AGAIN_S).relief is Relief.COLLECT


def test_only_the_last_attempt_counts():
    tried = [*failed(Relief.COLLECT), Tried(relief=Relief.COLLECT, at=100.5, freed=300 * MIB)]
    assert decide(SHORT, tried, ALL, 101.0).relief is Relief.COLLECT


def test_what_is_not_open_is_passed_over():
    cannot = {Relief.FREE: "nothing leaked", Relief.REDUCE: "no hook", Relief.ENGINE: "a new one"}
    assert decide(SHORT, failed(Relief.COLLECT), cannot, 101.0).relief is Relief.RECYCLE


def test_a_process_that_did_not_grow_is_not_recycled():
    """It would lose its warm caches, and the memory is elsewhere."""
    innocent = Need(pressure=Pressure.HARD, wanted=400 * MIB, grown=20 * MIB)
    told = decide(innocent, failed(*ORDER[:-1]), ALL, 101.0)
    assert told.relief is Relief.NONE
    assert "grown by 20 MiB only" in told.reason


def test_it_says_why_each_relief_is_out():
    """In the order in which they would have come."""
    cannot = {
        Relief.REDUCE: "the class has no reduce_memory",
        Relief.ENGINE: "it is a new one",
        Relief.RECYCLE: "its state would be lost",
    }
    told = decide(SHORT, failed(Relief.COLLECT, Relief.FREE), cannot, 101.0)
    assert told.relief is Relief.NONE
    assert told.reason == (
        "collect: freed only 10 of 400 MiB; free: freed only 10 of 400 MiB; "
        "reduce: the class has no reduce_memory; engine: it is a new one; recycle: its state would be lost"
    )


def test_a_new_engine_is_made_only_where_the_engine_has_grown_most():
    """A leak of the actor's own would go on beside it; where there is no engine nothing is said of one."""
    tried = failed(*ORDER[:3])
    little = Need(pressure=Pressure.HARD, wanted=400 * MIB, grown=600 * MIB, engine_grown=500 * MIB)
    assert decide(little, tried, ALL, 101.0).relief is Relief.RECYCLE
    told = decide(Need(pressure=Pressure.HARD, wanted=400 * MIB, engine_grown=40 * MIB), tried, ALL, 101.0)
    assert "the engine has grown by 40 MiB only" in told.reason
    none = decide(Need(pressure=Pressure.HARD, wanted=400 * MIB), tried, ALL, 101.0)
    assert "engine" not in none.reason
