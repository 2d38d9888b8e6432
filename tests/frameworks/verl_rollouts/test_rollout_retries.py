"""A request whose server is lost is made again on another one: on the small interface, without Ray."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from rayguard.frameworks import hooks
from rayguard.frameworks.verl_rollouts import client, replicas
from rayguard.frameworks.verl_rollouts.lost_servers import Losses, RolloutLimits, TakenOut, loss_of
from rayguard.recovery.incident import incident_of
from rayguard.recovery.journal import default_journal

DIED = ActorDiedError()


class EngineDeadError(Exception):
    """Named as vLLM's."""


def task_error(cause):
    return RayTaskError("generate", "a traceback", cause).as_instanceof_cause()


class Job:
    """Some servers behind a balancer, and a client that is looked after."""

    def __init__(self, module, names="ab", limits=None, **rollout):
        assert client.attach(module, limits)
        self.servers = {name: module.Server(name) for name in names}
        self.handles = {name: module.Handle(one) for name, one in self.servers.items()}
        self.balancer = module.GlobalRequestLoadBalancer(self.handles)
        backend = SimpleNamespace(backend=rollout.pop("backend", "nccl"))
        config = SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=backend, **rollout))
        )
        self.client = module.LLMServerClient(config, module.Handle(self.balancer))

    def ask(self, request="r"):
        """Return which server has answered."""
        answer = self.client.generate(request, prompt_ids=[1], sampling_params={})
        return asyncio.run(answer).token_ids[-1]


def told():
    return [(one.target, one.outcome.value) for one in default_journal().read()]


@pytest.mark.parametrize("error", [DIED, task_error(EngineDeadError("gone"))], ids=["actor", "engine"])
def test_a_request_is_answered_by_another_and_nobody_is_sent_to_the_lost_one(module, error):
    """Its conversation follows the new server, and one incident tells it."""
    job = Job(module)
    job.servers["a"].plan = [error]
    assert [job.ask(), job.ask(), job.ask("another")] == ["b"] * 3
    assert job.balancer.get_all_servers() == ["b"]
    assert job.balancer._inflight_requests == {"b": 0}
    assert told() == [("verl a", "recovered")]


def test_many_requests_of_one_server_tell_it_once(module):
    """All were with it as it died."""
    job = Job(module, "abc")
    job.balancer._request_id_to_server = {f"r{one}": "a" for one in range(5)}
    job.handles["a"].dead = DIED

    async def all_of_them():
        asked = [job.client.generate(f"r{one}", prompt_ids=[1], sampling_params={}) for one in range(5)]
        return await asyncio.gather(*asked)

    assert {one.token_ids[-1] for one in asyncio.run(all_of_them())} <= {"b", "c"}
    assert told() == [("verl a", "recovered")]


def test_where_no_other_is_left_the_caller_gets_its_own_error(module):
    """The last one stays with the balancer: an empty one is waited for without end by some clients."""
    job = Job(module, "a")
    job.servers["a"].plan = [ActorDiedError()]
    with pytest.raises(ActorDiedError) as caught:
        job.ask()
    assert job.balancer.get_all_servers() == ["a"]
    assert incident_of(caught.value).notes == ("no other replica is left",)
    assert told() == [("verl a", "failed")]


def test_a_request_that_ends_its_servers_does_not_end_them_all(module):
    """After two more it goes to its caller."""
    job = Job(module, "abcde")
    for server in job.servers.values():
        server.plan = [ActorDiedError()] * 9
    with pytest.raises(ActorDiedError):
        job.ask()
    assert len(job.balancer.get_all_servers()) == 2
    assert [outcome for _, outcome in told()] == ["failed"] * 3


def test_after_its_deadline_no_request_is_made_again(module):
    """A balancer that is slow, too."""
    job = Job(module, limits=RolloutLimits(within_s=-1.0))
    job.servers["a"].plan = [ActorDiedError()]
    with pytest.raises(ActorDiedError):
        job.ask()


@pytest.mark.parametrize(
    "error", [ValueError("too long"), task_error(ValueError("too long")), task_error(ActorDiedError())]
)
def test_other_errors_are_the_callers(module, error):
    """Also that of another actor which the server met: it lives."""
    job = Job(module)
    job.servers["a"].plan = [error]
    with pytest.raises(type(error)):
        job.ask()
    assert (job.servers["a"].asked, job.servers["b"].asked) == (["r"], [])
    assert told() == []


@pytest.mark.parametrize(("names", "backend"), [("ab", "nccl"), ("a", "nccl"), ("ab", "naive")])
def test_an_unreachable_server_that_has_its_weights_stays(module, names, backend):
    """The same process answers again, and is asked again: nothing was lost."""
    job = Job(module, names, backend=backend)
    job.servers["a"].plan = [ActorUnavailableError("a blip", None)]
    assert job.ask() == "a"
    assert job.balancer.get_all_servers() == list(names)
    assert told() == [("verl a", "recovered")]


@pytest.mark.parametrize("how", ["blank", "named requests"])
def test_an_unreachable_server_without_proof_is_left_out_for_good(module, how):
    """One that Ray started anew has the weights of the checkpoint; a request's name may still run there."""
    job = Job(module, full_determinism=how == "named requests")
    job.servers["a"].plan = [ActorUnavailableError("restarting", None)]
    if how == "blank":
        job.servers["a"].global_steps = None
    assert job.ask() == "b"
    assert job.balancer.get_all_servers() == ["b"]


def test_what_a_server_answers_that_lost_its_weights_is_not_used(module):
    """It had them in its answer before, and has none now: it was started anew unseen."""
    job = Job(module)
    assert job.ask() == "a"
    job.servers["a"].global_steps = None
    assert job.ask() == "b"
    assert job.balancer.get_all_servers() == ["b"]
    assert told() == [("verl a", "recovered")]


def test_a_server_without_steps_from_the_start_is_used(module):
    """Nobody has pushed weights: there are none to lose."""
    job = Job(module)
    job.servers["a"].global_steps = None
    assert [job.ask(), job.ask()] == ["a", "a"]


def test_a_lost_server_that_is_put_back_is_taken_out_again_and_not_told_again(module):
    """A trainer adds all that it knows after each phase; that is not the request's doing."""
    job = Job(module, limits=RolloutLimits(repeats=1))
    job.handles["a"].dead = DIED
    assert job.ask() == "b"
    for number in range(4):
        job.balancer.add_servers({"a": job.handles["a"]})
        job.balancer._inflight_requests["b"] = 1  # so that the lost one is chosen
        assert job.ask(f"new {number}") == "b"
    assert job.balancer.get_all_servers() == ["b"]
    assert told() == [("verl a", "recovered")]


def test_another_server_at_the_same_address_is_not_taken_out(module):
    """The error of an old one arrives late."""
    job = Job(module)
    old = job.handles["a"]
    old.dead = DIED
    job.balancer._request_id_to_server["r"] = "a"

    async def late():
        found = await job.client._load_balancer.acquire_server.remote(request_id="r")
        job.balancer._servers["a"] = module.Handle(job.servers["a"])
        return found

    first = asyncio.run(late())
    real, job.balancer.acquire_server = (
        job.balancer.acquire_server,
        lambda request_id: once.pop() if once else real(request_id),
    )
    once = [first]
    assert job.ask() == "a"
    assert job.balancer.get_all_servers() == ["a", "b"]


def test_where_the_trainer_would_call_the_lost_one_nothing_is_made_again(module):
    """It would end at its next sleep with the same error, after the rest of a phase."""
    job = Job(module, backend="naive")
    job.servers["a"].plan = [ActorDiedError()]
    with pytest.raises(ActorDiedError) as caught:
        job.ask()
    assert "naive" in incident_of(caught.value).notes[0]
    assert job.balancer.get_all_servers() == ["a", "b"]


def test_a_balancer_that_is_gone_hands_the_error_on(module):
    """And its own error is not taken for a server's."""
    job = Job(module)
    job.client._load_balancer.dead = ActorDiedError()
    with pytest.raises(ActorDiedError):
        job.ask()
    assert told() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: delattr(m, "LLMServerClient"), "LLMServerClient"),
        (
            lambda m: delattr(m.GlobalRequestLoadBalancer, "remove_servers"),
            "GlobalRequestLoadBalancer.remove_servers",
        ),
        (
            lambda m: setattr(m.LLMServerClient, "generate", lambda self, request_id: 1),
            "LLMServerClient.generate",
        ),
        (
            lambda m: setattr(m.LLMServerClient, "_acquire_server", m.auto_await),
            "LLMServerClient._acquire_server",
        ),
    ],
)
def test_rollouts_of_another_shape_are_not_touched(module, change, said, caplog):
    """It says in one line which part it is."""
    change(module)
    before = dict(vars(getattr(module, "LLMServerClient", object)))
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not client.attach(module)
    assert dict(vars(getattr(module, "LLMServerClient", object))) == before
    assert len(caplog.records) == 1
    assert f"({said})" in caplog.text


def test_losses_count_what_the_request_may_have_done():
    """One that was known as lost is not counted against it."""
    new, back = TakenOut(first=True, back=False, others=2), TakenOut(first=False, back=True, others=2)
    assert Losses().with_one(new).with_one(back) == Losses(struck=1, returned=1)
    assert Losses().with_one(None) == Losses(struck=1)


def test_an_error_of_another_actor_is_no_loss():
    """Ray's error names its actor."""
    error = ActorUnavailableError("a blip", bytes(16))
    assert loss_of(error, "00" * 16) is not None
    assert loss_of(error, "11" * 16) is None


def test_the_hooks_follow_the_imports_of_both_modules_of_verl(module):
    """As a worker of a watched job has them attached."""
    waiting = {}
    hooks.watch_imports(waiting.setdefault)
    waiting[client.MODULE](module)
    waiting[replicas.MODULE](module)
    assert vars(module)["__rayguard_rollouts__"]
    assert vars(module)["__rayguard_replicas__"]
