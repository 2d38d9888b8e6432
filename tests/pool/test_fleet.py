"""Actors that are dead for good are replaced, within a budget; with scripted actors."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from rayguard import errors
from rayguard.pool import fleet, replacement
from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.recovery.budget import RestartBudget
from rayguard.testing.scripted import Script, ScriptedProvider

PROMPTS = [[n, n + 1, 5] for n in range(24)]
LONG = {"max_tokens": 200}
SLOW = {"turn_s": 0.01}


@pytest.fixture
def soon(monkeypatch):
    """The pauses between replacements, a thousand times shorter."""
    monkeypatch.setattr(replacement, "_FIRST_S", 0.001)


@pytest.fixture
def late(monkeypatch):
    """Pauses between replacements that no test waits for."""
    monkeypatch.setattr(replacement, "_FIRST_S", 1_000.0)
    monkeypatch.setattr(replacement, "_LONGEST_S", 1_000.0)


class Cursed(ScriptedProvider):
    """Of whom it hires, those with a number in ``bad`` never serve."""

    def __init__(self, bad, error):
        super().__init__(Script())
        self.bad = bad
        self.error = error
        self.hired = []

    def hire(self, name):
        self.hired.append(name)
        member = super().hire(name)
        if len(self.hired) - 1 in self.bad:
            member.die(for_good=True)
            if self.error is not None:
                member.hello = self.refuse
        return member

    async def refuse(self):
        raise self.error


@pytest.fixture
def cursed():
    """Make pools whose actors do not come up."""
    made = []

    def make(engines=2, bad=range(100), error=None):
        staff = Cursed(bad, error)
        pool = RolloutPool.of(staff, engines=engines, policy=PoolPolicy(progress=False))
        made.append(pool)
        return pool, staff

    yield make
    for pool in made:
        pool.close()


def dead_for_good(play, name):
    def die():
        play.members[name].die(for_good=True)
        play.staff._gone[name]("killed")

    play.on_loop(die)


def until_there(play, *names):
    play.until(lambda: set(names) <= {n for n, slot in play.core.book.slots.items() if slot.open})


def in_thread(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_an_actor_that_is_dead_for_good_is_replaced_and_nothing_is_lost(stage, caplog):
    """By a new one, with the next name; it is told and counted."""
    play = stage(**SLOW)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.working("rollout-0")
    with caplog.at_level(logging.WARNING, "rayguard"):
        dead_for_good(play, "rollout-0")
        until_there(play, "rollout-1", "rollout-2")
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    assert sorted(play.pool.handles) == ["rollout-1", "rollout-2"]
    assert play.staff.dismissed == ["rollout-0"], "what it may still hold is given back"
    status = play.pool.status()
    assert (status["replaced"], status["replacing"], status["lost"]) == (1, 0, 0)
    assert "dead" in status["engines"]["rollout-2"]["last_loss"]
    assert "rollout-2 is hired in the place of rollout-0 (replacement 1 of at most 3" in caplog.text


def test_the_only_actor_is_dead_for_good_and_its_requests_wait_for_the_next(stage):
    """They go on from their tokens; who waits for readiness or pushes weights waits as well."""
    play = stage(engines=1, weights="1", **SLOW)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.working("rollout-0")
    play.script.start_s = 0.2
    dead_for_good(play, "rollout-0")
    play.until(lambda: "rollout-0" not in play.core.connections)
    assert play.pool.wait_ready(timeout_s=20) == 1
    generations = [future.result(20) for future in futures]
    play.right(generations, PROMPTS, LONG, weights="1")
    assert any(sample.cuts for generation in generations for sample in generation.samples)
    dead_for_good(play, "rollout-1")
    play.until(lambda: "rollout-1" not in play.core.connections)
    play.script.weights = "2"
    assert play.pool.update_weights(deadline_s=20) == "2"


def test_a_constructor_that_always_raises_is_tried_as_often_as_was_said(cursed, soon, caplog):
    """Then whoever waits is told the last cause, and whoever asks later is told at once."""
    pool, staff = cursed(engines=2)
    with pytest.raises(errors.BatchError, match="no rollout actor is left") as caught:
        pool.generate(PROMPTS)
    assert "ActorDiedError" in str(caught.value)
    assert "3 replacements within 3600 s did not last" in str(caught.value)
    assert "6 other actors" in str(caught.value)
    assert len(staff.hired) == 2 + 2 * 3
    for call in (pool.wait_ready, pool._core.fleet.raise_if_given_up, lambda: pool.resize(3)):
        with pytest.raises(errors.GaveUpError, match="did not last"):
            call()
    assert pool.submit([1]).result(5).error is pool._core.final
    status = pool.status()
    assert (status["replaced"], status["lost"], status["engines"]) == (6, 2, {})
    assert caplog.text.count("cannot be kept alive") == 1
    assert len(staff.hired) == 8


def test_a_second_replacement_is_not_hired_at_once(cursed, late):
    """No tight loop: the next one waits; a pool that is closed meanwhile hires nobody."""
    pool, staff = cursed(engines=1)
    until = time.monotonic() + 10
    while len(staff.hired) < 2 or not pool.status()["replacing"]:
        assert time.monotonic() < until, "nobody was hired"
        threading.Event().wait(0.005)
    assert pool.status()["gave_up"] is None
    (timer,) = pool._core.fleet._awaited.values()
    pool.close()
    assert timer.cancelled()
    assert staff.hired == ["rollout-0", "rollout-1"]
    assert pool._core.fleet.replacing == 0


def test_one_place_that_keeps_nobody_does_not_cost_the_others(stage, soon, caplog):
    """The pool goes on with fewer and says so; who resizes it gets another one."""
    play = stage(engines=2)
    for name in ("rollout-0", "rollout-2", "rollout-3", "rollout-4"):
        until_there(play, "rollout-1", name)
        dead_for_good(play, name)
        play.until(lambda n=name: n not in play.core.connections)
    play.until(lambda: play.core.fleet.lost == 1)
    assert sorted(play.pool.handles) == ["rollout-1"]
    assert "rollout-4 is not replaced: 3 replacements within 3600 s did not last" in caplog.text
    assert play.pool.wait_ready(timeout_s=5) == 1
    play.right(play.pool.generate(PROMPTS), PROMPTS)
    dead_for_good(play, "rollout-1")
    until_there(play, "rollout-5")
    play.pool.resize(2)
    until_there(play, "rollout-5", "rollout-6")
    assert play.pool.status()["lost"] == 0
    play.right(play.pool.generate(PROMPTS), PROMPTS)


def test_one_that_goes_and_has_a_successor_is_not_replaced_as_well(stage):
    """It died for good while it was drained: two engines were asked for, two are there."""
    play = stage(**SLOW)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.working("rollout-0")
    draining = in_thread(lambda: play.pool.drain("rollout-0"))
    play.until(lambda: "rollout-0" in play.core.draining)
    dead_for_good(play, "rollout-0")
    draining.join(20)
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    until_there(play, "rollout-1", "rollout-2")
    assert sorted(play.pool.handles) == ["rollout-1", "rollout-2"]
    assert play.pool.status()["replaced"] == 0


def test_a_successor_inherits_what_its_place_has_spent(stage, late):
    """Draining is no way round the budget."""
    play = stage(engines=1)
    dead_for_good(play, "rollout-0")
    until_there(play, "rollout-1")
    play.pool.drain("rollout-1")
    until_there(play, "rollout-2")
    dead_for_good(play, "rollout-2")
    play.until(lambda: play.core.fleet.replacing == 1)
    assert "rollout-3" not in play.members


def test_places_that_wait_count_as_engines(stage, late):
    """Fewer: they are given up first. More: only what is missing is hired."""
    play = stage(engines=2)
    dead_for_good(play, "rollout-0")
    until_there(play, "rollout-2")
    dead_for_good(play, "rollout-2")
    play.until(lambda: play.core.fleet.replacing == 1)
    play.pool.resize(3)
    until_there(play, "rollout-1", "rollout-3")
    assert play.core.fleet.replacing == 1
    play.pool.resize(2)
    assert sorted(play.pool.handles) == ["rollout-1", "rollout-3"]
    assert play.core.fleet.replacing == 0
    assert play.staff.dismissed == ["rollout-0", "rollout-2"]


def test_who_waits_while_the_last_one_is_drained_is_told(stage):
    """One place was given up, the other one was sent away: nobody comes."""
    play = stage(policy=PoolPolicy(progress=False, replace=RestartBudget(max_restarts=0, within_s=1)), **SLOW)
    dead_for_good(play, "rollout-0")
    play.until(lambda: play.core.fleet.lost == 1)
    play.pool.drain("rollout-1", replace=False)
    with pytest.raises(errors.BatchError, match=r"rollout-0, ended with .*the policy allows no replacement"):
        play.pool.generate(PROMPTS)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.ConfigError("no such option"), "no such option"),
        (errors.GaveUpError("Rollout", "it never fits", ("eager",), "buy memory"), "it never fits"),
    ],
)
def test_what_no_other_actor_would_survive_is_told_at_once(cursed, late, error, said):
    """Nobody is hired for it."""
    pool, staff = cursed(engines=1, error=error)
    with pytest.raises(errors.BatchError, match=said):
        pool.generate(PROMPTS)
    assert staff.hired == ["rollout-0"]


def test_an_engine_that_gave_up_where_others_serve_is_replaced(cursed):
    """Its device may be bad; its actor lives, and is ended first."""
    gave_up = errors.GaveUpError("Rollout", "bad device", (), "")
    pool, staff = cursed(engines=1, bad=(1,), error=gave_up)
    pool.wait_ready(timeout_s=10)
    pool.resize(2)
    assert pool.wait_ready(2, timeout_s=10) == 2
    assert staff.hired == ["rollout-0", "rollout-1", "rollout-2"]
    assert staff.dismissed == ["rollout-1"]


def test_a_cluster_that_makes_no_actor_is_asked_as_often_as_was_said(cursed, soon):
    """And is the cause that is told."""
    pool, staff = cursed(engines=1, bad=())
    pool.wait_ready(timeout_s=10)
    asked = []

    def refuse(name):
        asked.append(name)
        raise RuntimeError("Ray is down")

    pool._background.call(lambda: setattr(staff, "hire", refuse))
    pool._background.call(lambda: staff.members["rollout-0"].die(for_good=True))
    with pytest.raises(errors.BatchError, match="Ray is down"):
        pool.generate(PROMPTS)
    assert len(asked) == 3


def test_a_policy_that_means_nothing_is_refused():
    """A number is no budget."""
    with pytest.raises(errors.ConfigError, match="RestartBudget"):
        PoolPolicy(replace=3)


def asks_to_leave(play, name, why="its memory runs out"):
    play.on_loop(lambda: setattr(play.members[name], "leaving", why))


def test_an_actor_that_asks_for_it_is_replaced_and_nothing_is_lost(stage, monkeypatch):
    """What it has not done in time goes on elsewhere from its tokens; the next one comes when it has gone."""
    monkeypatch.setattr(fleet, "_RELIEF_S", 0.05)
    play = stage(**SLOW)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.working("rollout-0")
    asks_to_leave(play, "rollout-0")
    until_there(play, "rollout-1", "rollout-2")
    answers = [future.result(20) for future in futures]
    play.right(answers, PROMPTS, LONG)
    assert any(s.cuts for generation in answers for s in generation.samples), "it had begun some"
    status = play.pool.status()
    assert (status["replaced"], status["lost"]) == (1, 0)
    assert sorted(play.pool.handles) == ["rollout-1", "rollout-2"]
    assert play.staff.dismissed == ["rollout-0"]


def test_the_only_actor_may_leave_and_its_requests_wait(stage, monkeypatch):
    monkeypatch.setattr(fleet, "_RELIEF_S", 0.05)
    play = stage(engines=1, **SLOW)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.working("rollout-0")
    asks_to_leave(play, "rollout-0")
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    assert sorted(play.pool.handles) == ["rollout-1"]


def test_who_leaves_again_and_again_spends_the_budget_of_its_place(stage, soon, monkeypatch, caplog):
    """A policy that would recycle for ever: the last one stays, and is told to."""
    monkeypatch.setattr(fleet, "_RELIEF_S", 0.05)
    budget = RestartBudget(max_restarts=2, within_s=3600.0)
    play = stage(policy=PoolPolicy(progress=False, replace=budget))
    for name in ("rollout-0", "rollout-2"):
        until_there(play, name)
        asks_to_leave(play, name)
        play.until(lambda gone=name: gone not in play.core.connections)
    until_there(play, "rollout-3")
    with caplog.at_level(logging.ERROR, "rayguard"):
        asks_to_leave(play, "rollout-3")
        play.right(play.pool.generate(PROMPTS), PROMPTS)
        play.until(lambda: "rollout-3" in play.core.fleet._kept)
    assert sorted(play.pool.handles) == ["rollout-1", "rollout-3"], "one that is short is better than none"
    assert caplog.text.count("2 replacements within 3600 s did not last") == 1


def test_a_pool_made_smaller_while_one_leaves_hires_nobody_for_it(stage, monkeypatch):
    monkeypatch.setattr(fleet, "_RELIEF_S", 0.5)
    play = stage(**SLOW)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.working("rollout-0")
    asks_to_leave(play, "rollout-0")
    play.until(lambda: "rollout-0" in play.core.draining)
    play.pool.resize(1)
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    play.until(lambda: sorted(play.core.connections) == ["rollout-1"])
    assert play.pool.status()["replaced"] == 0


def test_of_two_that_ask_at_once_one_goes_on_serving(stage, monkeypatch):
    """As where a node's memory is short: all of its actors see the same, and each would go."""
    monkeypatch.setattr(fleet, "_RELIEF_S", 0.05)
    play = stage(start_s=0.2, **SLOW)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.working("rollout-0")
    for name in ("rollout-0", "rollout-1"):
        asks_to_leave(play, name)
    serving = []

    def both_replaced():
        serving.append(sum(slot.open for slot in play.core.book.slots.values()))
        return sorted(play.core.connections) == ["rollout-2", "rollout-3"]

    play.until(both_replaced)
    assert min(serving) == 1
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
