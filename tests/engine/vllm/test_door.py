"""The door of a core: what it cannot be sent is refused before anything is booked, and nothing else is."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from queue import Queue
from types import SimpleNamespace

import pytest

from rayguard.engine.calls import call_of
from rayguard.engine.protocol import Verdicts
from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.door.calls import CallDoor
from rayguard.engine.vllm.door.requests import RequestDoor
from rayguard.engine.vllm.sync_client import SyncHealingClient
from rayguard.errors import RequestError

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


def request(name="a", prompt=(1, 2, 3), embeds=None, **options):
    import torch
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    params = SamplingParams()
    for option, value in options.items():  # some of them vLLM would refuse itself, in this version
        setattr(params, option, value)
    return EngineCoreRequest(
        request_id=f"{name}-00000000",
        external_req_id=name,
        prompt_token_ids=list(prompt),
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        prompt_embeds=None if embeds is None else torch.full((3, 4), embeds),
    )


class Core:
    """As much of vLLM's two clients as lies between the frontend and the socket."""

    def __init__(self):
        from vllm.v1.serial_utils import MsgpackEncoder

        self.encoder = MsgpackEncoder()
        self.resources = SimpleNamespace(engine_dead=False)
        self.utility_results = {}
        self.outputs_queue = Queue()
        self.got = []
        self.numbers = iter(range(1000))

    def add_request(self, asked):
        self.encoder.encode(asked)
        self.got.append(asked.request_id)

    def abort_requests(self, names):
        self.got += [f"abort {name}" for name in names]

    def call_utility(self, method, *arguments):
        number = next(self.numbers)
        self.utility_results[number] = answer = Future()
        self.encoder.encode((0, number, method, arguments))
        return answer.result(30)

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        return self.call_utility("collective_rpc", method, timeout, args, kwargs)

    def set_weight_version(self, version):
        return self.call_utility("set_weight_version", version)

    def is_sleeping(self):
        return self.call_utility("is_sleeping")


class AsyncCore(Core):
    async def add_request_async(self, asked):
        self.add_request(asked)

    async def abort_requests_async(self, names):
        self.abort_requests(names)


class Frontend:
    """Its book of requests, as vLLM's output processor keeps it."""

    def __init__(self):
        self.request_states = {}

    def expect(self, asked, parent=None):
        self.request_states[asked.request_id] = SimpleNamespace(detokenizer=None, parent_req=parent)

    def abort_requests(self, names, *, internal):
        assert internal
        parents = {s.parent_req.request_id: n for n, s in self.request_states.items() if s.parent_req}
        return [n for n in (parents.get(name, name) for name in names) if self.request_states.pop(n, None)]


def deep():
    inside = []
    for _ in range(5000):
        inside = [inside]
    return inside


def extension():
    from msgspec.msgpack import Ext

    return Ext(99, b"")


UNSENDABLE = [
    ("seed", {"seed": 2**70}),
    ("seed", {"seed": -(2**63) - 1}),
    ("seed", {"seed": "7"}),
    ("max_tokens", {"max_tokens": 5.0}),
    ("max_tokens", {"max_tokens": 2**64}),
    ("logit_bias", {"logit_bias": {"7": 1.0}}),
    ("logit_bias", {"logit_bias": {7: float("nan")}}),
    ("logit_bias", {"logit_bias": {7: float("inf")}}),
    ("temperature", {"temperature": float("nan")}),
    ("top_p", {"top_p": float("inf")}),
    ("prompt_embeds", {"embeds": float("nan")}),
    ("prompt_embeds", {"embeds": float("-inf")}),
    ("extra_args", {"extra_args": {"f": lambda: 1}}),
    ("extra_args", {"extra_args": {"f": deep()}}),
    ("extra_args", {"extra_args": {(1, 2): 3}}),
    ("extra_args", {"extra_args": {"f": extension}}),
    ("stop", {"stop": ["\ud800"]}),
    ("prompt_token_ids", {"prompt": [1.5]}),
    ("prompt_token_ids", {"prompt": [2**70]}),
]


@pytest.mark.parametrize(("field", "how"), UNSENDABLE, ids=[str(n) for n in range(len(UNSENDABLE))])
@pytest.mark.parametrize("kind", [SyncHealingClient, AsyncHealingClient])
def test_what_cannot_be_sent_is_refused_by_name_and_booked_nowhere(kind, field, how):
    """The frontend waits for nobody, no keeper heard of it, nothing is reported, and the next one goes in."""
    bad, good = request("bad", **{k: v() if v is extension else v for k, v in how.items()}), request("good")
    core, frontend, kept = AsyncCore(), Frontend(), []
    client = kind(core, frontend, lambda *_: pytest.fail("the engine is not at fault"), 5.0)
    client.inflight.keep(SimpleNamespace(begin=lambda name, _: kept.append(name), end=lambda _: None))

    loop = asyncio.new_event_loop()  # one for all: an AsyncLLM belongs to it

    async def play():
        for one in (bad, good):
            frontend.expect(one)
            added = client.add_request(one) if kind is SyncHealingClient else client.add_request_async(one)
            if added is not None:
                await added

    with pytest.raises(Exception, match=f"request 'bad': {field}") as caught:
        loop.run_until_complete(play())
    assert type(caught.value).__name__ == "VLLMValidationError"
    assert client.progress().running == ()
    assert frontend.request_states == {}
    assert kept == []
    frontend.expect(good)
    bad.request_id = good.request_id  # and what is right goes through
    if kind is SyncHealingClient:
        client.add_request(good)
    else:
        loop.run_until_complete(client.add_request_async(good))
    assert core.got == [good.request_id]
    assert client.progress().running == (good.request_id,)
    loop.close()


def test_what_bare_vllm_takes_goes_through():
    """Infinite biases, sets, tuples, arrays: the door knows nothing better than vLLM's own encoder."""
    import numpy as np

    core = Core()
    for options in (
        {"logit_bias": {7: float("-inf")}},
        {"extra_args": {"a": {1, 2}, "b": (1, None), "c": float("nan")}},
        {"prompt_logprob_token_ids": np.zeros((300, 2), dtype=np.int64)},
        {"seed": 2**63},
        {"embeds": 1.0},
    ):
        assert RequestDoor().refusal(request(**options), core) is None, options
    assert RequestDoor().refusal(request(), SimpleNamespace()) is None, "nothing is encoded in one process"
    assert RequestDoor().refusal(request(embeds=float("nan")), SimpleNamespace()) is not None


def test_in_a_vllm_that_is_not_known_the_door_stands_open(monkeypatch):
    """A request is sent, and a call is made, as without us."""
    from vllm.v1 import serial_utils
    from vllm.v1.engine import core as engine_core

    monkeypatch.delattr(serial_utils, "MsgpackDecoder")
    monkeypatch.delattr(engine_core, "EngineCoreProc")
    core, frontend = Core(), Frontend()
    client = SyncHealingClient(core, frontend, None, 5.0)
    frontend.expect(request(seed="7"))
    client.add_request(request(seed="7"))
    assert core.got == ["a-00000000"]
    later(lambda: client.set_weight_version(7))
    until(lambda: client.progress().calls == ("set_weight_version",))
    core.utility_results.popitem()[1].set_result(None)


def test_an_exception_on_the_way_in_undoes_the_booking(monkeypatch):
    """Whatever it is: what was not sent is not waited for."""
    frontend = Frontend()
    client = SyncHealingClient(Core(), frontend, None, 5.0)
    monkeypatch.setattr(client.inflight, "began", lambda _: 1 / 0)
    frontend.expect(request())
    with pytest.raises(ZeroDivisionError):
        client.add_request(request())
    assert client.progress().running == ()
    assert frontend.request_states == {}


def test_a_request_whose_caller_leaves_while_it_is_sent_is_not_waited_for():
    """VLLM's frontend does not know it yet, and aborts nothing."""

    class Full(AsyncCore):
        async def add_request_async(self, asked):
            await asyncio.sleep(300)

    frontend, core = Frontend(), Full()
    client = AsyncHealingClient(core, frontend, None, 5.0)

    async def play():
        frontend.expect(request())
        adding = asyncio.ensure_future(client.add_request_async(request()))
        await asyncio.sleep(0)
        assert client.progress().running == ("a-00000000",)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding

    asyncio.run(play())
    assert client.progress().running == ()
    assert frontend.request_states == {}
    assert core.got == ["abort a-00000000"], "it may have been sent"


def test_a_call_that_comes_before_any_request_is_woken_as_well():
    """Nothing has told the client yet which loop it lives on."""

    class Silent(AsyncCore):
        async def collective_rpc_async(self, method, *_):
            self.utility_results[1] = answer = asyncio.get_running_loop().create_future()
            return await answer

    client = AsyncHealingClient(Silent(), Frontend(), None, 5.0)

    async def play():
        calling = asyncio.ensure_future(client.collective_rpc_async("x"))
        await asyncio.sleep(0)
        client.interrupt(RuntimeError("the engine died"))
        await asyncio.wait_for(calling, 60)

    with pytest.raises(RuntimeError, match="the engine died") as caught:
        asyncio.run(play())
    assert call_of(caught.value).name == "collective_rpc('x')"


@pytest.mark.parametrize("kind", [SyncHealingClient, AsyncHealingClient])
def test_at_a_takeover_what_cannot_be_sent_ends_by_itself(kind):
    """The others go on; the new engine has not failed."""
    frontend, first, second = Frontend(), AsyncCore(), AsyncCore()
    client = kind(first, frontend, None, 5.0)
    asked = [request(name) for name in "abc"]

    async def play():
        for one in asked:
            frontend.expect(one)
            added = client.add_request(one) if kind is SyncHealingClient else client.add_request_async(one)
            if added is not None:
                await added
        asked[1].lora_request = lambda: 1  # as if it had been carried over badly
        adopted = client.adopt(second, Verdicts())
        if asyncio.iscoroutine(adopted):
            await adopted

    asyncio.run(play())
    assert second.got == [asked[0].request_id, asked[2].request_id]
    assert client.progress().running == (asked[0].request_id, asked[2].request_id)
    (ended,) = client._own_outputs().outputs
    assert ended.request_id == asked[1].request_id
    assert "cannot be sent" in ended.stop_reason


@pytest.mark.parametrize("kind", [SyncHealingClient, AsyncHealingClient])
def test_the_next_suspect_runs_when_the_one_before_is_given_up_or_cannot_be_sent(kind):
    """VLLM's frontend aborts what a stop string ended, and the core says nothing of it."""
    frontend, first, second = Frontend(), AsyncCore(), AsyncCore()
    client = kind(first, frontend, None, 5.0)
    asked = [request(name) for name in "abc"]
    a, b, c = (one.request_id for one in asked)

    async def done(outcome):
        if asyncio.iscoroutine(outcome):
            await outcome

    async def play():
        for one in asked:
            frontend.expect(one)
            await done(
                client.add_request(one) if kind is SyncHealingClient else client.add_request_async(one)
            )
        await done(client.adopt(second, Verdicts(suspects=(a, b, c))))
        assert second.got == [a]
        asked[1].lora_request = lambda: 1
        name = "abort_requests" if kind is SyncHealingClient else "abort_requests_async"
        await done(getattr(client, name)([a]))

    asyncio.run(play())
    assert second.got == [a, f"abort {a}", c]
    assert client.progress().running == (c,)
    assert client.progress().held == ()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda c: c.collective_rpc("x", args=(lambda: 1,)), "not serializable"),
        (lambda c: c.collective_rpc("x", args=(2**70,)), "can't serialize"),
        (lambda c: c.collective_rpc("x", args=(extension(),)), "extension type code 99"),
        (lambda c: c.set_weight_version(7), "weight_version must be text, got 7"),
        (lambda c: c.set_weight_version(None), "must be text"),
    ],
)
def test_a_call_that_cannot_be_sent_is_not_waited_for(call, match):
    """VLLM leaves it in its book: it would look like a call that the engine does not answer."""
    core = Core()
    client = SyncHealingClient(core, Frontend(), lambda *_: pytest.fail("the engine is not at fault"), 5.0)
    with pytest.raises((RequestError, TypeError, OverflowError), match=match):
        call(client)
    assert core.utility_results == {}
    assert client.progress().calls == ()


def later(call):
    """Run a blocking call; return its outcome to come."""
    outcome = Future()

    def run():
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def until(true):
    pause = threading.Event()
    for _ in range(3000):
        if true():
            return
        pause.wait(0.01)
    pytest.fail("it did not come to pass")


def test_calls_inside_are_known_and_what_changes_nothing_is_made_again():
    """A cut-off ``collective_rpc`` fails, marked as a call; ``is_sleeping`` is asked of the next engine."""
    first, second, reports = Core(), Core(), []

    def report(error, core):
        reports.append(core)
        client.adopt(second, Verdicts())
        healed = Future()
        healed.set_result(None)
        return healed

    client = SyncHealingClient(first, Frontend(), report, 30.0)
    rpc, sleeping = later(lambda: client.collective_rpc("boom")), later(client.is_sleeping)
    until(lambda: len(first.utility_results) == 2)
    progress = client.progress()
    assert (progress.calls, progress.reads) == (("collective_rpc('boom')",), ("is_sleeping",))
    client.interrupt(RuntimeError("the engine died"))
    with pytest.raises(RuntimeError, match="the engine died") as caught:
        rpc.result(30)
    assert call_of(caught.value).name == "collective_rpc('boom')"
    assert call_of(caught.value).was_made_to(first)
    until(lambda: second.utility_results)
    next(iter(second.utility_results.values())).set_result(True)
    assert sleeping.result(30) is True
    assert len(second.utility_results) == 1, "the other one is not made again"
    assert reports == [first]


def test_a_read_that_was_in_too_many_engines_is_answered():
    """As the verdict says."""
    first = Core()
    client = SyncHealingClient(first, Frontend(), None, 30.0)
    sleeping = later(client.is_sleeping)
    until(lambda: first.utility_results)
    client.adopt(Core(), Verdicts(calls={"is_sleeping": "it died"}))
    from rayguard.engine.vllm.door.core_calls import wake

    error = RuntimeError("the engine died")
    client._interrupts.append(error)
    wake(first, error)
    with pytest.raises(RuntimeError, match="the engine died"):
        sleeping.result(30)


def test_a_call_that_never_reached_a_dead_core_is_made_to_the_next_one():
    """The client knows its core as dead before it sends."""
    from vllm.v1.engine.exceptions import EngineDeadError

    class Dead(Core):
        def call_utility(self, *_):
            self.resources.engine_dead = True
            raise EngineDeadError

    second = Core()

    def report(error, core):
        client.adopt(second, Verdicts())
        healed = Future()
        healed.set_result(None)
        return healed

    client = SyncHealingClient(Dead(), Frontend(), report, 30.0)
    rpc = later(lambda: client.collective_rpc("x"))
    until(lambda: second.utility_results)
    next(iter(second.utility_results.values())).set_result([1])
    assert rpc.result(30) == [1]


def test_a_call_that_has_just_left_is_known_until_something_came_back():
    """What it did may show in the very next step."""
    core, turns = Core(), [5]
    door = CallDoor.of(core, lambda: turns[0])
    outcome = later(lambda: core.collective_rpc("x"))
    until(lambda: core.utility_results)
    core.utility_results.popitem()[1].set_result(None)
    outcome.result(30)
    known = door.progress()
    assert (known.inside, known.just_ended) == ({}, ("collective_rpc('x')",))
    turns[0] += 2
    assert door.progress().just_ended == ()


def answered(core, *call):
    """Make a call, and answer it."""
    outcome = later(lambda: core.call_utility(*call))
    until(lambda: core.utility_results)
    yield
    core.utility_results.popitem()[1].set_result(None)
    outcome.result(30)
    yield


def test_whose_word_ends_requests_is_known_until_what_waited_is_handed_out(monkeypatch):
    """A core sends the ends that a pause makes before its answer; those of a core that goes are nobody's wish."""
    core, turns = Core(), [5]
    core.outputs_queue.put("handed out after the answer")
    door = CallDoor.of(core, lambda: turns[0])
    assert [door.ends_requests() for _ in answered(core, "collective_rpc", "x")] == [False, False]
    assert [door.ends_requests() for _ in answered(core, "pause_scheduler", "abort", True)] == [True, True]
    turns[0] += 2
    assert door.ends_requests()
    turns[0] += 1
    assert not door.ends_requests()
    assert [door.ends_requests() for _ in answered(core, "sleep", 1, "abort")] == [True, True]
    now = time.monotonic()
    monkeypatch.setattr("rayguard.engine.vllm.door.calls.time.monotonic", lambda: now + 60.0)
    assert not door.ends_requests()


@pytest.mark.parametrize("mode", ["keep", "wait"])
@pytest.mark.parametrize("call", [("pause_scheduler", "MODE", False), ("sleep", 1, "MODE")])
def test_a_pause_that_keeps_what_runs_asks_for_no_end(call, mode):
    """A push of weights pauses so: a core that is told to end a second later still cuts no answer short."""
    core = Core()
    door = CallDoor.of(core, lambda: 0)
    given = [mode if one == "MODE" else one for one in call]
    assert [door.ends_requests() for _ in answered(core, *given)] == [False, False]


def test_a_pause_without_a_mode_ends_what_runs():
    """As vLLM's core has it."""
    core = Core()
    door = CallDoor.of(core, lambda: 0)
    assert [door.ends_requests() for _ in answered(core, "sleep")] == [True, True]
