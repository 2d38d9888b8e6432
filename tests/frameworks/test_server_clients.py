"""Clients of a real server over HTTP that dies, comes back, is restarted unseen, fails and freezes."""

from __future__ import annotations

import inspect
import logging
import os
import re
import signal
import threading
import time
import types

import pytest
import requests
import torch

from rayguard.frameworks.server import guarded_class
from rayguard.frameworks.server.kept_weights import KeptWeights
from rayguard.frameworks.server.lost_server import ServerHungError, is_lost, is_of_the_engine
from rayguard.frameworks.server.server_sign import Presence, is_ready, look
from rayguard.frameworks.swift import client as swift
from rayguard.frameworks.trl import client as trl
from rayguard.recovery.journal import Journal
from tests.frameworks import clients
from tests.frameworks.inference_server import InferenceServer


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of its own for each test; the proxy of the machine is none of a local server's."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "home"


@pytest.fixture
def server():
    """A server that says which process it is."""
    made = InferenceServer()
    yield made
    made.close()


def signatures(home):
    return [(one.signature, one.outcome.value, one.remedy) for one in Journal(home).read()]


def tensors(value):
    return [("w", torch.tensor([value]))]


def metadata(weights):
    return [(name, "float32", list(one.shape)) for name, one in weights]


class Trl:
    """How the tests use TRL's client, and which one."""

    cls, guard = clients.TrlClient, staticmethod(trl.guard_client)

    def __init__(self, server, **options):
        kind = clients.fresh(self.cls)
        assert self.guard(kind, **options)
        self.client = self.made(kind, server)
        self.client.init_communicator()
        self.link = guarded_class.link_of(self.client)
        self.link.patience.look_s = 0.1

    def made(self, kind, server):
        return kind(base_url=server.url)

    def push(self, value):
        weights = tensors(value)
        self.client.update_named_params(metadata(weights), iter(weights))
        self.client.reset_prefix_cache()

    def sampled(self):
        """Return the weight that the answer was made with."""
        return self.client.generate([[1], [2]])["completion_ids"][0][0]


class OldTrl(Trl):
    """TRL of before."""

    cls = clients.OldTrlClient

    def push(self, value):
        for name, one in tensors(value):
            self.client.update_named_param(name, one)
        self.client.reset_prefix_cache()


class Swift(Trl):
    """ms-swift's, with flattened weights."""

    cls, guard = clients.SwiftClient, staticmethod(swift.guard_client)

    def made(self, kind, server):
        return kind(base_urls=[server.url])

    def push(self, value):
        (name, one) = tensors(value)[0]
        self.client.update_flattened_params([clients.Bucket(name)], one)
        self.client.process_weights_after_loading()
        self.client.reset_prefix_cache()

    def sampled(self):
        return self.client.infer([{"x": 1}])[0]["weight"]


@pytest.fixture(params=[Trl, OldTrl, Swift])
def kind(request):
    """Each of the three."""
    return request.param


def test_without_a_fault_nothing_is_different(home, server, kind):
    """The same answers, the same calls, once each; no incident."""
    use = kind(server)
    for value in (1.0, 2.0):
        use.push(value)
        assert use.sampled() == value
    calls = server.state()["calls"]
    assert calls["/infer" if kind is Swift else "/v1/completions"] == 2
    assert calls["/weights"] == 2
    assert signatures(home) == []


def test_a_server_that_dies_while_it_generates_is_waited_for_and_gets_the_weights(home, server, kind):
    """The call is made again at the current weights; no minute of blind retries."""
    use = kind(server)
    use.push(7.0)
    server.plan(**{"infer" if kind is Swift else "v1__completions": "die"})
    server.restart_once_dead()
    assert use.sampled() == 7.0
    state = server.state()
    assert state["weights"] == {"w": [7.0]}
    assert state["group"] > 51216, "the old port is held by the old group"
    assert signatures(home) == [("server.lost", "recovered", "reconnect")]
    use.push(8.0)
    assert use.sampled() == 8.0


def test_a_server_that_is_gone_before_a_push_is_waited_for_and_gets_the_new_weights(home, server, kind):
    """The iterator of a push is spent only once, and nothing of it is lost."""
    use = kind(server)
    use.push(1.0)
    server.kill()
    later = threading.Timer(1.0, server.start)
    later.start()
    use.push(2.0)
    later.join()
    assert use.sampled() == 2.0
    assert ("server.lost", "recovered", "reconnect") in signatures(home)


def test_a_server_that_dies_in_the_midst_of_a_push_gets_all_of_it(home, server):
    """What the error left of the iterator is read: other ranks gather along with it."""
    use = Trl(server)
    use.push(1.0)
    weights = [(name, torch.tensor([value])) for name, value in (("a", 3.0), ("w", 4.0), ("z", 5.0))]
    read = []

    def coming():
        for one in weights:
            if one[0] == "w":
                server.kill()
                server.restart_once_dead()
            read.append(one[0])
            yield one

    use.client.update_named_params(metadata(weights), coming())
    assert read == ["a", "w", "z"]
    assert server.state()["weights"] == {"a": [3.0], "w": [4.0], "z": [5.0]}
    assert use.sampled() == 4.0


def test_a_server_that_was_restarted_unseen_is_never_sampled_from_at_old_weights(home, server, kind):
    """Between a push and a call: the trainer pushes only when its step has changed."""
    use = kind(server)
    use.push(5.0)
    assert use.sampled() == 5.0
    server.restart()
    assert server.state()["weights"] == {"w": [0.0]}
    assert use.sampled() == 5.0
    assert signatures(home) == [("server.restarted", "recovered", "push_weights")]


def test_without_metrics_a_server_on_this_machine_is_known_by_its_process(home):
    """``swift rollout`` has none."""
    server = InferenceServer("--no-metrics")
    try:
        use = Swift(server)
        use.push(5.0)
        server.restart()
        assert use.sampled() == 5.0
    finally:
        server.close()
    assert signatures(home) == [("server.restarted", "recovered", "push_weights")]


def test_a_server_that_says_nothing_of_itself_is_joined_again_after_each_loss(
    home, server, monkeypatch, caplog
):
    """It may be a new one. A restart that no call has met cannot be seen, and that is said."""
    monkeypatch.setattr("rayguard.frameworks.server.server_sign._listener", lambda _: "")
    monkeypatch.setattr("rayguard.frameworks.server.server_sign._STARTED", re.compile("never"))
    with caplog.at_level(logging.WARNING, "rayguard"):
        use = Swift(server)
        use.push(5.0)
    assert "only where a call fails" in caplog.text
    server.plan(infer="die")
    server.restart_once_dead()
    assert use.sampled() == 5.0


def test_a_server_that_does_not_come_back_ends_with_the_error_that_it_was(home, server, kind):
    """After the deadline, and said at once."""
    use = kind(server, deadline_s=1.5)
    use.push(1.0)
    server.kill()
    began = time.monotonic()
    with pytest.raises((requests.exceptions.ConnectionError, ConnectionError, RuntimeError)):
        use.sampled()
    assert time.monotonic() - began < 30
    assert signatures(home) == [("server.lost", "failed", "wait")]


def test_a_call_that_kills_each_server_that_it_meets_is_given_up(home):
    """Three servers are enough."""
    server = InferenceServer("--deadly")
    try:
        use = Trl(server)
        use.push(1.0)

        def supervise():
            for _ in range(3):
                server.process.wait(60)
                server.start()

        supervisor = threading.Thread(target=supervise)
        supervisor.start()
        with pytest.raises(requests.exceptions.ConnectionError):
            use.sampled()
        supervisor.join(120)
    finally:
        server.close()
    assert signatures(home) == [("server.lost", "recovered", "reconnect")] * 2


def test_an_answer_that_it_failed_goes_to_the_caller_and_is_told(home, server):
    """Its engine may be dead: a server that stays as it is gets no second call, and nobody waits long."""
    use = Swift(server)
    use.link.patience.after_an_error_s = 0.5
    use.push(1.0)
    server.plan(infer="fail")
    with pytest.raises(RuntimeError, match="500"):
        use.sampled()
    assert signatures(home) == [("server.failing", "answered", "none")]
    assert server.state()["calls"]["/infer"] == 1
    assert use.sampled() == 1.0


def test_what_trl_asks_again_by_itself_it_still_does(home, server):
    """An answer of 500 is retried by its session; only lost connections are ours."""
    use = Trl(server)
    use.push(1.0)
    server.plan(v1__completions="fail")
    assert use.sampled() == 1.0
    assert server.state()["calls"]["/v1/completions"] == 2
    assert signatures(home) == []


def test_a_server_whose_engine_died_and_that_ends_then_is_lost(home, server):
    """As vLLM's: it answers 500 and exits."""
    use = Swift(server)
    use.push(3.0)
    server.plan(infer="fail")
    later = threading.Timer(0.7, server.restart)
    later.start()
    assert use.sampled() == 3.0
    later.join()
    assert signatures(home) == [("server.lost", "recovered", "reconnect")]


@pytest.mark.parametrize(
    "call", ["update_flattened_params", "process_weights_after_loading", "reset_prefix_cache"]
)
def test_a_push_to_a_server_whose_engine_died_and_that_ends_then_is_made_again(home, server, call):
    """ms-swift names no code there."""
    use = Swift(server)
    use.push(3.0)
    server.plan(**{call: "fail"})
    later = threading.Timer(0.7, server.restart)
    later.start()
    use.push(4.0)
    later.join()
    assert use.sampled() == 4.0
    assert server.state()["weights"] == {"w": [4.0]}
    assert signatures(home) == [("server.lost", "recovered", "reconnect")]


def test_a_frozen_server_is_told_and_given_up_by_its_progress(home, server):
    """Its port is open, and nothing comes: a bare client waits for ever."""
    use = Trl(server)
    use.push(1.0)
    use.link.patience.silent_s, use.link.patience.over_s = 0.5, 1.5
    server.plan(v1__completions="hang")
    with pytest.raises(ServerHungError):
        use.sampled()
    assert signatures(home) == [("server.silent", "failed", "none")]


def test_a_server_that_works_is_waited_for_however_long_that_takes(home, server):
    """Longer than any silence may last."""
    use = Trl(server)
    use.push(1.0)
    use.link.patience.silent_s, use.link.patience.over_s = 1.0, 1.5
    server.plan(v1__completions="work")
    assert use.sampled() == 1.0
    assert signatures(home) == []


def test_a_server_that_is_restarted_while_a_call_hangs_in_it_answers_that_call(home, server):
    """The call did not notice: the server was stopped, not closed."""
    use = Trl(server)
    use.push(6.0)
    os.kill(server.process.pid, signal.SIGSTOP)
    later = threading.Timer(1.0, server.restart)
    later.start()
    assert use.sampled() == 6.0
    later.join()


def test_pushes_within_an_update_of_the_users_own_are_left_alone(home, server):
    """They belong together: one alone is not made again."""
    use = Trl(server)
    with use.client.weight_update():
        use.client.update_named_param("w", torch.tensor([9.0]))
    assert use.sampled() == 9.0
    assert server.state()["calls"]["/start_weight_update"] == 1


def test_low_rank_weights_are_pushed_again_behind_their_base(home, server):
    """ms-swift pushes the base once, and adapters from then on."""
    use = Swift(server)
    use.push(2.0)
    for value in (3.0, 4.0):
        use.client.update_adapter_flattened_param({}, [], torch.tensor([value]))
    server.restart()
    assert use.sampled() == 2.0
    assert server.state()["weights"] == {"w": [2.0], "adapter": [4.0]}


def test_of_several_servers_one_that_is_lost_has_all_joined_again(home, server):
    """The one that lived through it too: its group was with the same client."""
    other = InferenceServer()
    try:
        kind = clients.fresh(clients.SwiftClient)
        swift.guard_client(kind)
        client = kind(base_urls=[server.url, other.url])
        client.init_communicator()
        client.update_named_param("w", torch.tensor([3.0]))
        other.restart()
        assert [one["weight"] for one in client.infer([{}, {}])] == [3.0, 3.0]
        assert server.state()["group"] != other.state()["group"]
    finally:
        other.close()


def test_weights_that_do_not_fit_twice_are_not_kept_and_old_ones_are_never_served(home, server, caplog):
    """Then a restart ends the run, as it would have; with the reason."""
    use = Trl(server, deadline_s=5.0)
    use.link.kept = KeptWeights(room=lambda: 2)
    with caplog.at_level(logging.WARNING, "rayguard"):
        use.push(1.0)
    assert "not enough memory" in caplog.text
    assert use.sampled() == 1.0
    server.restart()
    with pytest.raises(ConnectionError, match="has lost the trained weights"):
        use.sampled()


def test_kept_weights_are_copies_and_the_newest_of_each_name():
    """Whoever pushes may change the tensor afterwards."""
    kept, one = KeptWeights(room=lambda: 1 << 30), torch.tensor([1.0])
    kept.keep("w", "push", ("w", one), {})
    one.fill_(2.0)
    assert [(m, a[1].item()) for m, a, _ in kept.made_again()] == [("push", 1.0)]
    kept.keep("v", "push", ("v", one), {})
    kept.keep("w", "push", ("w", one), {"more": {"x": one}})
    assert [(a[0], a[1].item()) for _, a, _ in kept.made_again()] == [("v", 2.0), ("w", 2.0)]
    assert kept.again("w")[2]["more"]["x"].item() == 2.0
    with pytest.raises(ConnectionError):
        kept.again("nothing")


def test_clients_that_are_made_otherwise_are_left_as_they_are(caplog):
    """A clear line, less done, nothing broken."""

    class Renamed:
        def generate(self, messages):
            return messages

    class Moved(clients.SwiftInferClient):
        def infer(self, requests):
            return requests

    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not trl.guard_client(Renamed)
        assert not swift.guard_client(Moved)
        assert not trl.guard_module(types.ModuleType("trl.generation.vllm_client"))
        assert not swift.guard_module(types.ModuleType("swift.rlhf_trainers.vllm_client"))
    assert "does not know this" in caplog.text
    assert "generate takes messages" in caplog.text
    assert "infer takes requests" in caplog.text
    assert Renamed().generate(1) == Moved.infer(None, 1) == 1


def test_a_class_is_guarded_once(server):
    """Whoever attaches twice: a module's hook, and a user."""
    kind = clients.fresh(clients.SwiftClient)
    module = types.SimpleNamespace(VLLMInferClient=kind.__mro__[1], VLLMClient=kind)
    assert swift.guard_module(module)
    before = dict(vars(kind))
    assert swift.guard_module(module)
    assert dict(vars(kind)) == before


def test_what_is_lost_and_what_is_not():
    """By the names of errors, as they come from three libraries; an answer is no loss."""
    assert is_lost(requests.exceptions.ConnectionError("x"))
    assert is_lost(requests.exceptions.ReadTimeout("x"))
    assert is_lost(ConnectionResetError())
    assert is_lost(RuntimeError("Multiple errors: [ConnectionError(MaxRetryError('...'))]"))
    assert not is_lost(ValueError("temperature must be positive"))
    assert not is_lost(Exception("Request failed: 400, prompt too long"))
    assert not is_of_the_engine(Exception("Request failed: 400, prompt too long"))
    assert is_of_the_engine(Exception("Request failed: 500, EngineDeadError"))
    assert is_of_the_engine(Exception("Server 0 update failed: Internal Server Error"))
    assert not is_of_the_engine(Exception("Server 0 update failed: unknown name"))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to broadcast barrier_id"),
        RuntimeError("Multiple errors: [RuntimeError('Barrier timed out after 30.00 seconds')]"),
        RuntimeError("Multiple errors: [DistNetworkError('failed to send, Broken pipe')]"),
        torch.distributed.DistNetworkError("Connection reset by peer"),
    ],
)
def test_a_worker_that_took_no_weights_may_be_a_dead_engine(error):
    """As vLLM's group for weights and torch's store say it; ms-swift joins them into one text."""
    assert is_of_the_engine(error)
    assert not is_lost(error)


def test_a_look_tells_presence_life_and_progress(server):
    """Of one that is there, one that is frozen and one that is gone."""
    one = look(server.url)
    assert (one.presence, one.progress) == (Presence.UP, 0.0)
    assert one.life.startswith("started at 1")
    assert is_ready(server.url)
    server.restart()
    assert look(server.url).life != one.life
    server.kill()
    assert look(server.url).presence is Presence.DOWN
    assert not is_ready(server.url)
    assert look("http://127.0.0.1:1").presence is Presence.DOWN
    assert look("nonsense").presence is Presence.DOWN


REAL = {
    "trl.generation.vllm_client": {"VLLMClient": clients.TrlClient},
    "swift.rlhf_trainers.vllm_client": {
        "VLLMInferClient": clients.SwiftInferClient,
        "VLLMClient": clients.SwiftClient,
    },
}


@pytest.mark.parametrize("name", REAL)
def test_the_clients_of_these_tests_are_as_the_real_ones(name):
    """Each method that a test's client has, the real one has, with the same parameters."""
    real = pytest.importorskip(name, reason=f"{name.partition('.')[0]} is not installed here")
    for cls, fake in REAL[name].items():
        for method, one in vars(fake).items():
            if inspect.isfunction(one) and (not method.startswith("_") or method == "__init__"):
                found = inspect.signature(inspect.getattr_static(getattr(real, cls), method))
                assert tuple(found.parameters) == tuple(inspect.signature(one).parameters), f"{cls}.{method}"
