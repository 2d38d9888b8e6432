"""What is done about memory beside calls: when an engine is replaced, when an actor asks its pool to be."""

from __future__ import annotations

import time

import pytest

from rayguard.actors.life import incidents
from rayguard.actors.memory.background_relief import BackgroundRelief
from rayguard.actors.memory.memory_incidents import opened
from rayguard.memory.judge import Concern, JudgeState
from rayguard.memory.pressure import Pressure
from rayguard.memory.reading import Quantity
from rayguard.memory.relief import MIB, Need, Relief, Tried
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.incident import Outcome
from rayguard.recovery.memory_policy import MemoryPolicy

ENGINE = Need(soon=True, wanted=100 * MIB, engine_grown=600 * MIB)
OWN = Need(pressure=Pressure.HARD, wanted=100 * MIB, grown=600 * MIB)


class ReliefActions:
    """Says what it was told to do, and frees ``freed`` bytes by it."""

    def __init__(self, *, pooled=False, freed=500 * MIB):
        self.pooled, self.freed = pooled, freed
        self.did: list[object] = []

    def enact(self, relief, need):
        self.did.append(relief)
        return Tried(relief=relief, at=time.monotonic(), freed=self.freed, took_s=0.1)

    def ask_to_leave(self, why):
        self.did.append(why)


@pytest.fixture
def told(monkeypatch):
    """The incidents that were written."""
    written = []
    monkeypatch.setattr(incidents, "record", written.append)
    return written


def relief_of(actions, **policy):
    return BackgroundRelief(
        actions,
        MemoryPolicy(**policy),
        opened=lambda concern, relief: opened(concern, "Rollout", f"for {relief.value}"),
        relieved=JudgeState,
    )


def state(need, quantity=Quantity.NODE):
    return JudgeState(concerns=(Concern(quantity=quantity, need=need, why="the node's memory is 95% full"),))


def test_an_engine_that_has_grown_is_replaced_and_the_incident_says_what_that_gave(told):
    actions = ReliefActions()
    relief_of(actions).looked(state(ENGINE, Quantity.ENGINE))
    assert actions.did == [Relief.ENGINE]
    (incident,) = told
    assert (incident.kind, incident.scope, incident.outcome) == ("host_oom", "engine", Outcome.RECOVERED)
    assert "engine freed 500 MiB" in incident.notes[-1]


def test_what_is_for_the_end_of_a_call_is_left_for_it(told):
    """An actor whose own memory is short is not touched from here."""
    actions = ReliefActions()
    relief_of(actions).looked(state(OWN, Quantity.PRIVATE))
    assert (actions.did, told) == ([], [])


def test_what_is_short_elsewhere_has_nothing_to_do_with_an_engine(told):
    actions = ReliefActions(pooled=True)
    relief_of(actions).looked(state(ENGINE, Quantity.STORE))
    assert (actions.did, told) == ([], [])


def test_a_new_engine_that_gave_nothing_back_is_not_made_again_at_once(told):
    actions = ReliefActions(freed=0)
    aside = relief_of(actions)
    for _ in range(3):
        aside.looked(state(ENGINE))
    assert actions.did == [Relief.ENGINE]
    assert told[0].outcome is Outcome.FAILED


def test_engines_are_not_replaced_for_ever(told):
    actions = ReliefActions()
    aside = relief_of(actions, recycle_budget=RestartBudget(max_restarts=2, within_s=3600.0))
    for _ in range(5):
        aside.looked(state(ENGINE))
    assert actions.did == [Relief.ENGINE, Relief.ENGINE]
    assert len(told) == 2


def test_an_actor_of_a_pool_asks_to_be_replaced_once_nothing_cheaper_helps(told):
    """It never has an end of a call at which nothing runs."""
    actions = ReliefActions(pooled=True, freed=0)
    aside = relief_of(actions)
    for _ in range(4):
        aside.looked(state(OWN, Quantity.PRIVATE))
    assert actions.did == [Relief.COLLECT, "the node's memory is 95% full"], "asked once"
    assert told[0].remedy == ""
    assert "its pool was asked to replace this actor" in told[0].notes[-1]


def test_an_error_in_it_ends_no_watch(told):
    class Broken(ReliefActions):
        def enact(self, relief, need):
            raise OSError(relief)

    relief_of(Broken()).looked(state(ENGINE))
    assert not told


def test_who_asked_takes_it_back_once_memory_is_there_again(told):
    """Another actor of the node went: this one serves on."""
    actions = ReliefActions(pooled=True, freed=0)
    aside = relief_of(actions)
    for _ in range(2):
        aside.looked(state(OWN, Quantity.PRIVATE))
    aside.looked(JudgeState())
    aside.looked(JudgeState())
    assert actions.did[1:] == ["the node's memory is 95% full", ""]


def test_an_actor_of_a_pool_that_took_it_all_at_its_start_says_once_that_nothing_helps(told):
    """A new process would take as much: replacing it would go on for ever."""
    actions = ReliefActions(pooled=True, freed=0)
    aside = relief_of(actions)
    full = Need(pressure=Pressure.HARD, wanted=1000 * MIB)
    for _ in range(4):
        aside.looked(state(full, Quantity.PRIVATE))
    assert actions.did == [Relief.COLLECT]
    (incident,) = told
    assert incident.outcome is Outcome.FAILED
    assert "recycle: this process has grown by 0 MiB only since it was warm" in incident.notes[-1]
    aside.looked(JudgeState())
    aside.looked(state(full, Quantity.PRIVATE))
    assert len(told) == 2, "it was over, and is there again"
