"""Sessions whose input is a stream, across the death of their core: told all of it again, or ended at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from rayguard.engine.protocol import Verdicts
from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.kept import input_streams
from rayguard.engine.vllm.kept.input_streams import BROKEN


class Core:
    def __init__(self):
        self.got = []

    async def add_request_async(self, request):
        self.got.append(request.part)

    async def abort_requests_async(self, names):
        self.got.append(f"abort {names}")


def part(number, *, last=False):
    return SimpleNamespace(request_id="s", part=number, resumable=not last, prompt_token_ids=[1])


class Stage:
    """One session on a frontend with a scripted core."""

    def __init__(self, monkeypatch):
        self.tokens, self.ended = [], []
        monkeypatch.setattr(input_streams, "end_stream", lambda _state, why: self.ended.append(why))
        state = SimpleNamespace(
            detokenizer=SimpleNamespace(
                output_token_ids=self.tokens, num_output_tokens=lambda: len(self.tokens)
            )
        )
        self.states = {"s": state}
        self.old, self.new = Core(), Core()
        self.client = AsyncHealingClient(self.old, SimpleNamespace(request_states=self.states), None, 1.0)

    async def sends(self, *parts):
        for one in parts:
            await self.client.add_request_async(one)

    def answers(self, *, ends):
        self.tokens.append(7)
        output = SimpleNamespace(request_id="s", new_token_ids=[7], finish_reason="length" if ends else None)
        self.client._received(SimpleNamespace(outputs=[output], weight_version=""))

    @property
    def running(self):
        return self.client.progress().running


@pytest.fixture
def stage(monkeypatch):
    return Stage(monkeypatch)


def test_a_stream_of_which_nothing_was_answered_is_told_anew_with_all_its_parts(stage):
    """Its caller saw nothing: that it began afresh cannot be told from outside."""

    async def play():
        await stage.sends(part(1), part(2), part(3, last=True))
        carried = await stage.client.adopt(stage.new, Verdicts(suspects=("s",)))
        assert (carried.requests, carried.tokens_lost) == (1, 0)

    asyncio.run(play())
    assert stage.new.got == [1, 2, 3]
    assert stage.ended == []


@pytest.mark.parametrize("between", [False, True])
def test_a_stream_that_was_answered_in_part_ends_with_an_error_at_once(stage, between):
    """Within a part, or between two of them; what comes of it later reaches no core, where it would begin it."""

    async def play():
        await stage.sends(part(1))
        stage.answers(ends=between)
        assert stage.running == (() if between else ("s",)), "a session that waits for its user is no hang"
        carried = await stage.client.adopt(stage.new, Verdicts())
        assert (carried.tokens_lost, carried.afresh) == (1, {})
        await stage.sends(part(2), part(3, last=True))

    asyncio.run(play())
    assert stage.ended == [BROKEN]
    assert stage.new.got == []
    assert stage.running == ()


def test_a_stream_that_is_quarantined_ends_too(stage):
    """An output that ends is to vLLM the end of one part: its caller would wait for ever."""

    async def play():
        await stage.sends(part(1))
        await stage.client.adopt(stage.new, Verdicts(quarantined={"s": "it kills"}))

    asyncio.run(play())
    assert stage.ended == ["it kills"]
    assert stage.new.got == []


def test_a_session_runs_while_a_part_is_unanswered_and_is_forgotten_at_its_end(stage):
    """Else a finished one would count as running for ever, and look like a hang."""

    async def play():
        await stage.sends(part(1), part(2))
        stage.answers(ends=True)
        assert stage.running == ("s",), "the second part is not answered yet"
        stage.answers(ends=True)
        assert stage.running == ()
        del stage.states["s"]  # vLLM ends a session whose parts are all answered by itself
        await stage.sends(part(3, last=True))
        assert stage.running == ()
        assert "s" not in stage.client.streams

    asyncio.run(play())
    assert stage.old.got == [1, 2, 3], "the core is told that it is over"


def test_an_aborted_session_is_forgotten(stage):
    async def play():
        await stage.sends(part(1))
        await stage.client.abort_requests_async(["s"])

    asyncio.run(play())
    assert "s" not in stage.client.streams


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
def test_the_caller_gets_an_error_of_its_own():
    """As vLLM hands on what the input itself raised."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import InputStreamError
    from vllm.v1.engine.output_processor import RequestOutputCollector

    async def play():
        queue = RequestOutputCollector(RequestOutputKind.DELTA, "s")
        input_streams.end_stream(SimpleNamespace(queue=queue, external_req_id="mine"), "why")
        with pytest.raises(InputStreamError) as caught:
            await asyncio.wait_for(queue.get(), 60)
        assert str(caught.value.cause) == "request 'mine': why"

    asyncio.run(play())
