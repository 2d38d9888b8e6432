"""A rollout actor on real Ray with the scripted engine: what comes back after the actor itself died.

The same with real vLLM is the demo (``examples/grpo``).
"""

from __future__ import annotations

import argparse
import os
import signal
import threading

import pytest
import ray

import rayguard
from rayguard import GuardPolicy, RestartBudget
from rayguard.errors import GaveUpError
from rayguard.ray_internals.gcs_tables import actor_row
from rayguard.recovery.incident import Outcome, incident_of
from rayguard.testing.fakes import FakeEngineDeadError, FakeLLM, answer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

FAST = GuardPolicy(standby=None, engine_budget=RestartBudget(max_restarts=4, within_s=600.0))


@ray.remote(num_cpus=0)
class Trainer:
    """Holds the current weights."""

    def __init__(self):
        self.version = 1

    def step(self):
        self.version += 1

    def weights(self):
        import torch

        return rayguard.Weights.from_tensors(str(self.version), {"w": torch.full((2,), float(self.version))})


@ray.remote(num_cpus=0)
class Rollout(rayguard.RolloutMixin):
    """Owns a scripted engine that dies as often as it is told, at a prompt's third token."""

    def __init__(self, trainer, kills):
        self.left = kills
        self.start_engine(weights=lambda: ray.get(trainer.weights.remote(), timeout=30), policy=FAST)

    def build_engine(self, settings):
        return FakeLLM(self.kill, **settings.as_kwargs(max_num_seqs=16))

    def kill(self, _llm, request):
        if self.left and len(request.tokens) >= 2:
            self.left -= 1
            raise FakeEngineDeadError("EngineCore encountered an issue")

    def dies_once_more(self):
        self.left += 1

    def generate(self, prompts):
        return [(r.tokens, r.error) for r in self.with_engine(lambda engine: engine.generate(prompts))]

    def slow(self, prompts, seconds):
        threading.Event().wait(seconds)
        return os.getpid(), self.generate(prompts)

    def status(self):
        return {**self.engine_status(), "pid": os.getpid(), "left": self.left}


def journal():
    from rayguard.recovery.journal import default_journal

    return default_journal().read()


def get(ref):
    return ray.get(ref, timeout=150)


def test_a_restarted_actor_has_the_current_weights_and_answers_the_call_that_was_cut():
    """SIGKILL of the actor: Ray repeats the call, the new engine serves what is current by then."""
    trainer = Trainer.remote()
    rollout = Rollout.remote(trainer, 0)
    before = get(rollout.status.remote())
    assert before["weight_version"] == "1"
    cut = rollout.slow.remote([1, 2], 1.0)
    get(trainer.step.remote())
    os.kill(before["pid"], signal.SIGKILL)
    pid, answers = get(cut)
    assert pid != before["pid"]
    assert [tokens for tokens, _ in answers] == [answer(p, 16, "2") for p in (1, 2)]
    died = [i for i in journal() if i.kind == "actor_died"]
    assert died[-1].outcome is Outcome.RECOVERED
    assert str(before["pid"]) in died[-1].cause
    assert died[-1].tokens_lost is None, "nobody knows: the count died with its process"
    assert any("Rollout had" in note and "tokens" in note for note in died[-1].notes), died[-1].notes


def test_a_restarted_actor_takes_up_its_safe_settings():
    """What was learned in one life is known in the next."""
    trainer = Trainer.remote()
    rollout = Rollout.remote(trainer, 1)
    assert get(rollout.generate.remote([1]))[0][0] == answer(1, 16, "1")
    get(rollout.dies_once_more.remote())
    assert get(rollout.generate.remote([2]))[0][0] == answer(2, 16, "1")  # of another request: not its fault
    learned = get(rollout.status.remote())
    assert learned["rung"] >= 1
    os.kill(learned["pid"], signal.SIGKILL)
    again = get(rollout.status.remote())
    assert again["pid"] != learned["pid"]
    assert again["settings"] == learned["settings"]
    assert again["epoch"] == 1


def test_a_hopeless_engine_ends_in_one_error_that_crosses_ray_whole():
    """Engine restarts, process restarts, and then the truth: cause, what was tried, what to do."""
    trainer = Trainer.remote()
    rollout = Rollout.options(max_restarts=0, max_task_retries=0).remote(trainer, 10**6)
    assert "quarantined" in get(rollout.generate.remote([1]))[0][1], "one request alone is the suspect"
    with pytest.raises(GaveUpError, match="FakeEngineDeadError") as caught:
        get(rollout.generate.remote([2, 3]))
    assert caught.value.tried
    assert caught.value.advice
    incident = incident_of(caught.value)
    assert incident is not None
    assert incident.outcome is Outcome.FAILED
    assert incident.target == "Rollout"


@ray.remote(num_cpus=0)
class Leaves(rayguard.RolloutMixin):
    """Its recipe reads arguments, as a script does."""

    def __init__(self):
        self.start_engine(policy=FAST)

    def build_engine(self, settings):
        argparse.ArgumentParser().parse_args(["--no-such-option"])


def test_a_recipe_that_exits_is_answered_with_that_at_once():
    """Ray took it for the death of a process that is to be begun anew, for ever, without a word."""
    with pytest.raises(
        ray.exceptions.ActorDiedError, match=r"build_engine ended with SystemExit\(2\), at build_en"
    ):
        get(Leaves.remote().engine_status.remote())
    (incident,) = [i for i in journal() if i.target.startswith("Leaves")]
    assert "SystemExit(2)" in incident.cause
    assert incident.outcome is Outcome.FAILED


def test_the_mixin_sets_restart_options_only_where_the_user_set_none():
    """Ray repeats and restarts by default; explicit options win."""
    trainer = Trainer.remote()
    default = Rollout.remote(trainer, 0)
    chosen = Rollout.options(max_restarts=3).remote(trainer, 0)
    get([default.status.remote(), chosen.status.remote()])
    assert actor_row(default._actor_id.hex()).max_restarts == -1
    assert actor_row(chosen._actor_id.hex()).max_restarts == 3


@ray.remote(num_cpus=0)
class WithoutRecipe(rayguard.RolloutMixin):
    """Its recipe has another name."""

    def __init__(self):
        self.start_engine()

    def build_engin(self, settings):
        return None


@ray.remote(num_cpus=0)
class WithoutSettings(rayguard.RolloutMixin):
    """Its recipe does not take its settings."""

    def __init__(self):
        self.start_engine()

    def build_engine(self):
        return None


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (WithoutRecipe, "needs build_engine.*its build_engin is not"),
        (WithoutSettings, "cannot be called with the settings"),
    ],
)
def test_a_recipe_that_is_not_there_is_told_where_the_actor_is_created(cls, said):
    """And not in a worker's log, by Ray's two tracebacks."""
    with pytest.raises(rayguard.ConfigError, match=said) as caught:
        cls.remote()
    assert "\n" not in str(caught.value)


def test_a_pool_names_the_option_that_was_meant():
    """What is not its own goes to the actors' ``__init__``, which cannot take it."""
    with pytest.raises(rayguard.ConfigError, match=r"Did you mean RolloutPool\(engines=\.\.\.\)\?$"):
        rayguard.RolloutPool(Rollout, None, 0, engins=2)
    with pytest.raises(rayguard.ConfigError, match="needs build_engine"):
        rayguard.RolloutPool(WithoutRecipe)
