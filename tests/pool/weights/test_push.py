"""Weights across a pool: nobody serves old ones, whatever becomes of an update."""

from __future__ import annotations

import pytest

from rayguard import errors
from rayguard.pool.values.policy import PoolPolicy
from tests.pool.test_pool import LONG, PROMPTS, SLOW, started

ASYNC = PoolPolicy(progress=False, max_weight_lag=1)


def versions(batch):
    return {version for sample in batch.samples for version, _ in sample.weight_versions}


def test_all_engines_have_the_new_version_before_any_serves(stage):
    """And say so in every sample."""
    play = stage(weights="v1")
    assert versions(play.pool.generate(PROMPTS)) == {"v1"}
    play.script.weights = "v2"
    assert play.pool.update_weights() == "v2"
    batch = play.pool.generate(PROMPTS)
    play.right(batch, PROMPTS, weights="v2")
    assert versions(batch) == {"v2"}
    assert play.pool.status()["weight_version"] == "v2"


def test_without_a_lag_what_runs_is_finished_by_the_weights_it_began_with(stage):
    """Also what another engine must finish because the first one died."""
    play = stage(weights="v1", **SLOW)
    result = started(lambda: play.pool.generate(PROMPTS, LONG))
    play.working("rollout-0")
    play.script.weights = "v2"
    update = started(lambda: play.pool.update_weights(deadline_s=30))
    assert update() == "v2"
    old = result()
    play.right(old, PROMPTS, LONG, weights="v1")
    assert versions(old) == {"v1"}


def test_with_a_lag_what_runs_goes_on_and_tells_which_weights_made_which_tokens(stage):
    """Asynchronous training waits for nobody."""
    play = stage(weights="v1", policy=ASYNC, **SLOW)
    result = started(lambda: play.pool.generate(PROMPTS[:8], LONG))
    play.working("rollout-0")
    play.script.weights = "v2"
    assert play.pool.update_weights() == "v2"
    batch = result()
    assert versions(batch) == {"v1", "v2"}
    for sample in batch.samples:
        assert [version for version, _ in sample.weight_versions] == ["v1", "v2"]
        assert sample.weight_version == "v1+v2"


def test_an_engine_that_dies_in_the_update_comes_back_with_the_new_version(stage):
    """Never the old one, never a mixture."""
    play = stage(weights="v1")
    play.pool.generate(PROMPTS)
    play.on_loop(play.members["rollout-0"].restarting.clear)
    play.kill("rollout-0")
    play.script.weights = "v2"
    assert play.pool.update_weights() == "v2"
    play.on_loop(play.members["rollout-0"].restarting.set)
    play.pool.wait_ready(timeout_s=10)
    assert versions(play.pool.generate(PROMPTS)) == {"v2"}


def test_an_engine_that_misses_the_update_is_given_nothing_until_it_has_it(stage):
    """Frozen in the push: the others serve, it is begun anew and joins with the right weights."""
    play = stage(weights="v1", policy=PoolPolicy(progress=False, hang_stopped_s=60, hang_busy_s=60))
    play.pool.generate(PROMPTS)
    play.script.weights = "v2"
    play.on_loop(play.members["rollout-1"].freeze)
    assert play.pool.update_weights(deadline_s=1.0) == "v2"
    assert play.pool.status()["engines"]["rollout-1"]["state"] == "fenced"
    batch = play.pool.generate(PROMPTS)
    assert {sample.engine for sample in batch.samples} == {"rollout-0"}
    assert versions(batch) == {"v2"}
    play.on_loop(play.members["rollout-1"].thaw)
    play.pool.wait_ready(timeout_s=20)
    assert versions(play.pool.generate(PROMPTS)) == {"v2"}


def test_an_engine_that_dies_when_it_has_the_update_is_given_nothing_before_its_next_life(stage):
    """It told of its new weights, and then there was nobody to give anything to: nothing waits for its return."""
    play = stage(weights="v1")
    play.pool.generate(PROMPTS)
    gone = play.members["rollout-1"]
    play.on_loop(gone.taking.clear)
    play.script.weights = "v2"
    update = started(lambda: play.pool.update_weights(deadline_s=30))
    play.until(lambda: play.core.versions.of("rollout-1") == "v2")
    play.on_loop(gone.restarting.clear)
    play.kill("rollout-1")
    assert update() == "v2"
    batch = play.pool.generate(PROMPTS, deadline_s=20)
    play.right(batch, PROMPTS, weights="v2")
    assert {sample.engine for sample in batch.samples} == {"rollout-0"}
    play.on_loop(gone.restarting.set)
    play.pool.wait_ready(timeout_s=10)
    play.right(play.pool.generate(PROMPTS, deadline_s=20), PROMPTS, weights="v2")


def test_what_was_given_to_nobody_goes_on_when_the_next_life_joins(stage):
    """Whatever opened the place of a dead actor."""
    play = stage(weights="v1")
    gone = play.members["rollout-1"]
    play.on_loop(gone.restarting.clear)
    play.kill("rollout-1")
    play.until(lambda: not play.core.connections["rollout-1"].session)
    play.on_loop(lambda: play.core.book.set_open("rollout-1", is_open=True))
    result = started(lambda: play.pool.generate(PROMPTS, deadline_s=20))
    play.until(lambda: play.core.book.slots["rollout-1"].running)
    play.on_loop(gone.restarting.set)
    play.right(result(), PROMPTS, weights="v1")


def test_an_update_waits_for_the_first_engine_to_start(stage):
    """Whoever asks at once gets a version, not an error."""
    play = stage(weights="v1")
    for name in list(play.members):
        play.on_loop(play.members[name].restarting.clear)
        play.kill(name)
    update = started(lambda: play.pool.update_weights(deadline_s=20))
    for name in list(play.members):
        play.on_loop(play.members[name].restarting.set)
    assert update() == "v1"


def test_refused_weights_change_nothing(stage):
    """NaN: the error comes out, and everybody goes on with what they had."""
    play = stage(weights="v1")
    play.pool.update_weights()
    play.script.weights, play.script.refuse_weights = "v2", "weights 'v2': tensor 'w' holds NaN"
    with pytest.raises(errors.WeightsError, match="NaN"):
        play.pool.update_weights()
    assert versions(play.pool.generate(PROMPTS)) == {"v1"}


def test_an_update_that_cannot_wait_any_longer_says_for_whom(stage):
    """The old version goes on."""
    play = stage(weights="v1", turn_s=0.05)
    play.pool.update_weights()
    result = started(lambda: play.pool.generate(PROMPTS[:4], LONG))
    play.working("rollout-0")
    play.script.weights = "v2"
    with pytest.raises(errors.WeightsError, match=r"requests still run with weights 'v1'"):
        play.pool.update_weights(deadline_s=0.3)
    assert versions(result()) == {"v1"}


def test_an_actor_that_restarts_between_a_step_and_its_update_may_serve_what_is_newest(stage):
    """It asked the trainer, whose step is done; the pool's own update is about to come."""
    play = stage(engines=1, weights="v1")
    play.pool.update_weights()
    play.script.weights = "v2"
    play.kill("rollout-0")
    assert versions(play.pool.generate(PROMPTS[:4])) == {"v2"}
    assert play.pool.update_weights() == "v2"
