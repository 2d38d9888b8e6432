"""What fails at a real engine fails alone: requests that cannot be sent, calls that kill, a poison."""

from __future__ import annotations

import asyncio
import inspect
import itertools

import pytest

from examples.grpo.model import build
from rayguard import EngineCallError, GuardPolicy, RestartBudget
from rayguard.engine.vllm.argument_names import written_names
from rayguard.engine.vllm.arguments import accepted_arguments
from rayguard.engine.vllm.door import calls
from rayguard.recovery.incident import Outcome, incident_of
from tests.engine.real import ENVIRONMENT, PROMPTS, Owner, collect, incidents, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

_ids = itertools.count()
LONG_S = 300.0


def start(tmp_path_factory, patch, kind):
    folder = tmp_path_factory.mktemp(kind)
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
        patch.setenv(name, value)
    owner = Owner(
        str(build(folder / "model", 0)),
        kind,
        worker_extension_cls="tests.engine.dying.Dying",
        scheduler_cls="tests.engine.vllm.poisoned.PoisonedScheduler",
        enable_prompt_embeds=True,
    )
    often = RestartBudget(max_restarts=50, within_s=3600.0)  # the faults are ours, not the engine's
    owner.start_engine(policy=GuardPolicy(engine_budget=often))
    return owner


@pytest.fixture(scope="module")
def beside(tmp_path_factory, prefork):
    """An ``AsyncLLM``: what is done while requests run, and what came of those."""
    patch, loop = pytest.MonkeyPatch(), asyncio.new_event_loop()
    owner = start(tmp_path_factory, patch, "AsyncLLM")
    yield Beside(owner, loop)
    owner.stop_engine()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    patch.undo()


class Beside:
    def __init__(self, owner, loop):
        self.owner, self.loop = owner, loop
        self.undisturbed = None

    def requests(self):
        return self.owner.with_engine(lambda e: collect(e, PROMPTS, greedy(), f"t{next(_ids)}"))

    def do(self, use):
        """Do ``use(engine)`` beside running requests; return its outcome, and the incidents that were told."""
        if self.undisturbed is None:
            self.undisturbed = told(self.loop.run_until_complete(self.requests()))
        before, settings = len(incidents()), self.owner.engine_status()["settings"]

        async def play():
            running = asyncio.ensure_future(self.requests())
            base = self.owner.engine_status()["tokens_generated"]
            while self.owner.engine_status()["tokens_generated"] < base + 100:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.005)
            said = await asyncio.gather(
                asyncio.wait_for(self.owner.with_engine(use), LONG_S), return_exceptions=True
            )
            return said[0], await asyncio.wait_for(running, LONG_S)

        error, outputs = self.loop.run_until_complete(play())
        assert told(outputs) == self.undisturbed, "nobody else is disturbed"
        assert self.owner.engine_status()["settings"] == settings
        return error, incidents()[before:]


def greedy(**more):
    from vllm import SamplingParams

    return SamplingParams(
        **{
            "temperature": 0,
            "max_tokens": 200,
            "ignore_eos": True,
            "repetition_penalty": 1.3,
            **more,
        }
    )


def sampled(**more):
    return greedy(**{"temperature": 1.0, "max_tokens": 4, **more})


def asking(params, prompt=PROMPTS[0]):
    return lambda engine: collect(engine, [prompt], params, f"x{next(_ids)}")


def test_a_request_that_cannot_be_sent_is_refused_and_nothing_else(beside):
    """Its own error names the field; no incident, no hang afterwards, also of one among several completions."""
    for params, said in (
        (sampled(seed=2**70), "seed=1180591620717411303424"),
        (sampled(n=3, seed=2**70), "seed="),
        (sampled(seed="7"), "Expected `int"),
        (sampled(extra_args={"f": lambda: 1}), "extra_args="),
    ):
        error, told_of = beside.do(asking(params))
        assert said in str(error)
        assert isinstance(error, ValueError) or type(error).__name__ == "VLLMValidationError"
        assert told_of == []
    frontend = beside.owner.with_engine(state_of)
    assert beside.loop.run_until_complete(frontend) == (0, ())


def test_what_would_be_answered_wrongly_is_refused_and_spoils_nobody(beside):
    """By name: NaN, no token that may be said, log-probabilities and penalties that take what is others'."""
    import torch

    embeds = torch.zeros(20, 64)
    spoiled = embeds.index_put((torch.tensor(3), torch.tensor(5)), torch.tensor(float("nan")))
    by_token, plain = sampled(logprob_token_ids=[5, 6]), sampled(repetition_penalty=1.0)
    for use, said in (
        (asking(plain, {"prompt_embeds": spoiled}), "prompt_embeds is not finite (nan at [3, 5])"),
        (asking(sampled(), {"prompt_embeds": embeds}), "repetition_penalty=1.3 counts the tokens"),
        (asking(sampled(allowed_token_ids=[7], stop_token_ids=[7], min_tokens=2)), "no token is left"),
        (asking_each(sampled(logprobs=1, max_tokens=100), by_token), "must not meet in one batch"),
    ):
        error, told_of = beside.do(use)
        assert type(error).__name__ == "VLLMValidationError", error
        assert said in str(error)
        assert told_of == []
    assert beside.loop.run_until_complete(beside.owner.with_engine(state_of)) == (0, ())
    (scored,), _ = beside.do(asking(by_token))
    assert all({5, 6} <= set(position) for position in scored.outputs[0].logprobs)
    (answer,), told_of = beside.do(asking(plain, {"prompt_embeds": embeds}))
    assert len(answer.outputs[0].token_ids) == 4
    assert told_of == []


def asking_each(*params):
    """Ask one after the other, all of them at once; the answer is what the first that is refused raises."""

    async def use(engine):
        asked = [asyncio.ensure_future(asking(one)(engine)) for one in params]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        return next((one for one in outcomes if isinstance(one, Exception)), outcomes)

    return use


async def state_of(engine):
    client = engine.engine_core
    return len(engine.output_processor.request_states), client.progress().running


def test_a_call_that_would_end_the_engine_later_is_refused(beside):
    """The version is written into each output, where the frontend wants text."""
    error, told_of = beside.do(lambda engine: engine.update_weight_version(7))
    assert "its weight_version must be text, got 7" in str(error)
    assert told_of == []


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ("exit_now", "exited with code 5"),  # the worker
        ("get_kv_cache_spec", "TypeError: Object of type"),  # the core's thread that sends
    ],
)
def test_a_call_that_kills_fails_once_with_its_cause(beside, method, named):
    """One new engine, the incident on the error, and all who ran beside it go on."""
    error, told_of = beside.do(lambda engine: engine.collective_rpc(method))
    assert isinstance(error, EngineCallError)
    assert error.call == f"collective_rpc({method!r})"
    (incident,) = told_of
    assert incident.outcome is Outcome.RECOVERED
    assert incident_of(error).id == incident.id
    assert named in incident.cause
    assert named in str(error)
    assert error.call in " ".join(incident.notes)


def test_what_the_core_or_its_owner_cannot_read_ends_one_engine(beside, monkeypatch):
    """As if the door had let it in: the thread that reads is gone, and it is told what ended it."""
    from msgspec.msgpack import Ext

    monkeypatch.setattr(calls, "_check", lambda *_: None)
    error, (incident,) = beside.do(lambda engine: engine.collective_rpc("x", args=(Ext(99, b""),)))
    assert isinstance(error, EngineCallError)
    assert (incident.signature, incident.outcome) == ("engine.message_unreadable", Outcome.RECOVERED)
    assert "Extension type code 99" in incident.cause
    _, (incident,) = beside.do(lambda engine: engine.update_weight_version(7))
    assert (incident.signature, incident.outcome) == ("engine.message_unreadable", Outcome.RECOVERED)
    assert "set_weight_version" in " ".join(incident.notes)


def test_a_poison_request_costs_nobody_else_anything(beside):
    """Three engines die of it; it is answered, and the safe setting that was tried first is taken back with it."""
    answer, told_of = beside.do(asking(sampled(extra_args={"poison": True}, max_tokens=50)))
    (completion,) = answer[0].outputs
    assert completion.finish_reason == "error"
    assert "quarantined" in completion.stop_reason
    assert [incident.settings for incident in told_of] == [("chunked_prefill_off",)] * 2 + [()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_llm_refuses_replaces_and_goes_on(tmp_path_factory, prefork):
    """The same for the synchronous frontend, whose next batch would wait for the refused one for ever."""
    patch = pytest.MonkeyPatch()
    owner = start(tmp_path_factory, patch, "LLM")
    try:

        def batch(params):
            return told(owner.with_engine(lambda e: e.generate(PROMPTS[:2], params, use_tqdm=False)))

        wanted = batch(greedy())
        with pytest.raises(Exception, match="seed=1180591620717411303424"):
            batch([greedy(), sampled(n=2, seed=2**70)])
        assert batch(greedy()) == wanted
        assert incidents() == []
        with pytest.raises(EngineCallError, match="Object of type") as caught:
            owner.with_engine(lambda e: e.collective_rpc("get_kv_cache_spec"))
        (incident,) = incidents()
        assert incident_of(caught.value).id == incident.id
        assert batch(greedy()) == wanted
        assert owner.engine_status()["settings"] == []
    finally:
        owner.stop_engine()
        patch.undo()


def test_the_names_that_are_read_are_those_that_vllm_takes():
    """From its source before it is imported, and from itself."""
    from vllm import LLM

    assert accepted_arguments() <= (written_names() or frozenset())
    taken = inspect.signature(LLM.__init__).parameters.values()
    by_name = {one.name for one in taken if one.kind is not one.VAR_KEYWORD} - {"self"}
    assert by_name <= (written_names() or frozenset())
    assert written_names() == accepted_arguments() | by_name
