"""A rollout actor whose engine dies: it serves on with the weights that were pushed last, or nobody."""

from __future__ import annotations

import asyncio
import logging

import pytest
import torch

from rayguard.errors import WeightsError
from rayguard.frameworks.openrlhf import attach, in_engine, rollout
from rayguard.frameworks.openrlhf.weight_file import WeightFile
from rayguard.harmless import errors
from rayguard.ray_internals.actor_classes import written_class
from rayguard.recovery.incident import Outcome
from rayguard.recovery.journal import default_journal
from rayguard.testing.fakes import answer

NAMES = ("a", "b", "c")


class Stage:
    """One actor, without Ray."""

    def __init__(self, module, folder, **options):
        attach.attach(module)
        cls = written_class(module.RolloutRayActor)
        self.actor = cls.__new__(cls)
        asyncio.run(self.actor.__init__(model=str(folder), num_gpus=1, **options))

    @property
    def rollout(self):
        return rollout.rollout_of(self.actor)

    @property
    def worker(self):
        return self.actor.llm.worker

    def join(self):
        asyncio.run(self.actor.init_process_group("host", 1, 1, 2, "openrlhf", "nccl", False))

    def push(self, value, names=NAMES, *, ipc=False):
        """Push as the policy does, one parameter a call."""
        for name in names:
            self.worker.sent[name] = torch.full((2,), float(value))
            last = name == NAMES[-1]
            if ipc:
                call = self.actor.update_weight_cuda_ipc(name, torch.float32, (2,), {}, empty_cache=last)
            else:
                call = self.actor.update_weight(name, dtype=torch.float32, shape=(2,), empty_cache=last)
            asyncio.run(call)

    def struck(self):
        """Return the tokens of an answer under which the engine died."""
        self.actor.llm.dies_once()
        return self.answers()

    def answers(self):
        (request,) = asyncio.run(self.actor.generate([5], 8))
        return request.tokens


def weights_of(value):
    return ",".join(f"{name}={value:g}" for name in NAMES)


@pytest.fixture
def stage(module, tmp_path):
    made = []

    def make(**options):
        made.append(Stage(module, tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        if one.rollout is not None and one.rollout.slot is not None:
            one.rollout.slot.close(0.0)


def incidents():
    return [one for one in default_journal().read() if one.closed_at]


@pytest.mark.parametrize("ipc", [False, True])
def test_the_next_engine_has_the_weights_that_were_pushed_last(stage, ipc):
    """The answer that was cut goes on; so do those after it, over several deaths."""
    one = stage()
    one.join()
    one.push(1, ipc=ipc)
    one.push(2, ipc=ipc)
    assert one.struck() == answer(5, 8, weights_of(2))
    assert one.answers() == answer(5, 8, weights_of(2))
    assert one.struck() == answer(5, 8, weights_of(2))
    assert [told.outcome for told in incidents()] == [Outcome.RECOVERED] * 2


def test_without_a_push_it_has_those_that_it_was_built_with(stage):
    """Nothing else is current."""
    one = stage()
    assert one.struck() == answer(5, 8)


def test_weights_that_come_by_ipc_need_no_group(stage):
    """The next push goes into the new engine, and is kept too."""
    one = stage()
    one.push(1, ipc=True)
    one.struck()
    one.push(2, ipc=True)
    assert one.struck() == answer(5, 8, weights_of(2))


def test_an_engine_that_dies_within_a_push_answers_nobody_until_a_whole_one(stage, caplog):
    """Half new and half old weights are neither's; it says so, and does not call itself recovered."""
    one = stage()
    one.push(1, ipc=True)
    one.push(2, NAMES[:2], ipc=True)
    with pytest.raises(WeightsError, match="died within a push"):
        one.struck()
    with pytest.raises(WeightsError, match="answers nobody until the next whole push"):
        one.answers()
    assert [told.outcome for told in incidents()] == [Outcome.STATE_LOST]
    with pytest.raises(WeightsError, match="has only a part of it"):
        one.push(2, NAMES[2:], ipc=True)
    with pytest.raises(WeightsError):
        one.answers()
    one.push(3, NAMES[:2], ipc=True)
    with pytest.raises(WeightsError):
        one.answers()
    one.push(3, ipc=True)
    assert one.answers() == answer(5, 8, weights_of(3))


def test_where_there_is_no_memory_it_says_so_once_and_answers_nobody_after_a_death(
    stage, caplog, monkeypatch
):
    """Never the checkpoint's weights in the place of the trained ones."""
    monkeypatch.setattr(in_engine, "WeightFile", lambda *given: WeightFile(*given, room=lambda: 0))
    one = stage()
    with caplog.at_level(logging.WARNING, "rayguard"):
        one.push(1, ipc=True)
        one.push(2, ipc=True)
    assert caplog.text.count("are not kept, for want of memory") == 1
    with pytest.raises(WeightsError, match="not enough memory"):
        one.struck()
    one.push(3, ipc=True)
    assert one.answers() == answer(5, 8, weights_of(3))


def test_a_group_that_died_with_the_engine_refuses_at_once(stage):
    """Whoever pushes makes it anew, and pushes then."""
    one = stage()
    assert one.rollout.group_state == rollout.JOINED
    one.join()
    one.push(1)
    one.struck()
    assert rollout.group_state(one.actor) == rollout.LOST
    with pytest.raises(WeightsError, match="the group by which weights are pushed died with it"):
        one.push(2)
    assert one.answers() == answer(5, 8, weights_of(1))
    one.join()
    assert rollout.group_state(one.actor) == rollout.JOINED
    one.push(3)
    assert one.struck() == answer(5, 8, weights_of(3))


@pytest.mark.parametrize("options", [{"distributed_executor_backend": "ray"}])
def test_workers_that_are_actors_of_their_own_are_left_alone(stage, options, caplog):
    """The engine is what it is without rayguard, and that is said."""
    with caplog.at_level(logging.WARNING, "rayguard"):
        one = stage(**options)
    assert one.rollout is None
    assert "is not guarded: its workers are Ray actors" in caplog.text
    one.push(1, ipc=True)
    assert one.answers() == answer(5, 8, weights_of(1))
    assert rollout.group_state(one.actor) == rollout.JOINED


def test_an_engine_that_takes_no_functions_is_served_from_as_ever(stage, module):
    """Where what is pushed cannot be kept, its successor answers nobody: no worse than without."""
    before = errors["openrlhf"]
    made = module.vllm.AsyncLLMEngine.from_engine_args

    def refusing(given):
        built = made(given)
        built.refuses = "functions are not allowed"
        return built

    module.vllm.AsyncLLMEngine.from_engine_args = refusing
    one = stage()
    assert errors["openrlhf"] == before + 1
    errors["openrlhf"] = before
    assert one.answers() == answer(5, 8)
    one.push(1, ipc=True)
    with pytest.raises(WeightsError, match="functions are not allowed"):
        one.struck()
