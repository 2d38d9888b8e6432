"""What goes out and what must come back."""

from dataclasses import replace

import pytest

from examples.grpo.reward import reward
from examples.grpo.samples import NEW_TOKENS, PROMPT_TOKENS, Deliveries, PromptSource, Sample, seeded

SOURCE = PromptSource(encode=lambda text: list(text.encode()), seed=5)


def answer(request, version="v1"):
    return Sample(
        id=request.id,
        prompt=request.prompt,
        tokens=(1,) * NEW_TOKENS,
        logprobs=(0.0,) * NEW_TOKENS,
        weight_version=version,
    )


def test_a_step_has_its_prompts_in_groups_of_full_length():
    """4 prompts, 16 samples each, all ids different, each prompt cut to its length."""
    groups = SOURCE.step(3)
    ids = [request.id for group in groups for request in group]
    assert (len(groups), len(ids), len(set(ids))) == (4, 64, 64)
    assert {len(request.prompt) for group in groups for request in group} == {PROMPT_TOKENS}
    assert [len({request.prompt for request in group}) for group in groups] == [1] * 4
    assert len({group[0].prompt for group in groups}) == 4


def test_prompts_are_seeded_and_differ_from_step_to_step():
    """The same source asks the same; no two steps do."""
    assert SOURCE.step(3) == SOURCE.step(3)
    assert SOURCE.step(3) != SOURCE.step(4)
    assert SOURCE.step(3) != replace(SOURCE, seed=6).step(3)


def test_seeding_gives_each_request_dice_of_its_own():
    """Equal seeds within a group would give 16 equal samples and no advantage to learn from."""
    [group, *_] = SOURCE.step(0)
    seeds = [request.seed for request in seeded(group, 1)]
    assert len(set(seeds)) == len(group)
    assert seeds == [request.seed for request in seeded(group, 1)]
    assert [request.seed for request in group] == [None] * 16


def test_a_whole_delivery_counts_nothing_wrong():
    """All there, once, current."""
    [group, *_] = SOURCE.step(0)
    deliveries = Deliveries()
    deliveries.expect(group)
    deliveries.arrived([answer(request) for request in group], "v1")
    assert (deliveries.expected, deliveries.delivered) == (16, 16)
    assert (deliveries.duplicated, deliveries.stale, deliveries.short) == (0, 0, 0)


def test_what_is_lost_doubled_stale_or_cut_is_counted():
    """Each way to fail has its own number."""
    [group, *_] = SOURCE.step(0)
    deliveries = Deliveries()
    deliveries.expect(group)
    come = [answer(request) for request in group[1:]]
    come[0] = replace(come[0], weight_version="v0")
    come[1] = replace(come[1], tokens=(1, 2))
    deliveries.arrived([*come, come[2]], "v1")
    assert deliveries.expected - deliveries.delivered == 1
    assert (deliveries.duplicated, deliveries.stale, deliveries.short) == (1, 1, 1)


def test_the_group_of_a_sample_is_its_prompt():
    """Advantages are normalised within a prompt, not within a step."""
    groups = SOURCE.step(0)
    assert {answer(request).group for request in groups[0]} == {"step000/p0"}


@pytest.mark.parametrize(
    ("tokens", "score"), [((2, 4), 1.0), ((1, 3), 0.0), ((1, 2, 3, 4), 0.5), ((0,), 1.0)]
)
def test_the_reward_is_the_share_of_even_tokens(tokens, score):
    """0 is even."""
    assert reward(tokens) == score
