"""Safe settings in the engine's own words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.engine.settings import DEFAULTS, SAFE_SETTINGS, EngineSettings
from rayguard.engine.vllm.arguments import refuse_built
from rayguard.errors import ConfigError
from rayguard.recovery.ladder import Ladder


def test_every_rung_of_the_default_ladder_is_a_safe_setting():
    """Names in the ladder mean something to an engine."""
    assert set(Ladder().rungs) <= set(SAFE_SETTINGS)


def test_an_unknown_setting_is_refused_by_name():
    """A typing error is found at construction, with the names there are."""
    with pytest.raises(ConfigError, match=r"chunked_prefil_off.*chunked_prefill_off"):
        EngineSettings(applied=("chunked_prefil_off",))


def test_no_settings_change_nothing_but_say_the_defaults():
    """Your own values come through; the defaults make a double argument fail at once."""
    kwargs = EngineSettings().as_kwargs(model="m", max_num_seqs=8)
    assert kwargs == {**DEFAULTS, "model": "m", "max_num_seqs": 8}


def test_chunked_prefill_off_raises_the_token_budget_to_the_longest_prompt():
    """Without chunks, vLLM refuses a budget below max_model_len."""
    settings = EngineSettings(applied=("chunked_prefill_off",), facts={"max_model_len": 512})
    kwargs = settings.as_kwargs(max_num_batched_tokens=256)
    assert kwargs["enable_chunked_prefill"] is False
    assert kwargs["max_num_batched_tokens"] == 512


def test_fewer_sequences_divides_what_is_there():
    """A quarter of yours, of the engine's own, or of vLLM's default."""
    applied = ("fewer_sequences",)
    assert EngineSettings(applied=applied).as_kwargs(max_num_seqs=16)["max_num_seqs"] == 4
    assert EngineSettings(applied=applied, facts={"max_num_seqs": 64}).as_kwargs()["max_num_seqs"] == 16
    assert EngineSettings(applied=applied).as_kwargs()["max_num_seqs"] == 32


def test_names_the_installed_engine_does_not_know_are_left_out():
    """A safe setting of another vLLM version never breaks a build."""
    settings = EngineSettings(
        applied=("async_scheduling_off", "eager"), accepted=frozenset({"enforce_eager"})
    )
    assert settings.as_kwargs() == {"enforce_eager": True}


@given(
    st.lists(st.sampled_from(sorted(SAFE_SETTINGS)), unique=True),
    st.integers(1, 4096),
    st.integers(1, 512),
    st.integers(1, 8192),
)
def test_what_the_safe_settings_make_is_never_refused_for_its_sizes(applied, longest, seqs, budget):
    """Budgets stay at or above what vLLM demands: max_model_len without chunks."""
    settings = EngineSettings(applied=tuple(applied), facts={"max_model_len": longest})
    kwargs = settings.as_kwargs(max_num_seqs=seqs, max_num_batched_tokens=budget)
    if kwargs["enable_chunked_prefill"] is False:
        assert kwargs["max_num_batched_tokens"] >= longest
    assert 1 <= kwargs["max_num_seqs"] <= seqs


def test_what_rayguard_needs_itself_gives_way_to_yours():
    """Your own worker extension stays yours."""
    settings = EngineSettings(extra={"worker_extension_cls": "ours"})
    assert settings.as_kwargs()["worker_extension_cls"] == "ours"
    assert settings.as_kwargs(worker_extension_cls="yours")["worker_extension_cls"] == "yours"


class RayDistributedExecutor:
    """As vLLM's, which may be given by class."""


@pytest.mark.parametrize(
    "values",
    [
        {"distributed_executor_backend": "ray"},
        {"distributed_executor_backend": RayDistributedExecutor},
        {"data_parallel_backend": "ray"},
    ],
)
def test_workers_that_are_ray_actors_are_refused(values):
    """With what to use instead."""
    with pytest.raises(ConfigError, match=r"pass \w+='mp'"):
        EngineSettings().as_kwargs(**values)
    EngineSettings().as_kwargs(distributed_executor_backend="mp", data_parallel_backend="mp")
    EngineSettings().as_kwargs(distributed_executor_backend=int)


@pytest.mark.parametrize("asked", [-1, "auto"])
def test_a_length_that_vllm_fitted_is_kept(asked):
    """Requests were let in by it; with safe settings, what fits may be another one."""
    facts = {"max_model_len": 777}
    assert EngineSettings(facts=facts).as_kwargs(max_model_len=asked)["max_model_len"] == 777
    assert EngineSettings(facts=facts).as_kwargs(max_model_len=9)["max_model_len"] == 9
    assert EngineSettings().as_kwargs(max_model_len=asked)["max_model_len"] == asked
    lowered = EngineSettings(facts=facts, applied=("fewer_sequences",))
    assert lowered.as_kwargs(max_model_len=asked)["max_model_len"] == asked


def test_an_engine_for_which_vllm_took_ray_is_ended_and_refused():
    """In a placement group, it does that where nothing is said."""
    ended = []

    def shutdown(timeout):
        ended.append(timeout)

    front = SimpleNamespace(
        vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend="ray")),
        engine_core=SimpleNamespace(shutdown=shutdown),
    )
    with pytest.raises(ConfigError, match="placement group"):
        refuse_built(front)
    assert ended == [0.0]
    front.vllm_config.parallel_config.distributed_executor_backend = "mp"
    refuse_built(front)
    assert ended == [0.0]
