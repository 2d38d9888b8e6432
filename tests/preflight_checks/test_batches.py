"""Batches that do not divide are found, and what is proposed fits all at once, near what was meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.dialects.job_settings import JobSettings
from rayguard.preflight_checks import batches


def found(**settings):
    return {one.id: dict(one.settings) for one in batches.check(JobSettings(**settings))}


JOBS = st.builds(
    JobSettings,
    prompts=st.none() | st.integers(1, 2000),
    answers=st.integers(1, 16),
    mini_batch=st.none() | st.integers(1, 600),
    micro_update=st.none() | st.integers(1, 40),
    micro_experience=st.none() | st.integers(1, 40),
    prompts_sampled=st.none() | st.integers(1, 600),
    gpus=st.none() | st.integers(1, 16),
    nodes=st.integers(1, 4),
    tensor_parallel=st.integers(1, 9),
    sequence_parallel=st.sampled_from([1, 2, 4]),
)


@given(JOBS)
def test_what_is_proposed_is_right_at_once(job):
    """Whoever writes down all that was said is told nothing more."""
    proposed = {}
    for one in batches.check(job):
        proposed |= one.settings
    assert list(batches.check(replace(job, **proposed))) == []


@given(JOBS)
def test_a_job_that_divides_hears_nothing_and_others_do(job):
    """By the arithmetic of EasyR1's own checks."""
    says = {one.id for one in batches.check(job)}
    world = (job.gpus or 1) * job.nodes
    if job.gpus is not None:
        assert ("batch.prompts_over_ranks" in says) == bool(job.prompts and job.prompts % world)
        assert ("parallel.tensor_over_ranks" in says) == bool(world % job.tensor_parallel)
    assert ("batch.mini_batch" in says) == bool(
        job.prompts and job.mini_batch and job.prompts % job.mini_batch
    )


def test_512_over_6():
    """The published failure, with EasyR1's own example: mini-batch and prompts are corrected together."""
    job = {
        "prompts": 512,
        "answers": 5,
        "mini_batch": 128,
        "micro_update": 4,
        "micro_experience": 16,
        "gpus": 6,
    }
    together = {"prompts": 504, "mini_batch": 126, "micro_update": 3, "micro_experience": 15}
    assert found(**job) == dict.fromkeys(
        ["batch.prompts_over_ranks", "batch.mini_batch_over_ranks"], together
    )
    assert found(prompts=512, gpus=6) == {"batch.prompts_over_ranks": {"prompts": 510}}
    assert found(prompts=516, gpus=6) == {}


def test_the_message_says_what_it_will_look_like():
    """With the user's own names, and the words of the failure."""
    job = JobSettings(prompts=512, gpus=3, nodes=2, spelled={"prompts": "data.rollout_batch_size"})
    (one,) = batches.check(job)
    assert one.message.startswith(
        "data.rollout_batch_size=512 does not divide over 6 GPUs (3 on each of 2 nodes)"
    )
    assert "Got size of DataProto 512 and chunk 6" in one.message


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"gpus": 8, "tensor_parallel": 3}, {"parallel.tensor_over_ranks": {"tensor_parallel": 2}}),
        ({"prompts": 512, "mini_batch": 100}, {"batch.mini_batch": {"prompts": 500}}),
        ({"gpus": 4, "mini_batch": 64, "micro_update": 5}, {"batch.micro_update": {"micro_update": 4}}),
        (
            {"gpus": 4, "prompts": 64, "micro_experience": 12},
            {"batch.micro_experience": {"micro_experience": 8}},
        ),
        ({"gpus": 4, "mini_batch": 1, "answers": 3}, {"batch.mini_batch_over_ranks": {"mini_batch": 4}}),
        (
            {"gpus": 4, "prompts": 64, "prompts_sampled": 30},
            {"batch.prompts_sampled_over_ranks": {"prompts_sampled": 28}},
        ),
        (
            {"gpus": 8, "sequence_parallel": 2, "mini_batch": 6},
            {"batch.mini_batch_over_ranks": {"mini_batch": 4}},
        ),
        ({"gpus": 8, "prompts": 3}, {"batch.prompts_over_ranks": {"prompts": 8}}),
        ({}, {}),
    ],
)
def test_each_division(job, says):
    """One case of each."""
    assert found(**job) == says
