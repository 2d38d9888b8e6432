"""Ends that a core makes by itself: taken out where another core goes on, handed out late where it stays."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from rayguard.engine.vllm import sync_client
from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.door import unasked_ends
from rayguard.engine.vllm.sync_client import SyncHealingClient

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120), pytest.mark.filterwarnings("default")]


class Core:
    """As much of a core's client as the stand-in reads outputs from; nobody has called anything."""

    def __init__(self, kind=queue.Queue):
        self.encoder = SimpleNamespace(encode=lambda message: [b""])
        self.utility_results = {}
        self.outputs_queue = kind()

    def get_output(self):
        return self.outputs_queue.get(timeout=60)

    async def get_output_async(self):
        return await asyncio.wait_for(self.outputs_queue.get(), 60)


def outputs(*ends):
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

    made = [
        EngineCoreOutput(name, [], finish_reason=FinishReason[how] if how else None) for name, how in ends
    ]
    return EngineCoreOutputs(outputs=made)


def stand_in(kind, core):
    processor = SimpleNamespace(request_states={})
    client = kind(core, processor, lambda *_: pytest.fail("the engine is not at fault"), 5.0)
    for name in "ab":
        asked = SimpleNamespace(request_id=name, sampling_params=None, prompt_token_ids=[1])
        client._requests[name] = asked
        client.inflight.began(asked)
    return client


def ended(got):
    return [(one.request_id, one.finish_reason.name) for one in got.outputs if one.finish_reason is not None]


def test_the_end_holds_where_the_core_stays_after_all_sync(monkeypatch):
    """No caller waits for ever for a core that did not go."""
    monkeypatch.setattr(unasked_ends, "STAYS_S", 0.1)
    core = Core()
    client = stand_in(SyncHealingClient, core)
    core.outputs_queue.put(outputs(("a", "ABORT"), ("b", None)))
    assert ended(client.get_output()) == []
    assert sorted(client._requests) == ["a", "b"]
    assert ended(client.get_output()) == [("a", "ABORT")]
    assert sorted(client._requests) == ["b"]


def test_the_end_holds_where_the_core_stays_after_all_async(monkeypatch):
    """The same on its loop."""
    monkeypatch.setattr(unasked_ends, "STAYS_S", 0.1)

    async def play():
        core = Core(asyncio.Queue)
        client = stand_in(AsyncHealingClient, core)
        core.outputs_queue.put_nowait(outputs(("a", "ABORT"), ("b", "STOP")))
        return ended(await client.get_output_async()), ended(await client.get_output_async())

    assert asyncio.run(play()) == ([("b", "STOP")], [("a", "ABORT")])


def test_nothing_is_handed_out_late_where_another_core_went_on(monkeypatch):
    """It makes the rest of that request; an end of the core before would cut it short."""
    later = []
    monkeypatch.setattr(unasked_ends.threading, "Timer", lambda *given: later.append(given) or Mock())
    core, following = Core(), Core()
    client = stand_in(SyncHealingClient, core)
    core.outputs_queue.put(outputs(("a", "ABORT")))
    core.outputs_queue.put(outputs(("b", None)))
    assert ended(client.get_output()) == []
    client.go_to(following)
    ((_, let_stand, given),) = later
    let_stand(*given)
    assert core.outputs_queue.qsize() == 1, "what it had sent by itself"
    assert following.outputs_queue.empty()


def test_an_end_that_its_owner_asked_for_passes():
    """A request that is no longer booked, or one of a pause, is not looked at."""
    core = Core()
    client = stand_in(SyncHealingClient, core)
    client._forget(["a"])
    core.outputs_queue.put(outputs(("a", "ABORT"), ("b", "LENGTH")))
    assert ended(client.get_output()) == [("a", "ABORT"), ("b", "LENGTH")]


class Ending:
    """A core that was told to end: it makes no call any more, and is known as dead a moment later."""

    encoder = None

    def __init__(self, made, dies=True):
        self.resources, self.made, self.refused = SimpleNamespace(engine_dead=False), made, 0
        self.dies = dies

    def pin_lora(self, number):
        from vllm.v1.engine.exceptions import EngineDeadError

        if self.resources.engine_dead:
            raise EngineDeadError
        self.refused += 1
        threading.Timer(0.1, lambda: setattr(self.resources, "engine_dead", self.dies)).start()
        raise Exception("Server shutting down")  # noqa: TRY002 - as vLLM does

    async def pin_lora_async(self, number):
        return self.pin_lora(number)


class Next(Ending):
    """The one that takes over."""

    def pin_lora(self, number):
        self.made.append(number)
        return number == 7


def ending_pair(kind):
    """Return a stand-in whose core ends, what the next one was called with, and what was reported."""
    made, reported = [], []
    core = Ending(made)

    def report(error, life):
        reported.append(type(error).__name__)
        client.go_to(Next(made))
        healed = Future()
        healed.set_result(None)
        return healed

    client = kind(core, SimpleNamespace(request_states={}), report, 5.0)
    return client, core, made, reported


def test_a_call_that_an_ending_core_refused_is_made_to_the_next_sync():
    """It did not happen, so it may: and the fault is the core's end, not the text of that refusal."""
    client, core, made, reported = ending_pair(SyncHealingClient)
    assert client.pin_lora(7) is True
    assert (core.refused, made, reported) == (1, [7], ["EngineDeadError"])


def test_a_call_that_an_ending_core_refused_is_made_to_the_next_async():
    """The same on its loop."""
    client, core, made, reported = ending_pair(AsyncHealingClient)

    async def play():
        return await client.pin_lora_async(7)

    assert asyncio.run(play()) is True
    assert (core.refused, made, reported) == (1, [7], ["EngineDeadError"])


def test_a_core_that_refuses_calls_and_stays_is_believed(monkeypatch):
    """Its callers get what they get of bare vLLM, and nothing is replaced."""
    monkeypatch.setattr(sync_client, "STAYS_S", 0.2)
    client, core, made, reported = ending_pair(SyncHealingClient)
    core.dies = False
    with pytest.raises(Exception, match=r"^Server shutting down$"):
        client.pin_lora(7)
    assert (core.refused, made, reported) == (1, [], [])
