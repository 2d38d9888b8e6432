"""The stand-in for vLLM's client, with scripted cores: no request is lost between two of them."""

from __future__ import annotations

import asyncio
import queue
import threading
from types import SimpleNamespace

import pytest

from rayguard.engine.protocol import Verdicts
from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.questions.canary_answer import CanaryQuestion
from rayguard.engine.vllm.sync_client import SyncHealingClient, send_one_at_a_time
from rayguard.errors import ConfigError


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


def test_a_call_on_the_core_that_is_left_is_woken_on_its_loop():
    """Also one that came first of all, or after that core was interrupted."""
    old, new = Core(), Core()

    async def play():
        client = client_of(old)
        old.utility_results = {0: asyncio.get_running_loop().create_future()}
        old.call_async = lambda: asyncio.wait_for(old.utility_results[0], 30)
        calling = asyncio.ensure_future(client.call_async())
        await asyncio.sleep(0)  # it waits for the core that is left
        assert not client.adopt_unused(new), "somebody waits"
        await client.adopt(new, Verdicts())
        client.interrupt(RuntimeError("died"), old)
        with pytest.raises(RuntimeError, match="died"):
            await calling

    asyncio.run(play())


def test_a_core_takes_over_at_once_where_nothing_was_asked():
    """There is no loop yet that could do it."""
    client, new = client_of(Core()), Core()
    assert client.adopt_unused(new)
    assert client.core is new


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


class SyncCore:
    """Answers when told to."""

    def __init__(self):
        self.sent, self.aborted, self.go_on = [], [], threading.Event()

    def add_request(self, request):
        self.sent.append(request.request_id)

    def abort_requests(self, names):
        self.aborted += names

    def get_output(self):
        assert self.go_on.wait(60)
        return SimpleNamespace(outputs=[])


def sync_client(core):
    waiting = SimpleNamespace(detokenizer=None)
    states = dict.fromkeys("abc", waiting)
    processor = SimpleNamespace(
        request_states=states, abort_requests=lambda names, internal: [n for n in names if states.pop(n, 0)]
    )
    return SyncHealingClient(core, processor, None, 1.0)


def test_a_second_thread_inside_an_llm_is_refused_and_leaves_nothing_behind():
    """Else one of them returns what the other asked for, or both wait for ever."""
    core = SyncCore()
    client = sync_client(core)
    client.add_request(request("a"))
    reader = threading.Thread(target=client.get_output, name="first")
    reader.start()
    for _ in range(6_000):
        if client._reading is not None:
            break
        threading.Event().wait(0.01)
    with pytest.raises(ConfigError, match="thread first waits for its answers"):
        client.add_request(request("b"))
    with pytest.raises(ConfigError, match="one thread at a time"):
        client.get_output()
    assert "b" not in client.processor.request_states, "its frontend would wait for it for ever"
    core.go_on.set()
    reader.join(60)
    client.add_request(request("c"))  # one after the other is right, from whichever thread
    client.get_output()
    assert core.sent == ["a", "c"]


def test_a_question_that_gives_way_is_put_down_when_a_caller_comes():
    """Callers of an LLM do not wait for an audit; for a canary's few tokens they do."""
    core = SyncCore()
    core.outputs_queue = queue.Queue()  # from which nothing comes
    client = sync_client(core)
    question = CanaryQuestion(request("ours"), gives_way=True)
    asking = threading.Thread(target=client.ask, args=(question, 60.0))
    asking.start()
    while "ours" not in core.sent:
        threading.Event().wait(0.01)
    client.add_request(request("a"))
    asking.join(30)
    assert (core.sent, core.aborted) == (["ours", "a"], ["ours"])
    assert question.answer() is None


def test_what_an_exception_cut_in_the_midst_is_aborted():
    """The next call of an LLM would return it as its own."""
    core = SyncCore()
    client = sync_client(core)
    client.add_request(request("a"))

    def _run_engine():
        raise KeyboardInterrupt

    try:
        _run_engine()
    except KeyboardInterrupt as cut:
        error = cut
    client.left(ValueError("of the user's own code"))
    assert core.aborted == []
    client.left(error)
    assert core.aborted == ["a"]
    assert client.progress().running == ()


def test_an_async_engine_is_used_from_its_own_loop_alone():
    """Its answers would never reach another one."""
    core = Core()
    client = client_of(core)
    asyncio.run(client.add_request_async(request("a")))
    core.reset_async = lambda: None

    async def elsewhere():
        with pytest.raises(ConfigError, match=r"(?s)first, and that is closed.*MainThread"):
            await client.add_request_async(request("b"))
        with pytest.raises(ConfigError, match="another one"):
            client.reset_async()
        await client.abort_requests_async(["b"])  # what vLLM does about it

    asyncio.run(elsewhere())
    assert core.got == ["a"]
    client.reset_async().close()  # no loop at all: as it was


def test_tokens_in_doubt_are_made_again_unless_somebody_saw_them(monkeypatch):
    """One that was streamed goes on; one that waits for its whole answer begins afresh."""
    afresh, sent = [], []

    def begin_afresh(_processor, request):
        afresh.append(request.request_id)
        return True

    monkeypatch.setattr("rayguard.engine.vllm.client.output_state.begin_afresh", begin_afresh)
    monkeypatch.setattr(
        "rayguard.engine.vllm.client.continued",
        lambda request, tokens, _exact: sent.append((request.request_id, tokens)) or request,
    )
    monkeypatch.setattr("rayguard.engine.vllm.client.why_not", lambda *_: "")
    monkeypatch.setattr("rayguard.engine.vllm.client.spent", lambda *_: False)
    new = Core()

    async def play():
        client = client_of(Core())
        for name, kind in (("a", "FINAL_ONLY"), ("b", "DELTA")):
            client.processor.request_states[name] = SimpleNamespace(
                output_kind=SimpleNamespace(name=kind), detokenizer=SimpleNamespace(output_token_ids=[7, 8])
            )
            await client.add_request_async(request(name))
        carried = await client.adopt(new, Verdicts(doubt="its tokens are wrong"))
        assert carried.afresh == {"a": "its tokens are wrong"}
        assert (carried.tokens_saved, carried.tokens_lost) == (2, 2)

    asyncio.run(play())
    assert (afresh, sent, sorted(new.got)) == (["a"], [("b", [7, 8])], ["a", "b"])
