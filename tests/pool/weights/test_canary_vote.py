"""Engines of a pool compared after a push: who is contradicted by the others serves nobody until it is cleared."""

from __future__ import annotations

import asyncio

import pytest

from rayguard import RestartBudget
from rayguard.engine.weights.canaries import REPLACED, UNDECIDED
from rayguard.engine.weights.canary import Canary
from rayguard.engine.weights.current import Proof
from rayguard.pool.values.policy import PoolPolicy
from rayguard.pool.weights import canary_vote
from rayguard.pool.weights.canary_vote import doubts
from rayguard.recovery.tally import TALLY
from tests.pool.test_pool import PROMPTS, started
from tests.pool.weights.test_push import ASYNC, versions

SOON_S = 30.0
PATIENT = PoolPolicy(progress=False, hang_stopped_s=60, hang_busy_s=60)


def says(token, at=-1.0):
    return Canary((((token, at), (token + 1, at - 3.0)),))


GOOD, OTHER = says(5), says(8)


def proof(canary, digest="d", tolerance=0.5):
    return Proof("v2", digest, canary, tolerance)


def wrong(name, *, lives=1, loads=1):
    """Answer otherwise than all others with v2: in so many lives and after so many loads."""

    def canary(who, life, weights, pushes):
        return OTHER if (who, weights) == (name, "v2") and life <= lives and pushes <= loads else GOOD

    return canary


def told():
    return sum(n for (_, _, remedy, *_), n in TALLY.incidents.items() if remedy in {REPLACED, UNDECIDED})


@pytest.fixture(autouse=True)
def journal(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))


def states(play):
    return {name: engine["state"] for name, engine in play.pool.status()["engines"].items()}


def test_only_answers_to_the_same_bytes_are_compared():
    """And where engines tolerate differently, the widest tolerance counts: hardware may differ."""
    assert doubts({"a": proof(GOOD), "b": proof(GOOD), "c": proof(OTHER)}).keys() == {"c"}
    assert doubts({"a": proof(GOOD), "b": proof(GOOD), "c": proof(OTHER, "e")}) == {}
    assert doubts({"a": proof(GOOD), "b": proof(None), "c": proof(None)}) == {}
    one, two = proof(GOOD), proof(says(5, at=-1.9))
    assert doubts({"a": one, "b": two}).keys() == {"a", "b"}
    assert doubts({"a": one, "b": two, "c": proof(None, tolerance=1.0)}) == {}


def test_engines_that_agree_serve_at_once(stage):
    """Nobody is loaded twice, nothing is told."""
    before = told()
    play = stage(engines=3, weights="v1", canary=lambda *_: GOOD)
    play.script.weights = "v2"
    assert play.pool.update_weights() == "v2"
    assert set(states(play).values()) == {"serving"}
    assert [member.pushes for member in play.members.values()] == [1, 1, 1]
    assert told() == before


def test_the_outvoted_engine_serves_nobody_until_it_is_loaded_again(stage):
    """Its receipts were right, its answers were not; the others serve meanwhile."""
    play = stage(engines=3, weights="v1", canary=wrong("rollout-1"))
    play.script.weights = "v2"
    bad = play.members["rollout-1"]
    play.on_loop(bad.proving.clear)  # late in the first round: it is asked before it is cleared
    update = started(play.pool.update_weights)
    play.until(lambda: all(member.weights == "v2" for member in play.members.values()))
    play.on_loop(bad.proving.set)
    assert update() == "v2"
    play.pool.wait_ready(timeout_s=SOON_S)
    assert [d.answer for d in bad.doubts] == [GOOD]
    assert [member.pushes for member in play.members.values()] == [1, 2, 1]
    batch = play.pool.generate(PROMPTS)
    assert versions(batch) == {"v2"}
    assert play.staff.dismissed == play.staff.restarted == []


def test_a_doubted_engine_is_fenced_while_others_serve(stage):
    """Also one that stands still in its second load."""
    play = stage(engines=3, weights="v1", canary=wrong("rollout-1"), policy=PATIENT)
    bad = play.members["rollout-1"]
    load, standing = bad.update_weights, []

    async def stands_still(session, doubt=None):
        if doubt is not None:
            standing.append(doubt)
            bad.freeze()
        return await load(session, doubt)

    bad.update_weights, play.script.weights = stands_still, "v2"
    assert play.pool.update_weights() == "v2"
    play.until(lambda: standing)
    assert states(play) == {"rollout-0": "serving", "rollout-1": "fenced", "rollout-2": "serving"}
    batch = play.pool.generate(PROMPTS)
    assert {sample.engine for sample in batch.samples} == {"rollout-0", "rollout-2"}
    play.on_loop(bad.thaw)
    assert play.pool.wait_ready(timeout_s=SOON_S) == 3


def test_one_that_insists_is_replaced_and_no_answer_of_it_is_seen(stage):
    """By a new actor, within the budget for replacements; an incident tells."""
    before = told()
    play = stage(engines=3, weights="v1", canary=wrong("rollout-1", lives=9, loads=9))
    play.script.weights = "v2"
    assert play.pool.update_weights() == "v2"
    play.until(lambda: "rollout-3" in play.members)
    play.pool.wait_ready(timeout_s=SOON_S)
    assert set(states(play)) == {"rollout-0", "rollout-2", "rollout-3"}
    assert "rollout-1" not in {sample.engine for sample in play.pool.generate(PROMPTS).samples}
    assert len(play.members["rollout-1"].doubts) == 1, "once more, and no more"
    assert told() == before + 1


def test_replacements_end_with_their_budget(stage):
    """A place whose engines are contradicted whoever fills it is given up: never an endless loop."""

    def canary(who, _life, _weights, _pushes):
        return GOOD if who in {"rollout-0", "rollout-1"} else OTHER

    policy = PoolPolicy(progress=False, replace=RestartBudget(max_restarts=1, within_s=3600.0))
    play = stage(engines=3, weights="v1", canary=canary, policy=policy)
    for version, gone in (("v2", "rollout-2"), ("v3", "rollout-3")):
        play.script.weights = version
        assert play.pool.update_weights() == version
        play.until(lambda gone=gone: gone in play.staff.dismissed)
        play.until(lambda: not play.core.fleet.replacing)
        play.pool.wait_ready(timeout_s=SOON_S)
    assert set(states(play)) == {"rollout-0", "rollout-1"}
    play.right(play.pool.generate(PROMPTS), PROMPTS, weights="v3")


def test_one_against_one_is_loaded_again_on_both_sides(stage):
    """Nobody is right until both have said it anew; the damaged one agrees then."""
    before = told()
    play = stage(engines=2, weights="v1", canary=wrong("rollout-0"))
    play.script.weights = "v2"
    assert play.pool.update_weights() == "v2"
    batch = play.pool.generate(PROMPTS)
    assert versions(batch) == {"v2"}
    assert play.pool.wait_ready(timeout_s=SOON_S) == 2
    assert [[d.answer for d in member.doubts] for member in play.members.values()] == [[None], [None]]
    assert told() == before


def test_one_against_one_for_ever_is_told_once_and_both_serve(stage):
    """As they would without a comparison; the next version does not begin it again."""
    before = told()
    play = stage(engines=2, weights="v1", canary=lambda who, *_: GOOD if who == "rollout-0" else OTHER)
    for version in ("v2", "v3"):
        play.script.weights = version
        assert play.pool.update_weights() == version
        assert play.pool.wait_ready(timeout_s=SOON_S) == 2
        assert versions(play.pool.generate(PROMPTS)) == {version}
    assert told() == before + 1
    assert [len(member.doubts) for member in play.members.values()] == [1, 1]
    assert play.staff.dismissed == play.staff.restarted == []


def test_who_is_late_has_no_vote_and_serves_by_its_own_proof(stage, monkeypatch):
    """As without a comparison; what the others say of each other counts all the same."""
    monkeypatch.setattr(canary_vote, "COMPARE_S", 0.3)
    play = stage(engines=4, weights="v1", canary=wrong("rollout-1"))
    play.on_loop(play.members["rollout-3"].proving.clear)
    play.script.weights = "v2"
    assert play.pool.update_weights() == "v2"
    assert play.pool.wait_ready(timeout_s=SOON_S) == 4
    assert [len(member.doubts) for member in play.members.values()] == [0, 1, 0, 0]


def test_who_dies_as_it_is_asked_or_doubted_comes_back_with_the_new_weights(stage):
    """No vote of the dead, and no waiting for one."""
    play = stage(engines=3, weights="v1", canary=wrong("rollout-1"))
    silent, bad = play.members["rollout-2"], play.members["rollout-1"]
    load = bad.update_weights

    async def dies(session, doubt=None):
        if doubt is not None:
            play.staff.kill("rollout-1")
        return await load(session, doubt)

    bad.update_weights = dies
    play.on_loop(silent.proving.clear)
    play.script.weights = "v2"
    update = started(play.pool.update_weights)
    play.until(lambda: all(member.weights == "v2" for member in play.members.values()))
    play.kill("rollout-2")
    play.on_loop(silent.proving.set)
    assert update() == "v2"
    assert play.pool.wait_ready(timeout_s=SOON_S) == 3
    assert versions(play.pool.generate(PROMPTS)) == {"v2"}
    assert play.staff.dismissed == []


def test_with_a_lag_new_requests_wait_for_the_comparison(stage):
    """No engine is given any at the new version before it is cleared."""
    play = stage(engines=3, weights="v1", canary=wrong("rollout-1"), policy=ASYNC)
    members = play.members.values()
    for member in members:
        play.on_loop(member.proving.clear)
    play.script.weights = "v2"
    update = started(play.pool.update_weights)
    play.until(lambda: all(play.core.versions.of(member.name) == "v2" for member in members))
    assert set(states(play).values()) == {"fenced"}
    result = started(lambda: play.pool.generate(PROMPTS))
    for member in members:
        play.on_loop(member.proving.set)
    assert update() == "v2"
    play.right(result(), PROMPTS, weights="v2")
    assert play.pool.wait_ready(timeout_s=SOON_S) == 3


def test_with_a_lag_nobody_waits_for_the_slowest_push(stage, monkeypatch):
    """Who took the version serves by its own proof where the comparison is late; then it is compared."""
    monkeypatch.setattr(canary_vote, "COMPARE_S", 0.3)
    play = stage(engines=3, weights="v1", canary=wrong("rollout-1"), policy=ASYNC)
    slow = play.members["rollout-2"]
    load, go_on = slow.update_weights, play.on_loop(asyncio.Event)

    async def loads_long(session, doubt=None):
        await go_on.wait()
        return await load(session, doubt)

    slow.update_weights, play.script.weights = loads_long, "v2"
    update = started(play.pool.update_weights)
    play.until(lambda: play.core.versions.of("rollout-0") == "v2" and play.core.book.slots["rollout-0"].open)
    assert "v2" in versions(play.pool.generate(PROMPTS))
    play.on_loop(go_on.set)
    assert update() == "v2"
    assert play.pool.wait_ready(timeout_s=SOON_S) == 3
    assert [len(member.doubts) for member in play.members.values()] == [0, 1, 0]


def test_an_engine_that_missed_the_push_is_compared_when_it_has_it(stage):
    """Late weights are no better proved than early ones."""
    play = stage(engines=3, weights="v1", canary=wrong("rollout-1"), policy=PATIENT)
    late = play.members["rollout-1"]
    play.on_loop(late.freeze)
    play.script.weights = "v2"
    assert play.pool.update_weights(deadline_s=0.5) == "v2"
    play.on_loop(late.thaw)
    assert play.pool.wait_ready(timeout_s=SOON_S) == 3
    assert [d.answer for d in late.doubts] == [GOOD]
