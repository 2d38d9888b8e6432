"""Notes taken inside a pool, on scripted engines."""

from __future__ import annotations

import threading

import pytest

from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.testing.scripted import Script, ScriptedProvider
from tests.benchmarks.trials.batch import Batch
from tests.benchmarks.trials.observer import Notes, Observer, Sent
from tests.benchmarks.trials.oracle import Question
from tests.benchmarks.trials.plan import APIS

PROMPTS = [[n, 3] for n in range(12)]
IDS = [f"r{n}" for n in range(12)]


@pytest.fixture
def staff():
    """Two engines that take their time."""
    return ScriptedProvider(Script(turn_s=0.005, weights="0-w0"))


@pytest.fixture
def pool(staff):
    """A pool of them."""
    with RolloutPool.of(staff, engines=2, policy=PoolPolicy(progress=False)) as made:
        made.wait_ready(timeout_s=10)
        yield made


def sent(name, at, engine="rollout-0"):
    return Sent(at=at, id=name, engine=engine, version="0-w0", known=0)


def test_every_request_is_seen_sent_and_delivered_once(pool):
    """With the weights that were current, and with news of its tokens on the way."""
    observer = Observer(pool)
    notes = observer.fresh()
    pool.generate(PROMPTS, {"max_tokens": 200}, ids=IDS)
    assert sorted(one.id for one in notes.sent) == sorted(IDS)
    assert sorted(name for _, name in notes.delivered) == sorted(IDS)
    assert {one.version for one in notes.sent} == {"0-w0"}
    assert {name for _, name, tokens in notes.news if tokens == 200} == set(IDS)


def test_the_loss_of_an_engine_is_noted(pool, staff):
    """And that others are sent its requests, with what is there of them."""
    observer = Observer(pool)
    notes = observer.fresh()
    asking = threading.Thread(target=lambda: pool.generate(PROMPTS, {"max_tokens": 400}, ids=IDS))
    asking.start()
    while not any(tokens > 8 for _, _, tokens in list(notes.news)):
        threading.Event().wait(0.005)
    pool._background.call(lambda: staff.kill("rollout-0"))
    asking.join(60)
    assert [engine for _, engine, _ in notes.left] == ["rollout-0"]
    at = notes.left[0][0]
    again = [one for one in notes.sent if one.at >= at]
    assert {one.id for one in again} == notes.running(at, "rollout-0")
    assert any(one.known for one in again)


def test_a_push_is_noted_as_it_begins(pool, staff):
    """For each engine."""
    notes = Observer(pool).fresh()
    staff.script.weights = "1-w1"
    assert pool.update_weights() == "1-w1"
    assert {engine for _, engine in notes.pushes} == {"rollout-0", "rollout-1"}


def test_what_runs_is_what_was_sent_there_last_and_not_answered():
    """At a moment."""
    notes = Notes(
        sent=[sent("a", 1.0), sent("b", 1.0), sent("c", 3.0), sent("b", 4.0, "rollout-1")],
        delivered=[(2.0, "a")],
    )
    assert notes.running(1.5, "rollout-0") == {"a", "b"}
    assert notes.running(2.0, "rollout-0") == {"b"}
    assert notes.running(4.0, "rollout-0") == {"c"}
    assert notes.running(4.0, "rollout-1") == {"b"}
    assert notes.answered(2.0) == {"a"}


@pytest.mark.parametrize("api", APIS)
def test_a_batch_is_asked_in_every_way(pool, api):
    """And keeps all that is handed out."""
    asked = {
        name: Question(name=name, kind="greedy", prompt=prompt, sampling={"max_tokens": 5})
        for name, prompt in zip(IDS, PROMPTS, strict=True)
    }
    asked["bad"] = Question(name="bad", kind="greedy", prompt=[], sampling={})
    batch = Batch(pool, api, asked)
    batch.start()
    batch.join(60)
    assert sorted(generation.id for generation in batch.got) == sorted(asked)
    assert [generation.id for generation in batch.got if generation.error] == ["bad"]
    assert batch.errors == []
