"""An OpenRLHF that is not as it is known is left as it is, with one clear line."""

from __future__ import annotations

import logging

import pytest

from rayguard.frameworks import hooks
from rayguard.frameworks.actor_groups import openrlhf
from rayguard.frameworks.openrlhf import attach
from rayguard.ray_internals.actor_classes import written_class


def parts(module):
    classes = written_class(module.RolloutRayActor), module.ActorPPOTrainer
    return [dict(vars(cls)) for cls in classes]


def test_one_as_it_is_known_is_changed_once(module):
    """Asked a second time, it says the same and changes nothing; methods that are not ours stay."""
    before = parts(module)
    assert attach.attach(module)
    after = parts(module)
    changed = {name for name, value in after[0].items() if before[0].get(name) is not value}
    assert changed == {"__init__", "init_process_group", "update_weight", "update_weight_cuda_ipc"}
    assert after[1] == before[1]
    assert attach.attach(module)
    assert parts(module) == after


def test_all_modules_are_waited_for():
    """Those of OpenRLHF alone: what is ours is loaded once one of them is."""
    waits = {}
    hooks.watch_imports(lambda name, then: waits.update({name: then}))
    waited = {name for name in waits if name.startswith("openrlhf")}
    assert waited == {attach.ROLLOUTS, attach.POLICY, openrlhf.MODULE}


def test_the_policys_module_has_its_push_looked_at(module):
    """And nothing else in it."""
    module.__name__ = attach.POLICY
    before = parts(module)
    assert attach.attach(module)
    after = parts(module)
    changed = {name for name, value in after[1].items() if before[1].get(name) is not value}
    assert (changed, after[0]) == ({"broadcast_to_vllm"}, before[0])


async def of_other_parameters(self, *args):
    """Take what may come."""


async def with_another_engine(self, *args, **kwargs):
    """Build it in another way."""
    self.kwargs = kwargs
    self.llm = self.vllm.LLM(**kwargs)


def doctored(module, change):
    cls, trainer = written_class(module.RolloutRayActor), module.ActorPPOTrainer
    if change == "no actor":
        module.RolloutRayActor = cls
    elif change == "no trainer":
        del module.ActorPPOTrainer
    elif change == "sync":
        cls.update_weight = lambda self, name, dtype, shape, empty_cache=False: None
    elif change == "another engine":
        cls.__init__ = with_another_engine
    elif change == "another push":
        trainer.broadcast_to_vllm = lambda self: None
    else:
        setattr(trainer if hasattr(trainer, change) else cls, change, of_other_parameters)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no actor", "RolloutRayActor"),
        ("sync", "RolloutRayActor, some of whose methods are not async"),
        ("another engine", "RolloutRayActor.__init__, without AsyncEngineArgs"),
        ("init_process_group", "RolloutRayActor.init_process_group"),
        ("update_weight", "RolloutRayActor.update_weight"),
        ("update_weight_cuda_ipc", "RolloutRayActor.update_weight_cuda_ipc"),
        ("no trainer", "ActorPPOTrainer"),
        ("another push", "ActorPPOTrainer, without update_weight"),
        ("_init_vllm_sync_group", "ActorPPOTrainer._init_vllm_sync_group"),
    ],
)
def test_one_of_another_shape_is_left_as_it_is(module, change, said, caplog):
    """It says in one line which part it is, and what is missing for it."""
    if said.startswith("ActorPPOTrainer"):
        module.__name__ = attach.POLICY
    doctored(module, change)
    before = dict(vars(module))
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not attach.attach(module)
    assert vars(module) == before
    assert len(caplog.records) == 1
    assert f"({said}" in caplog.text
