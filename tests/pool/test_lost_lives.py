"""What a pool tells of an actor's death: what ran there, what it cost, where and when it went on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from rayguard.faults.diagnosis import Kind
from rayguard.metrics.exporter import TallyCollector
from rayguard.metrics.instruments.pool_tally import POOLS
from rayguard.pool import actor_deaths
from rayguard.pool.ledger.records import Replay, whole
from rayguard.pool.lost_lives import LostLives
from rayguard.pool.values.policy import PoolPolicy
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.journal import Journal, default_journal
from rayguard.recovery.tally import TALLY

PROMPTS = [[n, n + 1, 5] for n in range(24)]
IDS = [f"step7-{n}" for n in range(24)]
LONG = {"max_tokens": 200}
SLOW = {"turn_s": 0.01}
POOL = "RolloutPool(scripted)"


@pytest.fixture(autouse=True)
def _a_journal_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "home"))
    POOLS.begin_again()


@pytest.fixture
def told(stage):
    """Make pools whose actors have ids as on Ray, so that their deaths are written."""

    def make(ledger=False, **more):
        policy = more.pop("policy", PoolPolicy(progress=False, ledger=ledger))
        play = stage(policy=policy, **{**SLOW, **more})

        def name_actors():
            for name, connection in play.core.connections.items():
                connection.hello = replace(connection.hello, actor_id=f"id of {name}", pid=7)

        play.on_loop(name_actors)
        return play

    return make


def strike(play, name, *, for_good=False):
    """Kill an actor once it has made tokens; return how many requests ran on it."""
    play.working(name)

    def kill():
        held = len(play.core.book.slots[name].running)
        if for_good:
            play.members[name].die(for_good=True)
            play.staff._gone[name]("killed")
        else:
            play.staff.kill(name)
        return held

    return play.on_loop(kill)


def journal(play, count=1):
    """Return the incidents, once that many are there and closed."""
    found = []

    def there():
        found[:] = default_journal().read()
        return len([i for i in found if i.outcome is not Outcome.OPEN]) >= count

    play.until(there)
    assert len(found) == count
    return found


def number(name, **labels):
    registry = CollectorRegistry()
    registry.register(TallyCollector())
    return registry.get_sample_value(f"rayguard_pool_{name}", {"pool": POOL, **labels})


def test_the_incident_agrees_with_the_ledger_the_samples_and_the_metrics(told, tmp_path, monkeypatch):
    """How many requests, how many tokens of them were kept, where and when they went on."""
    path, copies, began = tmp_path / "pool.ledger", [], LostLives.began

    def seen(losses, loss):
        began(losses, loss)
        copies.append((loss, set(loss.cut), path.read_bytes()))

    monkeypatch.setattr(LostLives, "began", seen)
    play = told(ledger=path)
    futures = [play.pool.submit(p, LONG, request_id=n) for p, n in zip(PROMPTS, IDS, strict=True)]
    held = strike(play, "rollout-0")
    generations = [future.result(20) for future in futures]
    play.right(generations, PROMPTS, LONG)
    (incident,) = journal(play)
    ((_, cut, kept),) = copies
    replay = Replay()
    for at, size, values in whole(kept):
        replay.add(values, at, size)
    assert incident.requests == held == len(cut) > 0
    assert incident.tokens_saved == sum(o.tokens for o in replay.past().owed if o.request.id in cut) > 0
    assert incident.tokens_saved == sum(s.cuts[0] for g in generations for s in g.samples if s.cuts)
    assert incident.tokens_lost is None, "a scripted actor keeps no log: nobody can count them"
    assert (incident.kind, incident.outcome) == ("actor_died", Outcome.RECOVERED)
    assert 0 < incident.resume_s < 5
    assert 0 <= incident.recover_s < 5
    went_to = incident.notes[-1].removeprefix("its requests went on at ").split(", ")
    assert sum(int(one.partition("(")[2][:-1]) for one in went_to) >= held
    assert "id of rollout-0" in incident.actor_id
    assert number("tokens_saved_total") == play.pool.status()["tokens_saved"] == incident.tokens_saved
    assert number("interruptions_total", kind="actor_died") == held
    assert number("resume_seconds_count") == number("replacement_seconds_count") == 1
    assert number("resume_seconds_sum") == pytest.approx(incident.resume_s)
    assert number("tokens_lost_total") == play.pool.status()["tokens_lost"] == 0


@pytest.mark.parametrize(("spares", "slow", "said"), [(0, True, True), (0, False, False), (1, True, False)])
def test_a_slow_replacement_says_what_would_make_it_quick(told, monkeypatch, spares, slow, said):
    """Only where that is not in use already."""
    monkeypatch.setattr(actor_deaths, "_SLOW_S", 0.0 if slow else 60.0)
    play = told(policy=PoolPolicy(progress=False, ledger=False, spares=spares))
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS[:4]]
    strike(play, "rollout-0")
    assert all(future.result(20).error is None for future in futures)
    (incident,) = journal(play)
    assert any("PoolPolicy(spares=1)" in note for note in incident.notes) == said


def test_tokens_of_requests_that_must_begin_afresh_are_lost_and_not_saved(told):
    """The only engine comes back with other weights, and may not go on with those tokens."""
    play = told(engines=1, weights="1")
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS[:4]]
    play.working("rollout-0")

    def kill():
        play.script.weights = "2"
        play.staff.kill("rollout-0")

    play.on_loop(kill)
    for future in futures:
        assert future.result(20).samples[0].restarted
    (incident,) = journal(play)
    assert (incident.requests, incident.tokens_saved) == (4, 0)
    assert play.pool.status()["tokens_saved"] == 0
    assert play.pool.status()["tokens_lost"] > 0


def test_who_is_dead_for_good_is_told_at_once_and_closed_by_the_one_hired_in_its_place(told):
    """No next life tells of it: one incident, open while the next one starts."""
    play = told(engines=2)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.script.start_s = 0.3
    held = strike(play, "rollout-0", for_good=True)
    play.until(lambda: default_journal().read())
    assert [i.outcome for i in default_journal().read()] == [Outcome.OPEN]
    (incident,) = journal(play)
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    assert (incident.requests, incident.remedy) == (held, "restart_process+hired_anew")
    assert incident.outcome is Outcome.RECOVERED
    assert incident.resume_s < incident.recover_s >= 0.3
    assert "the pool lost its actor: killed; restart_process+hired_anew: recovered" in incident.sentence()
    assert incident.sentence().endswith(
        f" in {incident.recover_s:.1f} s; the first of {held} requests went on after {incident.resume_s:.1f} s; "
        f"tokens: {incident.tokens_saved} saved, loss unknown"
    )


def test_who_is_not_replaced_is_told_so(told):
    """Its requests went on, the pool is smaller."""
    never = PoolPolicy(progress=False, replace=RestartBudget(max_restarts=0, within_s=60.0))
    play = told(policy=never)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    strike(play, "rollout-0", for_good=True)
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    (incident,) = journal(play)
    assert (incident.outcome, incident.recover_s) == (Outcome.FAILED, None)
    assert incident.resume_s is not None
    assert "the policy allows no replacement" in incident.notes[-1]


@pytest.mark.parametrize("outcome", [Outcome.RECOVERED, Outcome.STATE_LOST])
def test_what_the_next_life_tells_gets_the_pools_books_and_is_counted_once(told, outcome):
    """Why it died is known there, and stays as it is."""
    told_there = Incident(
        kind="host_oom",
        scope="process",
        cause="the kernel ended it",
        actor_id="id of rollout-0",
        pid=7,
        detected_at=1.0,
        tokens_lost=None,
        outcome=outcome,
        notes=("its last words",),
    )
    play = told()
    default_journal().write(told_there)
    member, counted = play.members["rollout-0"], TALLY.incidents.total()
    hello = member.hello

    async def says():
        return replace(await hello(), death=told_there)

    member.hello = says
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    held = strike(play, "rollout-0")
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    play.until(lambda: default_journal().read()[0].requests)
    (incident,) = journal(play)
    assert (incident.id, incident.kind, incident.outcome) == (told_there.id, "host_oom", outcome)
    assert (incident.requests, incident.notes[0]) == (held, "its last words")
    assert incident.tokens_saved > 0
    assert TALLY.incidents.total() == counted


def test_an_actor_that_was_out_of_reach_for_a_while_has_not_died(told):
    """Its requests went on elsewhere; there is no death to tell of."""
    play = told()
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.working("rollout-0")
    connection = play.core.connections["rollout-0"]
    play.on_loop(lambda: connection.over("it took no requests", kind=Kind.ACTOR_UNAVAILABLE))
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    play.until(lambda: play.core.book.slots["rollout-0"].open)
    assert number("losses_total", kind="actor_unavailable") == 1
    play.pool.close()
    assert not default_journal().read()


def test_a_pool_that_is_closed_tells_what_it_knows(told):
    """Nobody has served in the place of the dead one, which comes up no more."""
    play = told()
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    play.script.start_s = 1_000.0
    held = strike(play, "rollout-0")
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    assert not default_journal().read()
    home = default_journal().directory
    play.pool.close()
    (incident,) = Journal(home).read()
    assert (incident.requests, incident.outcome, incident.recover_s) == (held, Outcome.RECOVERED, None)
    assert "the pool was closed before" in incident.notes[-1]


def test_requests_that_nobody_waits_for_any_more_hold_no_story_up(told):
    """They were cut and given up before anybody went on with them."""
    play = told(engines=1)
    for prompt, name in zip(PROMPTS[:4], IDS, strict=False):
        play.pool.submit(prompt, LONG, request_id=name)
    play.script.start_s = 0.3
    held = strike(play, "rollout-0")
    play.until(lambda: play.core.losses.open)
    play.on_loop(lambda: play.core.cancel(IDS[:4]))
    (incident,) = journal(play)
    assert (incident.requests, incident.resume_s) == (held, None)
    assert incident.outcome is Outcome.RECOVERED
