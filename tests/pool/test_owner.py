"""The death of a pool's owner: its next life goes on with what was accepted, and knows what was answered."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from dataclasses import replace

import pytest

from rayguard import errors
from rayguard.actors.token_logs import LeftBehind
from rayguard.engine.generated import Generated
from rayguard.pool.actors.messages import LOGGED_S, PROGRESS_S, Hello
from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.pool.values.request import fan_out
from rayguard.testing.scripted import Script, ScriptedProvider, answer
from tests.pool.book_invariants import check

PROMPTS = [[n, n + 1, 5] for n in range(24)]
IDS = [f"step7-{n}" for n in range(24)]
LONG = {"max_tokens": 120}


class Owner:
    """Owns a pool of scripted actors in one life after the other."""

    def __init__(self, path):
        self.path = path
        self.pool = None

    def live(self, *, lag=0, engines=2, **script):
        self.staff = ScriptedProvider(Script(**{"turn_s": 0.01, **script}))
        policy = PoolPolicy(progress=False, max_weight_lag=lag, ledger=self.path)
        self.pool = RolloutPool.of(self.staff, engines=engines, policy=policy)
        return self.pool

    def known(self):
        """Tokens that the pool has heard of, by request."""
        entries = self.pool._core.book.entries
        return self.pool._background.call(lambda: {name: len(e.generated) for name, e in entries.items()})

    def die(self):
        """As by SIGKILL: nothing is said, nothing is written. Return what was known then."""
        ledger = self.pool._ledger
        entries = self.pool._core.book.entries

        def last():  # one moment of the loop: what is known, and what the file has
            ledger._buffer.clear()
            ledger._pieces.clear()
            ledger.close()
            return {name: len(e.generated) for name, e in entries.items()}

        known = self.pool._background.call(last)
        self.pool._background.stop()
        self.pool._closed = True
        return known

    def ask(self, prompts=PROMPTS, sampling=LONG, ids=IDS):
        """Ask as a caller that will never hear of it."""
        for prompt, name in zip(prompts, ids, strict=True):
            self.pool.submit(prompt, sampling, request_id=name)

    def until(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            threading.Event().wait(0.005)

    def served(self):
        return [name for member in self.staff.members.values() for name in member.served]


@pytest.fixture
def owner(tmp_path):
    made = Owner(tmp_path / "owner" / "pool.ledger")
    yield made
    made.pool.close()
    check(made.pool._core.book)


def right(batch, sampling=LONG, prompts=PROMPTS, weights=""):
    for generation, prompt in zip(batch, prompts, strict=True):
        wanted = [answer(r, weights) for r in fan_out(generation.id, prompt, sampling)]
        assert [s.token_ids for s in generation.samples] == wanted


def test_what_was_accepted_goes_on_from_its_tokens_in_the_next_life(owner):
    """Life after life; nothing that was heard of is generated again."""
    owner.live()
    owner.ask()
    owner.until(lambda: sum(owner.known().values()) > 200)
    first = owner.die()
    owner.live()
    assert all(count >= first[name] for name, count in owner.known().items())
    owner.until(lambda: sum(owner.known().values()) > sum(first.values()) + 200)
    second = owner.die()
    batch = owner.live().generate(PROMPTS, LONG, ids=IDS)
    right(batch)
    for sample in batch.samples:
        cuts = {made[sample.id] for made in (first, second) if made[sample.id]}
        assert set(sample.cuts) == {max(cuts)}, "the engine that delivered it began there"
        assert not sample.restarted
    assert owner.pool.status()["tokens_saved"] == sum(second.values())


def test_what_engines_have_is_in_the_ledger_before_they_tell_of_it(owner):
    """However it was asked for: the owner's next life goes on from what the actors' logs have."""
    pool = owner.live(turn_s=5.0)

    def dispatched():
        pool._core.tickets.ask(next(iter(fan_out("asked", [1, 2], LONG))), None, keep=True)
        given = pool._core.book.dispatch()
        pool._core.tickets.dispatched(given)
        return sum(map(len, given.values()))

    owner.until(
        lambda: owner.pool._background.call(lambda: any(s.open for s in pool._core.book.slots.values()))
    )
    assert owner.pool._background.call(dispatched) == 1
    owner.die()
    owner.live()
    assert owner.known() == {"asked": 0}


def test_what_was_answered_is_known_in_the_next_life(owner):
    """A caller that asks again gets it; nothing is generated, however often the owner dies."""
    sampling = {"max_tokens": 12, "n": 2}
    before = owner.live().generate(PROMPTS, sampling, ids=IDS)
    for _ in range(2):
        owner.die()
        again = owner.live().generate(PROMPTS, sampling, ids=IDS)
        assert again.samples == before.samples
        assert not owner.served()
    refused = owner.pool.submit([9, 9], sampling, request_id=IDS[0]).result(20)
    assert "another prompt" in str(refused.error)


def test_a_repeated_call_finds_each_request_wherever_it_is(owner):
    """Answered, begun, waiting, and never heard of."""
    pool = owner.live(engines=1, capacity=6)
    pool.generate(PROMPTS[:4], LONG, ids=IDS[:4])
    owner.ask(PROMPTS[4:20], LONG, IDS[4:20])
    owner.until(lambda: sum(owner.known().values()) > 50)
    owner.die()
    batch = owner.live(engines=2).generate(PROMPTS, LONG, ids=IDS)
    right(batch)
    assert sorted(owner.served()) == sorted(IDS[4:])


def test_what_nobody_asks_for_again_is_answered_all_the_same_in_its_order(owner):
    """It was accepted."""
    owner.live(engines=1, capacity=1)
    owner.ask()
    owner.until(lambda: any(owner.known().values()))
    owner.die()
    owner.live(engines=1, capacity=1, turn_s=0.0)
    owner.until(lambda: not owner.known())
    assert owner.served() == IDS
    right(owner.pool.generate(PROMPTS, LONG, ids=IDS))
    assert owner.served() == IDS


def test_tokens_of_other_weights_are_not_mixed_in(owner):
    """It begins afresh and says so; with a lag allowed it goes on, and tells what made which."""
    owner.live(weights="1")
    owner.ask()
    owner.until(lambda: min(owner.known().values()) > 8)
    owner.die()
    batch = owner.live(weights="2").generate(PROMPTS, LONG, ids=IDS)
    right(batch, weights="2")
    for sample in batch.samples:
        assert sample.weight_version == "2"
        assert sample.cuts == ()
        assert "weights '1' made" in sample.restarted[0]


def test_with_a_lag_allowed_tokens_of_earlier_weights_count(owner):
    """Asynchronous training: the sample tells which weights made which."""
    owner.live(weights="1", lag=1)
    owner.ask()
    owner.until(lambda: min(owner.known().values()) > 8)
    known = owner.die()
    for sample in owner.live(weights="2", lag=1).generate(PROMPTS, LONG, ids=IDS).samples:
        assert sample.weight_versions == (("1", 0), ("2", known[sample.id]))
        assert not sample.restarted


def test_only_what_can_be_asked_for_again_is_kept(owner):
    """A request without an id of the caller's is asked anew under another one."""
    pool = owner.live()
    for prompt in PROMPTS:
        pool.submit(prompt, LONG)
    owner.until(lambda: any(owner.known().values()))
    owner.die()
    owner.live()
    assert not owner.known()


def test_what_was_given_up_or_forgotten_is_not_taken_up(owner):
    """Refused, late, abandoned, forgotten; and a pool that is closed owes nothing."""
    pool = owner.live(engines=1)
    pool.generate([[1]], {"nonsense": 1}, ids=["refused"], partial="shrink")
    pool.generate([[1]], LONG, ids=["late"], deadline_s=0.1, partial="shrink")
    reading = pool.as_completed([[1], [2]], [{"max_tokens": 1}, LONG], ids=["read", "abandoned"])
    next(reading)
    reading.close()
    owner.until(lambda: not owner.known())
    pool.generate([[1], [2]], {"max_tokens": 1}, ids=["forgotten", "kept"])
    pool.forget(["forgotten"])
    owner.ask()
    pool.close()
    owner.live()
    assert not owner.known()
    assert sorted(owner.pool._core.tickets.answered) == ["kept", "read"]


def test_a_repeated_call_brings_its_deadline(owner):
    """The first one's clock died with its owner."""
    owner.live(engines=1, turn_s=0.05)
    owner.ask(PROMPTS[:2], LONG, IDS[:2])
    owner.until(lambda: any(owner.known().values()))
    owner.die()
    owner.live(engines=1, turn_s=0.05)
    batch = owner.pool.generate(PROMPTS[:2], LONG, ids=IDS[:2], deadline_s=0.2, partial="shrink")
    assert [type(g.error) for g in batch.missing] == [errors.DeadlineError] * 2


class LoggedActors(ScriptedProvider):
    """Actors on the pool's node, whose tokens can be read there when they are dead."""

    node_id = "here"

    def __init__(self, script, logs):
        super().__init__(script)
        self.logs = logs  # what is in them, by path
        self.questions = {}
        self.paces = []

    def hire(self, name):
        member = super().hire(name)
        hello, poll = member.hello, member.poll

        async def met():
            return replace(await hello(), node_id=self.node_id, token_log=f"/logs/{name}")

        async def told(session, taken, wait_s, pace_s):
            self.paces.append(pace_s)
            return await poll(session, taken, wait_s, pace_s)

        member.hello, member.poll = met, told
        return member

    def left_behind(self, hello):
        found = self.logs.get(hello.token_log, {}) if hello.node_id == self.node_id else {}
        return LeftBehind(found, {name: self.questions.get(name, "another one") for name in found})


def begin(owner, logs, questions=(), **script):
    owner.staff = LoggedActors(Script(**{"turn_s": 0.01, **script}), logs)
    owner.staff.questions = dict(questions)
    policy = PoolPolicy(progress=False, ledger=owner.path)
    owner.pool = RolloutPool.of(owner.staff, engines=2, policy=policy)
    return owner.pool


def test_the_next_life_goes_on_from_what_actors_had_logged_and_the_owner_was_not_told(owner):
    """Whatever else lies in a log; and what was read is known to the life after that too."""
    logs = {}
    begin(owner, logs, turn_s=0.1)
    owner.ask()
    owner.until(lambda: owner.known() and all(owner.known().values()))
    known = owner.die()
    ids = [fan_out(name, prompt, LONG)[0] for name, prompt in zip(IDS, PROMPTS, strict=True)]
    more = {request.id: known[request.id] + 7 for request in ids}
    made = {request.id: array("i", answer(request, "")[: more[request.id]]) for request in ids}
    halves = list(made)[::2], list(made)[1::2]
    for number, names in enumerate(halves):
        columns = ({"tokens": made[name], "width": 1, "ids": made[name]} for name in names)
        full = ({**one, "logprobs": array("f", [-0.5] * len(one["ids"]))} for one in columns)
        ranked = [Generated(**one, ranks=array("i", [1] * len(one["ids"]))) for one in full]
        logs[f"/logs/rollout-{number}"] = dict(zip(names, ranked, strict=True)) | {"strange": Generated()}
    assert set(logs) == {f"/logs/{name}" for name in owner.staff.members}
    begin(owner, logs, turn_s=5.0)
    assert owner.known() == known, "these are of an earlier request with the same id"
    owner.pool.wait_ready(timeout_s=20)
    owner.die()
    begin(owner, logs, {request.id: request.fingerprint for request in ids}, turn_s=5.0)
    assert owner.known() == more
    owner.die()
    logs.clear()
    batch = begin(owner, logs).generate(PROMPTS, LONG, ids=IDS)
    right(batch)
    for sample in batch.samples:
        assert max(sample.cuts) >= more[sample.id]


def test_tokens_are_told_less_often_where_a_log_has_them_and_nobody_reads_them(owner):
    """A reader of a stream gets them as they come."""
    pool = begin(owner, {}, turn_s=0.05)
    pool.generate(PROMPTS, LONG)
    assert set(owner.staff.paces) == {LOGGED_S}
    owner.staff.paces.clear()

    async def read():
        return [len(more) async for more in pool.stream([1, 2, 3], LONG)]

    assert sum(asyncio.run(read())) == LONG["max_tokens"]
    assert PROGRESS_S in owner.staff.paces
    far = owner.pool._core.pace_s(Hello(session="far", node_id="there", token_log="/logs/rollout-0"))
    assert far == PROGRESS_S, "nothing else has them when that node is lost"
