"""The frontend's part: outputs with bad numbers become the ends of their requests; the core is told, others are not."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from types import SimpleNamespace

import pytest

from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.sync_client import SyncHealingClient

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120), pytest.mark.filterwarnings("default")]

PLAIN = SimpleNamespace(speculative_config=None)


class Core:
    """As much of a core's client as the stand-in reads from and tells of ends."""

    def __init__(self):
        self.encoder = SimpleNamespace(encode=lambda message: [b""])
        self.utility_results = {}
        self.outputs_queue = queue.Queue()
        self.aborted = []

    def get_output(self):
        return self.outputs_queue.get(timeout=60)

    async def get_output_async(self):
        return self.outputs_queue.get(timeout=60)

    def abort_requests(self, names):
        self.aborted.append(names)

    async def abort_requests_async(self, names):
        self.aborted.append(names)


class Queue:
    """Where the caller of a stream waits."""

    def __init__(self):
        self.got = []

    def put(self, output):
        self.got.append(output)


def state(had):
    return SimpleNamespace(
        detokenizer=SimpleNamespace(num_output_tokens=lambda: had), external_req_id="asked", queue=Queue()
    )


def stand_in(kind, config=PLAIN):
    processor = SimpleNamespace(request_states={name: state(3) for name in "abc"})
    core, told = Core(), []
    client = kind(core, processor, lambda *_: pytest.fail("the engine is not at fault"), 5.0)
    client.numeric.of_core(config, told.append)
    for name in "abc":
        asked = SimpleNamespace(
            request_id=name, external_req_id=name, sampling_params=None, prompt_token_ids=[1]
        )
        client._requests[name] = asked
    return client, core, told


def outputs(*made):
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

    return EngineCoreOutputs(
        outputs=[
            EngineCoreOutput(
                name,
                [0],
                num_nans_in_logits=bad,
                finish_reason=FinishReason[end] if end else None,
            )
            for name, bad, end in made
        ]
    )


def shown(got):
    return [
        (one.request_id, list(one.new_token_ids), one.finish_reason and one.finish_reason.name)
        for one in got.outputs
    ]


@pytest.fixture
def next_of():
    with contextlib.closing(asyncio.new_event_loop()) as loop:

        def read(client):
            if isinstance(client, SyncHealingClient):
                return client.get_output()
            return loop.run_until_complete(client.get_output_async())

        yield read


@pytest.mark.parametrize("kind", [SyncHealingClient, AsyncHealingClient])
def test_a_bad_output_is_the_end_of_its_request_alone(kind, next_of):
    client, core, told = stand_in(kind)
    core.outputs_queue.put(outputs(("a", 0, None), ("b", 1, None), ("c", 7, "LENGTH"), ("stranger", 1, None)))
    got = next_of(client)
    assert shown(got) == [
        ("a", [0], None),
        ("b", [], "ERROR"),
        ("c", [], "ERROR"),
        ("stranger", [0], None),  # a canary, say: its asker reads it
    ]
    assert "its token 4 are NaN" in got.outputs[1].stop_reason
    assert told == [["b", "c"]]
    assert core.aborted == [["b"]], "of the other one the core knows"
    assert list(client._requests) == ["a"]
    core.outputs_queue.put(outputs(("b", 1, None), ("a", 0, "LENGTH")))  # what was on its way
    assert shown(next_of(client))[1] == ("a", [0], "LENGTH")
    assert len(told) == len(core.aborted) == 1
    assert not client._requests


@pytest.mark.parametrize("kind", [SyncHealingClient, AsyncHealingClient])
def test_a_core_that_is_dead_by_then_does_not_matter(kind, next_of):
    client, core, told = stand_in(kind)
    core.abort_requests = core.abort_requests_async = lambda _: 1 / 0
    core.outputs_queue.put(outputs(("b", 1, None)))
    assert shown(next_of(client)) == [("b", [], "ERROR")]
    assert told == [["b"]]


def test_a_stream_ends_with_an_error_and_no_part_is_taken_for_answered(next_of):
    client, core, told = stand_in(AsyncHealingClient)
    part = SimpleNamespace(request_id="b", external_req_id="b", resumable=True)
    assert client.streams.accept(part, client._requests, client.processor.request_states) is part
    core.outputs_queue.put(outputs(("a", 0, None), ("b", 1, "LENGTH")))
    assert shown(next_of(client)) == [("a", [0], None)]
    (error,) = client.processor.request_states["b"].queue.got
    assert "are NaN" in str(error.cause if hasattr(error, "cause") else error.args[0])
    assert core.aborted == [["b"]]
    assert "b" not in client._requests
    assert "b" not in client.streams
    assert len(told) == 1


@pytest.mark.parametrize("told", [None, print])
def test_who_does_not_want_it_or_cannot_have_it_gets_what_came(told, next_of):
    """Under speculative decoding vLLM counts by row, and would name the wrong request."""
    client, core, _ = stand_in(SyncHealingClient)
    client.numeric.of_core(PLAIN if told is None else SimpleNamespace(speculative_config="ngram"), told)
    core.outputs_queue.put(outputs(("b", 1, None)))
    assert shown(next_of(client)) == [("b", [0], None)]
    assert core.aborted == []
