"""Tokens in flight: read off a vLLM frontend, given to another one, as if one engine had made them all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from rayguard.engine.generated import Generated
from rayguard.engine.vllm import output_state
from rayguard.engine.vllm.inflight import UNSAVED_TOKENS, InFlight, name_of
from rayguard.testing import tiny_qwen
from tests.engine.real import ENVIRONMENT, PROMPTS, Owner, collect, told

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


class Kept:
    """Keeps everything, and stays what it was when it is told to."""

    def __init__(self):
        self.requests: dict[str, Generated] = {}
        self.fingerprints: dict[str, str] = {}
        self.ended: list[str] = []

    def begin(self, request_id, fingerprint):
        self.requests[request_id] = Generated()
        self.fingerprints[request_id] = fingerprint

    def append(self, entries):
        for request_id, more in entries:
            if request_id in self.requests:
                self.requests[request_id] = self.requests[request_id].plus(more)

    def end(self, request_ids):
        self.ended.extend(request_ids)

    def behind(self, tokens):
        self.tokens_behind = tokens


def named(own, given):
    return name_of(SimpleNamespace(request_id=own, external_req_id=given))


def test_a_request_is_known_by_the_callers_id():
    """VLLM's own ids are random; the index of one of several completions is kept."""
    assert named("step1/p2-0a1b2c3d", "step1/p2") == "step1/p2"
    assert named("3_step1/p2-0a1b2c3d", "step1/p2") == "3_step1/p2"
    assert named("1_a-0a1b2c3d", "1_a") == "1_a"
    assert named("17", None) == "17"


def test_a_keeper_that_fails_disturbs_nobody():
    """It is counted, the request goes on."""

    class Broken(Kept):
        def begin(self, request_id, fingerprint):
            raise OSError("no space left on device")

    inflight = InFlight(SimpleNamespace(request_states={}))
    inflight.keep(Broken())
    request = SimpleNamespace(
        request_id="a-00000000",
        external_req_id="a",
        prompt_token_ids=[1],
        sampling_params=None,
        lora_request=None,
    )
    inflight.began(request)
    inflight.came(9, 9)
    inflight.save_if_due({"a-00000000": request})


def in_flight(inflight, states, name):
    """A request that the frontend waits for, as vLLM keeps it."""
    request = SimpleNamespace(
        request_id=f"{name}-00000000",
        external_req_id=name,
        prompt_token_ids=[1],
        sampling_params=SimpleNamespace(logprobs=None),
        lora_request=None,
    )
    tokens: list[int] = []
    states[request.request_id] = SimpleNamespace(
        detokenizer=SimpleNamespace(output_token_ids=tokens, num_output_tokens=tokens.__len__),
        logprobs_processor=SimpleNamespace(logprobs=None),
        weight_version_starts=[],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rayguard.engine.vllm.inflight.fingerprint_of", lambda request: "asked")
        inflight.began(request)
    return request, tokens


def test_nothing_is_kept_behind_a_hole():
    """A keeper that could not take tokens forgets their request: it would go on from tokens it never had."""

    class Full(Kept):
        def append(self, entries):
            if any(5 in more.tokens for _, more in entries):
                raise OSError("no space left on device")
            super().append(entries)

    states = {}
    inflight, full, whole = InFlight(SimpleNamespace(request_states=states)), Full(), Kept()
    inflight.keep(full)
    inflight.keep(whole)
    request, tokens = in_flight(inflight, states, "a")
    tokens.extend([3, 4])
    inflight.save({request.request_id: request})
    tokens.extend([5, 6])
    inflight.save({request.request_id: request})
    assert (full.ended, whole.ended) == (["a"], [])
    assert list(whole.requests["a"].tokens) == [3, 4, 5, 6], "another keeper has nothing to do with it"


def test_keepers_know_how_much_they_lack():
    """All that came since they were given tokens, of whatever request: lost if the process dies now."""
    states = {}
    inflight, kept = InFlight(SimpleNamespace(request_states=states)), Kept()
    inflight.keep(kept)
    request, tokens = in_flight(inflight, states, "a")
    inflight.save_if_due({})
    for step in range(UNSAVED_TOKENS - 1):
        tokens.append(step)
        inflight.came(1, 3)
        assert kept.tokens_behind == 3 * (step + 1)
    inflight.save({request.request_id: request})
    assert kept.tokens_behind == 0
    assert list(kept.requests["a"].tokens) == tokens


def test_a_request_that_cannot_be_read_takes_no_other_with_it():
    """What vLLM holds of one request may be odd; the tokens of the others are kept all the same."""
    states = {}
    inflight, kept = InFlight(SimpleNamespace(request_states=states)), Kept()
    inflight.keep(kept)
    odd, its = in_flight(inflight, states, "odd")
    request, tokens = in_flight(inflight, states, "a")
    requests = {each.request_id: each for each in (odd, request)}
    its.extend([1, 2])
    tokens.extend([3, 4])
    states[odd.request_id].weight_version_starts = None
    inflight.save(requests)
    assert list(kept.requests["a"].tokens) == [3, 4]
    states[odd.request_id].weight_version_starts = []
    inflight.save(requests)
    assert kept.ended == ["odd"], "nothing of it is kept from now on"


def test_a_keeper_that_joins_keeps_nothing_of_what_was_begun():
    """It does not know how the tokens begin that it is told of; each real keeper passes them over."""
    from rayguard.pool.actors.outbox import Outbox

    states = {}
    inflight, late, outbox = InFlight(SimpleNamespace(request_states=states)), Kept(), Outbox()
    inflight.keep(Kept())
    request, tokens = in_flight(inflight, states, "a")
    tokens.extend([3, 4])
    inflight.save({request.request_id: request})
    inflight.keep(late)
    inflight.keep(outbox)
    tokens.extend([5])
    inflight.save({request.request_id: request})
    assert not late.requests
    assert not outbox.acknowledge(10)


def test_a_request_keeps_its_own_width_beside_one_that_asked_for_more():
    """The core sends the whole batch as many log-probabilities as one of its requests wants."""
    rows = SimpleNamespace(
        logprob_token_ids=np.array([[5, 5, 8, 9]], dtype=np.int32),
        logprobs=np.array([[-0.5, -0.5, -2.0, -3.0]], dtype=np.float32),
        sampled_token_ranks=np.array([1], dtype=np.int32),
    )
    one = output_state.of_output(SimpleNamespace(new_token_ids=[5], new_logprobs=rows), "v1", 1)
    assert (list(one.ids), list(one.logprobs), list(one.ranks)) == ([5], [-0.5], [1])
    assert output_state.of_output(SimpleNamespace(new_token_ids=[5], new_logprobs=rows), "v1", 0).width == 0


@pytest.fixture(scope="module")
def owner(tmp_path_factory, prefork):
    """One engine under an event loop of its own."""
    folder = tmp_path_factory.mktemp("inflight")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
            patch.setenv(name, value)
        model = tiny_qwen.build(folder / "model", spread=0.2)
        owner = Owner(str(model), "AsyncLLM", generation_config="vllm")
        owner.start_engine()
        owner.loop = asyncio.new_event_loop()
        yield owner
        owner.stop_engine()
        owner.loop.close()


def params(**more):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    more = {"output_kind": RequestOutputKind.FINAL_ONLY, "repetition_penalty": 1.3, "max_tokens": 40, **more}
    return SamplingParams(**more)


KINDS = {
    "greedy": {"temperature": 0.0},
    "logprobs": {"temperature": 0.0, "logprobs": 0},
    "best": {"temperature": 0.0, "logprobs": 3},
    "stop": {"temperature": 0.0, "stop": ["e", "a"], "logprobs": 1},
    "n": {"top_k": 1, "n": 2, "logprobs": 1},  # vLLM refuses n > 1 at temperature 0
    "words": {"temperature": 0.0, "ignore_eos": True, "min_tokens": 10},
}


@pytest.mark.vllm
def test_what_a_keeper_has_makes_another_frontend_say_the_same(owner):
    """All that a caller can see is the same, whether it was generated here or brought from elsewhere."""

    def run(prefix, kind):
        options = params(**KINDS[kind])
        use = owner.with_engine(lambda engine: collect(engine, PROMPTS[:4], options, prefix))
        return owner.loop.run_until_complete(use)

    run("warm", "greedy")
    client = owner._slot().engine(1).client
    kept = Kept()
    client.inflight.keep(kept)
    for kind in KINDS:
        wanted = told(run(f"one-{kind}", kind))
        for cut in (1, 9, 39, 10_000):
            made = client.tokens
            names = [
                name for name in kept.requests if name.endswith(tuple(f"one-{kind}-{i}" for i in range(4)))
            ]
            for name in names:
                whole = kept.requests[name]
                client.inflight.follow(name.replace("one-", f"cut{cut}-"), whole.first(cut))
            again = told(run(f"cut{cut}-{kind}", kind))
            assert again == wanted, (kind, cut)
            if cut == 10_000:
                assert client.tokens == made, "nothing was generated twice"


def test_a_request_that_is_asked_again_has_nothing_of_its_last_answer():
    """Its end waits to be kept when the same id is asked again, as each step of a training does."""
    states = {}
    inflight, kept = InFlight(SimpleNamespace(request_states=states)), Kept()
    inflight.keep(kept)
    request, tokens = in_flight(inflight, states, "a")
    tokens.extend([1, 2])
    last = SimpleNamespace(
        request_id=request.request_id, new_token_ids=[3], new_logprobs=None, finish_reason="length"
    )
    inflight.answered(request, last, None)
    del states[request.request_id]
    again, more = in_flight(inflight, states, "a")
    more.append(7)
    inflight.save({again.request_id: again})
    assert list(kept.requests["a"].tokens) == [7]
    assert kept.ended == [], "the one that runs now is not to be forgotten with the one before"


def test_answers_are_forgotten_after_a_while_the_oldest_first(monkeypatch):
    """As many as are asked for again are kept, and no more."""
    monkeypatch.setattr("rayguard.engine.vllm.inflight._ANSWERED", 2)
    states = {}
    inflight, kept = InFlight(SimpleNamespace(request_states=states)), Kept()
    inflight.keep(kept)
    for name in ("a", "b", "c"):
        request, tokens = in_flight(inflight, states, name)
        tokens.append(1)
        last = SimpleNamespace(
            request_id=request.request_id, new_token_ids=[2], new_logprobs=None, finish_reason="length"
        )
        inflight.answered(request, last, None)
    inflight.save({})
    assert kept.ended == ["a"]
