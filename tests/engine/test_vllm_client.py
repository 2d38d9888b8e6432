"""The stand-in for vLLM's client, with scripted cores: no request is lost between two of them."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from rayguard.engine.protocol import Verdicts
from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.sync_client import send_one_at_a_time


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


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
def test_two_threads_never_send_to_a_core_at_once():
    """The socket is for one thread: a push beside a call that generates would abort the process."""
    from vllm.v1.engine.core_client import SyncMPClient

    inside, go_on, sent = threading.Event(), threading.Event(), []

    class Client(SyncMPClient):
        def __init__(self):
            self.core_engine, self.encoder = b"core", SimpleNamespace(encode=lambda request: [request])
            self.input_socket = SimpleNamespace(send_multipart=lambda message, copy: sent.append(message[2]))

        def ensure_alive(self):
            sent.append("begun")
            inside.set()
            assert go_on.wait(30)

    kind = SimpleNamespace(value=b"x")
    send_one_at_a_time(Client)
    client = Client()
    first = threading.Thread(target=client._send_input, args=(kind, 1))
    second = threading.Thread(target=client._send_input, args=(kind, 2))
    first.start()
    assert inside.wait(30)
    second.start()
    second.join(0.2)
    assert sent == ["begun"], "the second waits"
    go_on.set()
    first.join(30)
    second.join(30)
    assert sent == ["begun", 1, "begun", 2]
