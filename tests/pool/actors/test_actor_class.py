"""The actor class that a pool makes of the user's: guarded as the user said."""

from __future__ import annotations

import pytest
import ray

import rayguard
from rayguard.actors.mark import mark_of
from rayguard.errors import ConfigError
from rayguard.pool.actors.ray_actors import actor_class

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


def test_a_class_without_an_engine_is_refused():
    """Before an actor is started."""
    with pytest.raises(ConfigError, match="build_engine"):
        actor_class(dict, {})
