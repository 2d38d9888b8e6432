"""A pool whose user pushes weights by code of his own: who lacks them gets no requests, or says so."""

from __future__ import annotations

from rayguard.errors import WeightsError

PROMPTS = [[i, 7] for i in range(12)]


def pushed(play, *names):
    """The user's code has pushed into these, and the pool has heard of it."""
    for name in names or list(play.members):
        play.members[name].own_push, play.members[name].lacks = True, ""
    wanted = set(names or play.members)
    play.until(lambda: wanted <= play.core.versions.own_pushes._has)


def test_an_actor_that_is_hired_anew_gets_nothing_before_the_users_push(stage):
    """It has the checkpoint, and cannot know of a push; resized pools are no exception."""
    play = stage(engines=2)
    pushed(play)
    play.on_loop(lambda: play.members["rollout-1"].die(for_good=True))
    play.until(lambda: "rollout-2" in play.members and play.members["rollout-2"].lacks)
    assert len(play.pool.generate(PROMPTS)) == len(PROMPTS)
    assert play.members["rollout-2"].served == []
    pushed(play, "rollout-2")
    play.until(lambda: play.core.book.slots["rollout-2"].open)


def test_an_engine_that_lost_its_push_is_passed_over(stage):
    """Its requests go to those that have it."""
    play = stage(engines=2)
    pushed(play)
    play.members["rollout-0"].lacks = "no push"
    play.members["rollout-0"].own_push = False
    play.until(lambda: not play.core.book.slots["rollout-0"].open)
    assert len(play.pool.generate(PROMPTS)) == len(PROMPTS)
    assert play.members["rollout-0"].served == []


def test_where_all_lack_it_callers_hear_so(stage):
    """Nobody waits for a push that somebody must be told of first."""
    play = stage(engines=2)
    for member in play.members.values():
        member.lacks = "push again"
    play.until(lambda: len(play.core.versions.own_pushes._lacks) == 2)
    for generation in play.pool.as_completed(PROMPTS[:2]):
        assert isinstance(generation.error, WeightsError)
    pushed(play)
    assert len(play.pool.generate(PROMPTS)) == len(PROMPTS)


def test_a_pool_without_such_pushes_asks_for_none(stage):
    """One engine that was changed says nothing of the others."""
    play = stage(engines=2)
    pushed(play, "rollout-0")
    play.kill("rollout-0")
    play.until(lambda: play.members["rollout-0"].life == 2)
    assert not any(member.lacks for member in play.members.values())
