"""The actor class that a pool makes of the user's: guarded as the user said."""

from __future__ import annotations

import pytest
import ray

import rayguard
from rayguard.actors.mark import mark_of
from rayguard.errors import ConfigError
from rayguard.pool.actors.ray_actors import RayActors, _refuse_arguments, actor_class

POLICY = rayguard.GuardPolicy(standby="engine")


@rayguard.guard(policy=POLICY)
class Rollout(rayguard.RolloutMixin):
    """Owns an engine."""

    def build_engine(self, settings):
        raise NotImplementedError


def test_the_users_policy_holds_in_a_pool():
    """The pool's subclass is no new class to the user."""
    made = actor_class(Rollout, {"num_cpus": 0}).__ray_metadata__.modified_class
    assert mark_of(made).policy is POLICY
    assert mark_of(type("Further", (Rollout,), {})).policy is POLICY


def test_ray_options_of_the_decorator_are_kept_and_the_pools_win():
    """As with ``.options``."""
    made = actor_class(ray.remote(num_cpus=3, num_gpus=1)(Rollout), {"num_cpus": 0})
    assert made._default_options["num_gpus"] == 1
    assert made._default_options["num_cpus"] == 0


class Synchronous(rayguard.RolloutMixin):
    """Its engine is for one thread at a time."""

    def build_engine(self, settings):
        from vllm import LLM

        return LLM(**settings.as_kwargs(model="m"))


class Either(Synchronous):
    """Nobody knows before it runs."""

    def build_engine(self, settings):
        from vllm import LLM

        return LLM("m") if settings else None


def test_a_synchronous_engine_is_refused_before_one_starts():
    """It takes a minute to start; what to write instead is said at once, where the recipe says so plainly."""
    with pytest.raises(ConfigError, match="let build_engine return AsyncLLM"):
        RayActors(Synchronous, (), {}, {}, rayguard.PoolPolicy())
    _refuse_arguments(Either, (), {})


def test_a_class_without_an_engine_is_refused():
    """Before an actor is started."""
    with pytest.raises(ConfigError, match="build_engine"):
        actor_class(dict, {})
