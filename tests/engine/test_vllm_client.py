"""The stand-in for vLLM's client, with scripted cores: no request is lost between two of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from rayguard.engine.protocol import Verdicts
from rayguard.engine.vllm.async_client import AsyncHealingClient


class Core:
    """Takes requests, one turn of the loop for each."""

    def __init__(self):
        self.got = []

    async def add_request_async(self, request):
        await asyncio.sleep(0)
        self.got.append(request.request_id)


def client_of(core):
    waiting = SimpleNamespace(detokenizer=None)
    processor = SimpleNamespace(request_states=dict.fromkeys("abc", waiting))
    return AsyncHealingClient(core, processor, None, 1.0)


def request(name):
    """As little of a request as ``continued`` looks at when no token came yet."""
    return SimpleNamespace(request_id=name, external_req_id=None, prompt_token_ids=[1])


def test_a_request_that_comes_while_a_new_core_takes_over_reaches_it(monkeypatch):
    """It was booked after the plan was made: it goes to the new core, once."""
    monkeypatch.setattr("rayguard.engine.vllm.client.continued", lambda request, *_: request)
    old, new = Core(), Core()

    async def play():
        client = client_of(old)
        await client.add_request_async(request("a"))
        adopting = asyncio.ensure_future(client.adopt(new, Verdicts()))
        await asyncio.sleep(0)  # it has sent nothing yet
        await client.add_request_async(request("b"))
        await adopting
        await client.add_request_async(request("c"))
        assert client.core is new

    asyncio.run(play())
    assert old.got == ["a"]
    assert new.got == ["a", "b", "c"]
