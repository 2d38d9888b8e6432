"""A lost replica gets no weights, is made again beside the training, and serves with the current ones."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

from rayguard.cluster.plugin import config, worker_hook
from rayguard.frameworks import hooks
from rayguard.frameworks.verl_rollouts import client, rebuilds, replicas
from rayguard.frameworks.verl_rollouts.rebuild_plan import RebuildLimits, construction_of, why_not_made_again
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.journal import default_journal

DIED = ActorDiedError()
LIMITS = RebuildLimits(budget=RestartBudget(max_restarts=2, within_s=60.0), again_s=0.0)


class Job:
    """Three replicas behind a balancer, a manager of their weights, and what is made beside the training."""

    def __init__(self, module, monkeypatch, number=3, make=None, **engine):
        self.module, self.begun, self.watched = module, [], []
        monkeypatch.setattr(rebuilds, "_job_goes_on", lambda: True)
        assert client.attach_rebuilding(module)
        book = rebuilds.ReplicaRebuilds(LIMITS, make or self.made, self.begun.append)
        assert replicas.attach(module, book=lambda: book, watch=lambda *args: self.watched.append(args))
        self.servers = module.LLMServerManager(SimpleNamespace(of="all"), number)
        asyncio.run(self.servers._initialize_llm_servers())
        asyncio.run(self.servers._init_global_load_balancer())
        self.balancer = self.servers.global_load_balancer.instance
        self.manager = module.CheckpointEngineManager("nccl", self.servers.rollout_replicas, **engine)
        self.step, self.update_s = 0, []

    def made(self, lost, _):
        found = type(lost)(**construction_of(lost))
        asyncio.run(found.init_standalone())
        return found

    def update(self):
        self.step += 1
        assert self.manager.update_weights(global_steps=self.step) == {"step": self.step}

    def kill(self, rank):
        """Kill the server of the replica that serves with this rank."""
        found = next(one for one in self.servers.rollout_replicas if one.replica_rank == rank)
        found.servers[0].dead = DIED
        return found

    def work(self):
        """Do what was begun beside the training."""
        todo, self.begun[:] = list(self.begun), []
        for run in todo:
            run()

    def steps(self):
        """Return the step of each server that is sent requests: none may have a stale one."""
        return {one.instance.global_steps for one in self.balancer._servers.values()}


def told():
    return [(one.target, one.outcome.value) for one in default_journal().read()]


@pytest.fixture
def job(module, monkeypatch):
    """Weights were pushed once."""
    found = Job(module, monkeypatch)
    found.update()
    return found


def test_a_lost_replica_serves_again_once_an_update_has_reached_the_new_one(job):
    """Before that it is asked by nobody, and after it the capacity is what it was."""
    lost, addresses = job.kill(1), list(job.servers.server_addresses)
    job.update()
    assert job.manager.pushed[-1] == [0, 2]
    job.work()
    new = next(one for one in job.manager.replicas if one.replica_rank == 2)
    assert lost.server_address in job.balancer._servers, "a client has not met it yet"
    assert len(job.balancer._servers) == 3
    job.update()
    assert job.manager.pushed[-1] == [0, 2, 1]
    assert sorted(job.balancer._servers) == sorted(job.servers.server_addresses)
    assert lost.server_address not in job.servers.server_addresses
    assert [one in addresses for one in job.servers.server_addresses] == [True, False, True]
    assert job.steps() == {3}
    assert told() == [("verl replica 1", "recovered")]
    made = job.servers.rollout_replicas[1]
    assert made is not lost
    assert construction_of(made) == construction_of(lost)
    assert new.replica_rank == 2


def test_the_new_one_is_killed_again_and_the_budget_ends_it(job):
    """Twice within the minute, as the limits say; the job goes on with the others."""
    for _ in range(2):
        job.kill(1)
        job.update()
        job.work()
        job.update()
        assert job.steps() == {job.step}
    job.kill(1)
    job.update()
    assert job.begun == []
    assert job.manager.pushed[-1] == [0, 2]
    assert [outcome for _, outcome in told()] == ["recovered", "recovered", "failed"]


def test_one_that_dies_before_it_serves_is_made_again(job):
    """It was made, and is dead as the update begins that it was made for."""
    job.kill(1)
    job.update()
    job.work()
    _ready(job)[0].servers[0].dead = DIED
    job.update()
    assert job.manager.pushed[-1] == [0, 2]
    job.work()
    job.update()
    assert job.steps() == {job.step}
    assert len(job.balancer._servers) == 3
    assert [outcome for _, outcome in told()] == ["failed", "recovered"]


def _ready(job):
    book = replicas._rebuilds[job.manager]
    return [one.made for one in book._ready]


def test_what_fails_is_tried_again_within_the_budget(module, monkeypatch):
    """And then given up, with its last error."""
    job = Job(module, monkeypatch, make=lambda *_: (_ for _ in ()).throw(TimeoutError("no room")))
    job.update()
    job.kill(1)
    job.update()
    job.work()
    job.update()
    assert job.manager.pushed[-1] == [0, 2]
    assert told() == [("verl replica 1", "failed")]
    assert "TimeoutError: no room" in default_journal().read()[-1].notes[0]


def test_nothing_is_told_where_the_job_ends_meanwhile(job, monkeypatch):
    """Ray is gone: what is being made went with it."""
    monkeypatch.setattr(rebuilds, "_job_goes_on", lambda: False)
    book = replicas._rebuilds[job.manager]
    book._make = lambda *_: (_ for _ in ()).throw(ConnectionError("gone"))
    job.kill(1)
    job.update()
    job.work()
    assert told() == [("verl replica 1", "open")]


def test_an_update_that_fails_tells_its_new_replica_and_hands_the_error_on(job):
    """It has no proof of its weights, and serves nobody."""
    job.kill(1)
    job.update()
    job.work()
    job.manager.error = RuntimeError("a collective timed out")
    with pytest.raises(RuntimeError, match="collective"):
        job.update()
    assert len([one for one in job.balancer._servers.values() if one.dead is None]) == 2
    assert told() == [("verl replica 1", "failed")]


@pytest.mark.parametrize("how", ["another step", "no answer of the balancer"])
def test_without_proof_it_serves_only_after_a_later_update(job, how, monkeypatch):
    """A server that does not say the update's step, or a balancer that cannot be reached."""
    job.kill(1)
    job.update()
    job.work()
    made = _ready(job)[0]
    if how == "another step":
        monkeypatch.setattr(
            type(made.servers[0].instance),
            "global_steps",
            property(lambda _: 1, lambda *_: None),
            raising=False,
        )
    else:
        job.servers.global_load_balancer.dead = DIED
    job.update()
    assert made.server_address not in job.balancer._servers
    monkeypatch.undo()
    job.servers.global_load_balancer.dead = None
    job.update()
    assert made.server_address in job.balancer._servers
    assert told()[-1] == ("verl replica 1", "recovered")


def test_a_trainer_that_puts_the_dead_one_back_does_not_have_it_made_twice(job):
    """It is taken out again."""
    lost = job.kill(1)
    job.update()
    job.manager.add_replicas([lost])
    job.update()
    assert len(job.begun) == 1
    job.work()
    job.update()
    assert (job.manager.pushed[-1], job.steps()) == ([0, 2, 1], {job.step})
    assert told() == [("verl replica 1", "recovered")]


def test_a_death_between_two_updates_is_seen_before_the_next(job):
    """So that the next update finds the new one. Nothing is done while one runs: it looks itself."""
    manager, _, look = job.watched[0]
    lost = job.kill(1)
    book = replicas._rebuilds[manager]
    book._updating = True
    look(manager)
    assert lost in manager.replicas
    book._updating = False
    look(manager)
    assert lost not in manager.replicas
    job.work()
    job.update()
    assert (job.manager.pushed[-1], job.steps()) == ([0, 2, 1], {2})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda job, lost: setattr(lost, "rollout_mode", SimpleNamespace(value="hybrid")), "shares its GPUs"),
        (lambda job, lost: setattr(job.module.CheckpointEngine, "wire_format", "delta_flush"), "delta_flush"),
        (lambda job, lost: job.servers.rollout_replicas.remove(lost), "LLMServerManager"),
        (
            lambda job, lost: setattr(lost.config, "disaggregation", SimpleNamespace(enabled=True)),
            "disaggregated",
        ),
        (lambda job, lost: setattr(lost.resource_pool, "pgs", None), "resource_pool.pgs"),
        (lambda job, lost: delattr(job.module.CheckpointEngineManager, "add_replicas"), "add_replicas"),
        (lambda job, lost: setattr(type(lost), "init_standalone", None), "init_standalone"),
        (
            lambda job, lost: setattr(type(lost), "__init__", lambda self, replica_rank, port: None),
            "with port",
        ),
    ],
)
def test_what_is_not_as_known_is_left_out_as_before_and_said(job, change, said, caplog):
    """In one line; the others get their weights."""
    lost = job.kill(1)
    job.manager.replicas = list(job.manager.replicas)
    change(job, lost)
    with caplog.at_level(logging.WARNING, "rayguard"):
        job.update()
    assert (job.manager.pushed[-1], job.begun) == ([0, 2], [])
    assert len([line for line in caplog.messages if "is not made again" in line and said in line]) == 1


def test_a_module_without_a_known_server_manager_is_told_once(module, monkeypatch, caplog):
    """Requests and updates are looked after all the same."""
    module.LLMServerManager._init_global_load_balancer = lambda self: None
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert client.attach_rebuilding(module)
    assert "(LLMServerManager._init_global_load_balancer)" in caplog.text


def test_who_is_made_again_is_judged_by_the_replica_alone(module, monkeypatch):
    """A replica of verl's shape, placed, with a manager that pushes whole weights."""
    lost = module.Replica(0, SimpleNamespace(), "model", name_suffix="x")
    asyncio.run(lost.init_standalone())
    manager = module.CheckpointEngineManager("nccl", [lost])
    assert "shares" in why_not_made_again(SimpleNamespace(backend="naive"), lost, is_placed=True)
    assert why_not_made_again(manager, lost, is_placed=True) == ""
    monkeypatch.delattr(module, "placement_group")
    assert "placement_group" in why_not_made_again(manager, lost, is_placed=True)
    assert construction_of(lost)["name_suffix"] == "x"


# -- the group over which weights go


@pytest.mark.parametrize("engine", [{}, {"rebuild_group": True}])
def test_a_kept_group_follows_its_members(module, monkeypatch, engine):
    """Engines keep it, and refuse another number; those told to make it anew are left alone."""
    job = Job(module, monkeypatch, **engine)
    job.update()
    job.update()
    job.kill(1)
    job.update()
    job.work()
    job.update()
    assert job.manager.pushed == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2, 1]]
    assert all(one.rebuild_group is bool(engine) for one in job.manager.engines.values())


def test_without_it_a_smaller_group_is_refused(module):
    """As verl's engines do: the fault that the test before is about."""
    found = module.CheckpointEngineManager("nccl", [])
    two = module.Group([module.Handle(object()) for _ in range(2)], found.engines)
    found.build_process_group(two)
    with pytest.raises(AssertionError):
        found.build_process_group(module.Group(two._workers[:1], found.engines))


# -- who is left out


def replica(module, rank):
    found = module.Replica(rank, SimpleNamespace(), "model")
    asyncio.run(found.init_standalone())
    return found


def watched_by_none(*_):
    raise AssertionError("nothing is made again: nobody looks between two updates")


def attached(module):
    return replicas.attach(module, watch=watched_by_none)


def test_nobody_is_made_again_unless_it_is_asked_for(module, caplog):
    """The default: the others get their weights, over a group of their own, and no more is said or done."""
    assert attached(module)
    found = [replica(module, rank) for rank in range(3)]
    manager = module.CheckpointEngineManager("nccl", found)
    manager.update_weights(global_steps=1)
    found[1].servers[0].dead = DIED
    with caplog.at_level(logging.WARNING, "rayguard"):
        manager.update_weights(global_steps=2)
        manager.update_weights(global_steps=3)
    assert manager.pushed == [[0, 1, 2], [0, 2], [0, 2]]
    assert manager not in replicas._rebuilds
    assert [line for line in caplog.messages if "rayguard" in line] == [
        "rayguard: 1 of 3 replicas are lost (1): weights go to the others from now on"
    ]
    assert told() == []


def test_it_is_asked_for_by_a_key_of_the_plugin(monkeypatch):
    """Off unless it is said; then two hooks are others."""
    found = []
    for given in ({}, {"new_replicas": True}):
        waiting = {}
        monkeypatch.setattr(
            "rayguard.frameworks.after_import.after_import",
            lambda name, then, to=waiting: to.update({name: then}),
        )
        monkeypatch.setattr(hooks, "loaded_late", lambda hook: hook)
        worker_hook.follow_frameworks(config.asked(given))
        found.append(waiting)
    assert found[0] == hooks.HOOKS
    assert found[1] == {**hooks.HOOKS, **hooks.NEW_REPLICAS}
    assert set(hooks.NEW_REPLICAS) == {client.MODULE, replicas.MODULE}


def test_the_hooks_of_new_replicas_have_them_made_again(module):
    """As a worker of a job that asks for it has them attached."""
    waiting = {}
    hooks.watch_imports(waiting.setdefault, new_replicas=True)
    waiting[client.MODULE](module)
    waiting[replicas.MODULE](module)
    assert vars(module)["__rayguard_rollouts__"]
    assert vars(module)["__rayguard_server_managers__"]
    found = [replica(module, rank) for rank in range(2)]
    manager = module.CheckpointEngineManager("nccl", found)
    manager.update_weights(global_steps=1)
    assert isinstance(replicas._rebuilds[manager], rebuilds.ReplicaRebuilds)


@pytest.mark.parametrize("part", ["servers", "workers", "engine"])
def test_weights_go_to_the_replicas_that_are_there(module, part):
    """A lost one is taken from the manager's list, by its own means."""
    assert attached(module)
    found = [replica(module, rank) for rank in range(3)]
    if part == "engine":
        found[1].servers[0].instance.engine = SimpleNamespace(errored=True)
    else:
        getattr(found[1], part)[0].dead = DIED
    manager = module.CheckpointEngineManager("nccl", found)
    assert manager.update_weights(global_steps=4) == {"step": 4}
    assert manager.pushed == [[0, 2]]


@pytest.mark.parametrize(("backend", "dead"), [("nccl", 2), ("naive", 1)])
def test_weights_are_pushed_as_ever_where_nothing_can_be_left_out(module, backend, dead):
    """All are lost, or trainer and rollouts share their GPUs."""
    assert attached(module)
    found = [replica(module, rank) for rank in range(2)]
    for one in found[:dead]:
        one.servers[0].dead = DIED
    manager = module.CheckpointEngineManager(backend, found)
    if backend == "naive":
        manager.update_weights(4)
    else:
        with pytest.raises(ActorDiedError):  # as bare
            manager.update_weights(4)
    assert manager.replicas == found


def test_a_caller_that_waits_for_an_update_still_may(module):
    """The wrapper of verl looks at who calls."""
    assert attached(module)
    manager = module.CheckpointEngineManager("nccl", [replica(module, 0)])

    async def waits():
        return await manager.update_weights(global_steps=5)

    assert asyncio.run(waits()) == {"step": 5}


@pytest.mark.parametrize("name", ["update_weights", "remove_replicas"])
def test_a_manager_of_another_shape_is_not_touched(module, name, caplog):
    """It says in one line which part it is."""
    setattr(module.CheckpointEngineManager, name, lambda self: None)
    before = dict(vars(module.CheckpointEngineManager))
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not attached(module)
    assert dict(vars(module.CheckpointEngineManager)) == before
    assert f"(CheckpointEngineManager.{name})" in caplog.text


@pytest.mark.parametrize("name", ["build_process_group"])
def test_a_group_of_another_shape_is_not_touched(module, name, caplog):
    """The rest is."""
    bare = lambda self, rollout: None  # noqa: E731 - of another shape
    setattr(module.CheckpointEngineManager, name, bare)
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert attached(module)
    assert vars(module.CheckpointEngineManager)[name] is bare
    assert f"(CheckpointEngineManager.{name})" in caplog.text
