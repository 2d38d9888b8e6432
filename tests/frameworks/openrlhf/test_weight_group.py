"""The group for weights is made anew before a push where an engine lost it, and only there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rayguard.errors import RecoveryTimeoutError
from rayguard.frameworks.openrlhf import attach, weight_group
from rayguard.frameworks.openrlhf.rollout import JOINED, LOST, REBUILDING
from rayguard.recovery.incident import Outcome
from rayguard.recovery.journal import default_journal


class Engine:
    def __init__(self, *states):
        self.states, self.pushed = list(states), 0

    def update_weight(self):
        self.pushed += 1


@pytest.fixture
def trainer(module, monkeypatch):
    module.__name__ = attach.POLICY
    assert attach.attach(module)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(weight_group, "_POLL_S", 0.01)
    monkeypatch.setattr(weight_group, "_states", lambda engines: [one.states.pop(0) for one in engines])
    vllm = SimpleNamespace(sync_backend="nccl", sync_with_ray=False)

    def make(*engines):
        return module.ActorPPOTrainer(SimpleNamespace(args=SimpleNamespace(vllm=vllm)), list(engines))

    return make


def told():
    return [one.outcome for one in default_journal().read() if one.closed_at]


def test_a_group_that_is_whole_is_left_as_it_is(trainer):
    """No more than a question."""
    one = trainer(Engine(JOINED), Engine(JOINED))
    one.broadcast_to_vllm()
    assert one.done == ["pushed"]
    assert told() == []


def test_one_that_an_engine_lost_is_made_anew_before_the_push(trainer):
    """Once the engine has been built again."""
    one = trainer(Engine(JOINED, JOINED), Engine(REBUILDING, LOST))
    one.broadcast_to_vllm()
    assert one.done == ["nccl", "pushed"]
    assert told() == [Outcome.RECOVERED]


def test_where_it_cannot_be_made_nothing_is_pushed(trainer):
    """Some engines may be in the new group and some in the old: whoever pushed would wait for ever."""
    one = trainer(Engine(LOST))

    def fails(backend):
        raise TimeoutError("nobody came")

    one._init_vllm_sync_group = fails
    with pytest.raises(TimeoutError):
        one.broadcast_to_vllm()
    assert one.done == []
    assert told() == [Outcome.FAILED]


@pytest.mark.parametrize("how", ["by ipc", "by ray", "another rank", "no engine"])
def test_who_has_no_such_group_is_not_asked(trainer, how, monkeypatch):
    """The push is as ever."""
    one = trainer() if how == "no engine" else trainer(Engine())
    one.use_cuda_ipc = how == "by ipc"
    one.strategy.args.vllm.sync_with_ray = how == "by ray"
    if how == "another rank":
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    one.broadcast_to_vllm()
    assert one.done == ["pushed"]


def test_an_engine_that_does_not_come_back_is_waited_for_until_a_deadline(trainer):
    """Then the push tells, as it does without us."""
    engine = Engine(*[REBUILDING] * 1000)
    with pytest.raises(RecoveryTimeoutError, match="not built again"):
        weight_group.lost_by([engine], 0.05, 0.01)


def test_an_actor_that_is_dead_is_told_of_by_the_push_itself(trainer, monkeypatch, caplog):
    """The question's own error is not the caller's."""

    def dead(engines):
        raise RuntimeError("the actor died")

    monkeypatch.setattr(weight_group, "_states", dead)
    one = trainer(Engine())
    one.broadcast_to_vllm()
    assert one.done == ["pushed"]
    assert "group for weights failed" in caplog.text
