"""What the oracle of ``make never-worse`` allows, and what it must catch; which programs and errors there are."""

from __future__ import annotations

import pytest

from tests.benchmarks.never_worse import errors
from tests.benchmarks.never_worse.actors import Torch, digest_after
from tests.benchmarks.never_worse.oracle import Came, Oracle
from tests.benchmarks.never_worse.program import Actor, Call, Flavor, Program, Strike, drawn

ORACLE = Oracle(lambda steps: f"after {steps}")
PROGRAM = Program(seed=0, actors=(Actor(),), calls=tuple(Call(actor=0, number=n) for n in range(4)))


def ran(*answers, incidents=()):
    """Return a run: a list is an answer, a word an error, None an answer that never came."""
    told = []
    for number, one in enumerate(answers):
        if one is None:
            told.append({"number": number, "outcome": "hung"})
        elif isinstance(one, str):
            told.append({"number": number, "outcome": "error", "error": one})
        else:
            value, digest = one if isinstance(one, tuple) else (one, "")
            told.append({"number": number, "outcome": "value", "value": value, "digest": digest})
    return {"answers": told, "incidents": [{"actor": 0, "outcome": one} for one in incidents]}


GOOD = ran([0], [0, 1], [0, 1, 2], [0, 1, 2, 3])
FAILED = ran([0], [0, 1], "ConnectionError", [0, 1, 3])
DIED = ran([0], [0, 1], "ActorDiedError", "ActorDiedError")
ANEW = ran([0], [0, 1], [2], [2, 3])
TWICE = ran([0], [1], [1, 2], [3])
HALF = ran(([0], "after (0,)"), ([0, 1], "after (0, 1)"), ([0, 1, 2], "what a new optimizer gave"), "E")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (GOOD, [Came.RIGHT] * 4),
        (FAILED, [Came.RIGHT, Came.RIGHT, Came.LOUD, Came.RIGHT]),
        (ran([0], [0, 1], "E", [0, 1, 2, 3]), [Came.RIGHT, Came.RIGHT, Came.LOUD, Came.RIGHT]),
        (ANEW, [Came.RIGHT, Came.RIGHT, Came.ANEW, Came.RIGHT]),
        (ran([0], [0, 1, 1], [0, 1, 2], None), [Came.RIGHT, Came.ANEW, Came.RIGHT, Came.HUNG]),
        (ran([0], [0, 1], [0, 1, 2, 7], "E"), [Came.RIGHT, Came.RIGHT, Came.ANEW, Came.LOUD]),
        (ran([0], [0, 1], [0, 1], "E"), [Came.RIGHT, Came.RIGHT, Came.ANEW, Came.LOUD]),
        (HALF, [Came.RIGHT, Came.RIGHT, Came.ANEW, Came.LOUD]),
    ],
    ids=[
        "no fault",
        "an error",
        "an error whose step took effect",
        "begun anew",
        "a step done twice",
        "a step that nobody sent",
        "an answer without its own step",
        "a list restored, and not the optimizer",
    ],
)
def test_an_answer_is_judged_by_the_steps_in_it(answers, expected):
    """What was acknowledged must be in it, once; what failed may be; nothing else; and the weights they give."""
    assert ORACLE.judged(PROGRAM, answers["answers"]) == expected


def test_calls_that_are_sent_together_may_see_each_other_or_not():
    """A threaded actor may take the second first; neither has acknowledged anything to the other."""
    calls = (Call(actor=0, number=0), Call(actor=0, number=1, along=True), Call(actor=0, number=2))
    program = Program(seed=0, actors=(Actor(flavor=Flavor.THREADED),), calls=calls)
    assert ORACLE.judged(program, ran([1, 0], [1], [1, 0, 2])["answers"]) == [Came.RIGHT] * 3
    assert ORACLE.judged(program, ran([0], [1], [1, 2])["answers"])[2] is Came.ANEW


@pytest.mark.parametrize(
    ("bare", "ours", "what"),
    [
        (FAILED, FAILED, ""),
        (FAILED, GOOD, ""),
        (DIED, GOOD, ""),
        (DIED, DIED, ""),
        (GOOD, FAILED, "worse"),
        (FAILED, ANEW, "silent"),
        (DIED, ANEW, "silent"),
        (GOOD, HALF, "silent"),
        (DIED, ran([0], [0, 1], None, None), "hung"),
        (ANEW, ANEW, "silent"),
        (ANEW, ran([0], [0, 1], [2], [2, 3], incidents=["recovered", "answered"]), "silent"),
        (ANEW, ran([0], [0, 1], [2], [2, 3], incidents=["state_lost"]), ""),
        (TWICE, ran([0], [1], [1, 2], [3], incidents=["state_lost"]), "silent"),
        (TWICE, ran([0], [1], [1, 2], [3], incidents=["state_lost"] * 2), ""),
    ],
)
def test_with_rayguard_a_program_ends_as_it_would_have_or_better(bare, ours, what):
    """Right, loud, anew, hung: never a step down that ladder; and each time it begins anew, that is told."""
    found = ORACLE.compared(PROGRAM, [bare], ours)
    kinds = [name for name in ("worse", "silent", "hung") if getattr(found, name)]
    assert (what in kinds) if what else not kinds
    assert found.good is not bool(what)


def test_what_any_bare_run_gave_is_allowed_and_better_is_better_than_all():
    """Where Ray itself races, a program is run bare again."""
    assert ORACLE.compared(PROGRAM, [GOOD, FAILED], FAILED).good
    assert ORACLE.compared(PROGRAM, [DIED, DIED], GOOD).better == 2
    assert not ORACLE.compared(PROGRAM, [GOOD, FAILED], GOOD).better


def test_the_same_seed_draws_the_same_program():
    """And programs go to another process and come back whole."""
    for seed in range(200):
        program = drawn(seed)
        assert program == drawn(seed) == Program.from_json(program.to_json())
        assert all(-1 <= call.actor < len(program.actors) for call in program.calls)
        assert [call for together in program.rounds() for call in together] == list(program.calls)


def test_all_kinds_of_actors_errors_and_strikes_are_drawn():
    """Within what a run can hold."""
    programs = [drawn(seed) for seed in range(500)]
    calls = [call for one in programs for call in one.calls]
    assert {call.strike for call in calls} == {None, *Strike}
    assert {call.error for call in calls} == {"", *errors.NAMES}
    actors = [actor for one in programs for actor in one.actors]
    kinds = {(actor.holds, actor.flavor, actor.saves, actor.init) for actor in actors}
    assert len(kinds) == 20
    assert len({(actor.restarts, actor.retries) for actor in actors}) == 5
    assert {len(one.actors) for one in programs} == {1, 2, 3}
    assert any(actor.group for actor in actors)
    assert any(actor.detached for actor in actors)


def test_every_error_is_of_its_real_type_and_there_are_more_than_forty():
    """None of them is a stand-in, and the same name makes a new one."""
    made = {name: errors.made(name) for name in errors.NAMES}
    for name, error in made.items():
        assert type(error).__name__ == name.rpartition(":")[2]
        assert errors.made(name) is not error
    assert len({type(error) for error in made.values()}) >= 40


def test_weights_and_optimizer_are_told_by_value():
    """The same steps give the same word; another order, a step less, or a new optimizer under old weights do not."""
    actor, other = Torch(""), Torch("")
    for number in (0, 1):
        actor.learn(number)
    assert actor.digest() == digest_after((0, 1))
    assert len({digest_after(steps) for steps in ((), (0,), (0, 1), (1, 0))}) == 4
    other.model.load_state_dict(actor.model.state_dict())
    assert other.digest() != actor.digest()


def test_one_death_is_counted_once_where_calls_came_together():
    """Two answers of one round, of which one has the other in it, are one life's."""
    oracle = Oracle()
    calls = tuple(Call(actor=0, number=n, along=n == 2) for n in range(3))
    program = Program(seed=0, actors=(Actor(),), calls=calls)
    assert oracle.begun_anew(program, ran([0], [1], [1, 2])["answers"]) == {0: 1}
    assert oracle.begun_anew(program, ran([0], [1], [2])["answers"]) == {0: 2}
    anew = ran([0], [1], [1, 2], incidents=["state_lost"])
    assert oracle.compared(program, [anew], anew).good
    assert not oracle.compared(program, [anew], ran([0], [1], [2], incidents=["state_lost"])).good
