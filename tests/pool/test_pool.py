"""A pool of scripted actors: every prompt answered once and right, whatever is done to the actors."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

import pytest

from rayguard import errors
from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.recovery.budget import RestartBudget
from rayguard.testing.scripted import ScriptedProvider

PROMPTS = [[n, n + 1, 5] for n in range(40)]
LONG = {"max_tokens": 200}
SLOW = {"turn_s": 0.01}


def started(call):
    """Run ``call`` in a thread; return a function that waits for what it gives."""
    found = {}

    def run():
        try:
            found["value"] = call()
        except BaseException as error:
            found["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result():
        thread.join(100)
        assert not thread.is_alive(), "it hangs"
        if "error" in found:
            raise found["error"]
        return found["value"]

    return result


def test_answers_come_in_the_order_of_their_prompts(stage):
    """From both engines."""
    play = stage()
    batch = play.pool.generate(PROMPTS, {"max_tokens": 20})
    play.right(batch, PROMPTS, {"max_tokens": 20})
    assert {sample.engine for sample in batch.samples} == {"rollout-0", "rollout-1"}
    assert batch.samples[0].prompt_token_ids == (0, 1, 5)
    assert batch.samples[0].logprobs == [-0.5] * 20
    assert not batch.missing


def test_n_completions_are_requests_of_their_own_with_their_own_seeds(stage):
    """As vLLM does it."""
    play = stage()
    sampling = {"n": 3, "seed": 7, "max_tokens": 9}
    batch = play.pool.generate(PROMPTS[:4], sampling)
    play.right(batch, PROMPTS[:4], sampling)
    assert [s.index for s in batch[0].samples] == [0, 1, 2]
    assert len({tuple(s.token_ids) for s in batch[0].samples}) == 3


@pytest.mark.parametrize("tell", [True, False], ids=["at once", "by its silence"])
def test_a_dead_actors_requests_go_on_elsewhere_from_their_tokens(stage, tell):
    """Whether the kernel tells or the next call fails: the same answers, nothing generated twice."""
    play = stage(**SLOW)
    result = started(lambda: play.pool.generate(PROMPTS, LONG))
    play.working("rollout-0")
    play.kill("rollout-0", tell=tell)
    batch = result()
    play.right(batch, PROMPTS, LONG)
    cut = [s for s in batch.samples if s.cuts]
    assert cut
    assert all(0 < s.cuts[0] < 200 for s in cut)
    assert play.pool.status()["tokens_saved"] == sum(s.cuts[0] for s in cut)
    assert play.pool.status()["engines"]["rollout-0"]["state"] == "serving", "its next life joined"


def test_the_only_actor_dies_and_its_next_life_goes_on(stage):
    """With nobody else there the requests wait for it."""
    play = stage(engines=1, **SLOW)
    result = started(lambda: play.pool.generate(PROMPTS[:8], LONG))
    play.working("rollout-0")
    play.kill("rollout-0")
    play.right(result(), PROMPTS[:8], LONG)


def test_a_frozen_actor_is_found_by_its_silence_and_its_late_answers_are_not_taken(stage):
    """Stopped, replaced, woken up: every answer once."""
    play = stage(policy=PoolPolicy(progress=False, hang_stopped_s=0.5), **SLOW)
    result = started(lambda: play.pool.generate(PROMPTS, LONG))
    play.working("rollout-1")
    play.on_loop(play.members["rollout-1"].freeze)
    play.right(result(), PROMPTS, LONG)
    assert play.staff.restarted == ["rollout-1"]
    assert play.pool.status()["delivered"] == len(PROMPTS)


def test_a_pool_that_was_paused_itself_blames_nobody(stage):
    """As in a debugger: the pool's loop stands still for longer than any actor may be silent."""
    play = stage(policy=PoolPolicy(progress=False, hang_stopped_s=0.5), **SLOW)
    result = started(lambda: play.pool.generate(PROMPTS[:4], LONG))
    play.working("rollout-0")
    play.on_loop(lambda: threading.Event().wait(4.0))
    play.right(result(), PROMPTS[:4], LONG)
    assert not play.staff.restarted


def test_a_prompt_that_kills_every_actor_is_quarantined_and_no_other(stage):
    """Three deaths, and everybody else is answered."""
    play = stage(engines=3, poison=lambda r: r.prompt[0] == 13, **SLOW)
    with pytest.raises(errors.BatchError, match="3 actors died") as caught:
        play.pool.generate(PROMPTS, {"max_tokens": 30})
    batch = caught.value.batch
    assert [type(g.error) for g in batch.missing] == [errors.QuarantinedError]
    play.right(batch, [p for p in PROMPTS if p[0] != 13], {"max_tokens": 30})


@pytest.mark.parametrize(
    ("prompt", "sampling", "said"),
    [
        ([], None, "empty"),
        ("", None, "empty"),
        (3.5, None, "text or a sequence of token ids"),
        ([1, "two"], None, "token 1"),
        ([-1], None, "token 0"),
        ({"prompt": "a", "prompt_token_ids": [1]}, None, "exactly one"),
        ([1], {"n": 0}, "whole number"),
        ([1], {"n": 2, "seed": "x"}, "seed"),
        ([1], {"seed": 2**70}, "'seed' is 1180591620717411303424: an engine's whole numbers have 64 bits"),
        ([1], {"extra_args": {"deep": [-(2**63) - 1]}}, "'extra_args' is -9223372036854775809"),
        ([1], {"temperature": float("nan")}, "'temperature' is not a number"),
        ([1], {"stop": ["\ud800"]}, "'stop' is no text"),
        ([1], {"extra_args": {(1, 2): 3}}, "plain numbers"),
        ([2**70], None, "token 0"),
        ("\ud800", None, "the prompt is no text"),
        ([1], {"logits_processor": lambda x: x}, "plain numbers"),
        ([1], "greedy", "mapping"),
        ([1], {"nonsense": 1}, "nonsense"),
    ],
)
def test_a_request_that_no_engine_could_answer_is_refused_and_disturbs_no_other(
    stage, prompt, sampling, said
):
    """At the door; the rest of the batch is answered."""
    play = stage()
    with pytest.raises(errors.BatchError) as caught:
        play.pool.generate([[1, 2], prompt, [3]], [None, sampling, None], ids=["a", "bad", "c"])
    batch = caught.value.batch
    assert [g.id for g in batch] == ["a", "c"]
    [missing] = batch.missing
    assert isinstance(missing.error, errors.RequestError)
    assert missing.error.request == "bad"
    assert said in str(missing.error)


def test_one_id_is_one_request_however_often_it_is_asked(stage):
    """At the same time, and after the answer; with another question it is refused."""
    play = stage(**SLOW)
    first = play.pool.submit([1, 2], LONG, request_id="a")
    again = play.pool.submit([1, 2], LONG, request_id="a")
    assert first.result(20).samples == again.result(20).samples
    assert play.pool.generate([[1, 2]], LONG, ids=["a"])[0].samples == first.result().samples
    assert sum(member.served.count("a") for member in play.members.values()) == 1
    refused = play.pool.submit([9, 9], LONG, request_id="a").result(20)
    assert "another prompt" in str(refused.error)
    play.pool.forget(["a"])
    assert play.pool.submit([9, 9], LONG, request_id="a").result(20).error is None


def test_a_deadline_says_where_the_request_was(stage):
    """And the engine is told to give it up."""
    play = stage(turn_s=0.05)
    [missing] = play.pool.generate([[1]], LONG, deadline_s=0.3, partial="shrink").missing
    assert isinstance(missing.error, errors.DeadlineError)
    assert "running, on rollout-" in str(missing.error)
    play.until(lambda: not any(member.tasks for member in play.members.values()))


def test_what_is_missing_is_left_out_or_replaced_as_was_said(stage):
    """Only when it was said."""
    play = stage()
    prompts = [[1], [], [3], []]
    shrunk = play.pool.generate(prompts, partial="shrink")
    assert (len(shrunk), len(shrunk.missing)) == (2, 2)
    replaced = play.pool.generate(prompts, partial="replace", spare=iter([[7], [], [8], [9]]))
    assert sorted(s.prompt_token_ids for s in replaced.samples) == [(1,), (3,), (7,), (8,)]
    assert len(replaced.missing) == 3
    with pytest.raises(errors.ConfigError, match="wait, shrink, replace"):
        play.pool.generate(prompts, partial="ignore")


def test_generations_come_as_they_are_done_and_who_leaves_gives_up_the_rest(stage):
    """Short ones first."""
    play = stage(**SLOW)
    sampling = [{"max_tokens": 4 if n % 2 else 2_000} for n in range(8)]
    reading = play.pool.as_completed(PROMPTS[:8], sampling)
    early = [next(reading) for _ in range(4)]
    assert all(len(generation.samples[0].token_ids) == 4 for generation in early)
    reading.close()
    play.until(lambda: not play.core.book.entries)


def test_tokens_stream_across_a_death(stage):
    """In order, each once."""
    play = stage(**SLOW)
    seen: list[int] = []

    async def read():
        async for piece in play.pool.stream([4, 4], LONG, request_id="s"):
            seen.extend(piece.tokens)
            if len(seen) > 40 and not play.pool.status()["tokens_saved"]:
                entry = play.core.book.entries.get("s")
                if entry is not None and entry.engine is not None:
                    play.kill(entry.engine)

    asyncio.run(asyncio.wait_for(read(), 20))
    batch = play.pool.generate([[4, 4]], LONG, ids=["s"])
    assert seen == batch.samples[0].token_ids
    assert batch.samples[0].cuts


def test_an_event_loop_is_not_blocked(stage):
    """Async callers get the same."""
    play = stage(**SLOW)

    async def both():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        batch = await play.pool.generate_async(PROMPTS[:4], LONG)
        done = [g.id async for g in play.pool.as_completed_async(PROMPTS[:4], {"max_tokens": 4})]
        ticking.cancel()
        return batch, done, ticks

    batch, done, ticks = asyncio.run(both())
    play.right(batch, PROMPTS[:4], LONG)
    assert len(done) == 4
    assert ticks > 20


def test_a_full_queue_holds_the_caller_back(stage):
    """Never more in the queue than was allowed."""
    play = stage(engines=1, capacity=2, policy=PoolPolicy(progress=False, queue_limit=3), **SLOW)
    most = 0

    def watch(_done):
        nonlocal most
        most = max(most, play.core.book.queued)

    futures = []
    for prompt in PROMPTS[:12]:
        futures.append(play.pool.submit(prompt, {"max_tokens": 8}))
        futures[-1].add_done_callback(watch)
    assert all(future.result(20).error is None for future in futures)
    assert most <= 3


def test_a_slow_engine_gets_less(stage):
    """Compared by the token, whatever the load."""
    play = stage(engines=3, capacity=8, turn_s=0.005, slow={"rollout-2": 8.0})
    prompts = [[n] for n in range(300)]
    batch = play.pool.generate(prompts, {"max_tokens": 40})
    play.right(batch, prompts, {"max_tokens": 40})
    by_engine = [sum(s.engine == f"rollout-{n}" for s in batch.samples) for n in range(3)]
    assert by_engine[2] < min(by_engine[:2]) / 2


def test_the_pool_grows_and_shrinks_while_it_works(stage):
    """Those that go finish what they have."""
    play = stage(engines=1, capacity=4, **SLOW)
    result = started(lambda: play.pool.generate(PROMPTS, {"max_tokens": 60}))
    play.working("rollout-0")
    play.pool.resize(3)
    play.until(lambda: len(play.core.book.slots) == 3 and play.core.book.slots["rollout-2"].running)
    play.pool.resize(1)
    batch = result()
    play.right(batch, PROMPTS, {"max_tokens": 60})
    assert not any(sample.cuts for sample in batch.samples), "nothing was interrupted"
    assert len(play.pool.handles) == 1
    assert len(play.staff.dismissed) == 2


def test_a_drained_actor_is_replaced_first(stage):
    """Its node will be taken away."""
    play = stage(**SLOW)
    result = started(lambda: play.pool.generate(PROMPTS, LONG))
    play.working("rollout-0")
    play.pool.drain("rollout-0")
    assert sorted(play.pool.handles) == ["rollout-1", "rollout-2"]
    play.right(result(), PROMPTS, LONG)
    with pytest.raises(errors.ConfigError, match="no engine 'rollout-0'"):
        play.pool.drain("rollout-0")


def test_when_no_actor_is_left_everybody_is_told_why(stage):
    """At once, not at a time-out."""
    none = RestartBudget(max_restarts=0, within_s=1.0)
    play = stage(engines=1, policy=PoolPolicy(progress=False, replace=none), **SLOW)
    result = started(lambda: play.pool.generate(PROMPTS[:3], LONG))
    play.working("rollout-0")
    play.on_loop(lambda: play.members["rollout-0"].die(for_good=True))
    with pytest.raises(errors.BatchError, match="no rollout actor is left"):
        result()
    with pytest.raises(errors.BatchError, match="ActorDiedError"):
        play.pool.generate([[1]])
    with pytest.raises(errors.GaveUpError):
        play.pool.wait_ready(timeout_s=1)


def test_closing_tells_who_waits(stage):
    """And a closed pool says so."""
    play = stage(**SLOW)
    result = started(lambda: play.pool.generate(PROMPTS[:3], LONG))
    play.working("rollout-0")
    play.pool.close()
    with pytest.raises((errors.BatchError, asyncio.CancelledError)):
        result()
    with pytest.raises(errors.ConfigError, match="closed"):
        play.pool.generate([[1]])


def test_mistakes_of_whole_calls_are_named():
    """Before anything is started."""
    for wrong in (0, True, "2"):
        with pytest.raises(errors.ConfigError, match="engines"):
            RolloutPool.of(ScriptedProvider(), engines=wrong)
    with pytest.raises(errors.ConfigError, match="queue_limit"):
        PoolPolicy(queue_limit=0)
    with RolloutPool.of(ScriptedProvider()) as pool:
        for prompts, ids in (("one text", None), ([1, 2, 3], None), ([[1]], ["a", "b"]), ([[1]], [""])):
            with pytest.raises(errors.RequestError):
                pool.generate(prompts, ids=ids)


def test_any_mixture_of_faults_loses_nothing(stage):
    """Seeded random kills, freezes, drains and growth under load; an oracle knows every answer."""
    rng = random.Random(5)
    # Nobody is guilty here, so nobody may be suspected.
    policy = PoolPolicy(progress=False, hang_stopped_s=0.5, quarantine_after=100)
    play = stage(engines=3, capacity=16, policy=policy, turn_s=0.005)
    prompts = [[rng.randrange(1000), n] for n in range(300)]
    sampling = [{"max_tokens": rng.randrange(1, 120), "n": rng.choice([1, 1, 2])} for _ in prompts]
    result = started(lambda: play.pool.generate(prompts, sampling))

    def drained(name):
        with contextlib.suppress(errors.ConfigError):  # it was drained already
            play.pool.drain(name)

    fired = 0
    for _ in range(14):
        threading.Event().wait(0.1)
        names = [name for name, connection in list(play.core.connections.items()) if connection.session]
        if not names:
            continue
        name, what = rng.choice(names), rng.choice(["kill", "kill", "quiet", "freeze", "drain"])
        if what == "freeze":
            play.on_loop(play.members[name].freeze)
        elif what == "drain" and len(names) > 1:
            threading.Thread(target=drained, args=(name,), daemon=True).start()
        else:
            play.kill(name, tell=what == "kill")
        fired += 1
    batch = result()
    assert fired > 8
    assert len(batch) == len(prompts)
    for generation, prompt, options in zip(batch, prompts, sampling, strict=True):
        play.right([generation], [prompt], options)
    delivered = [sample.id for sample in batch.samples]
    assert len(delivered) == len(set(delivered)) == sum(options["n"] for options in sampling)
