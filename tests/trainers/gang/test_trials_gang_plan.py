"""What strikes a gang when, and what is right: of the trials in ``tests/benchmarks/trials_gang``. Pure."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from tests.benchmarks.trials_gang.oracle import (
    Curve,
    Observed,
    Outcome,
    Told,
    judge,
    missed,
    percentile,
    ranks_named,
    ratios,
    steady_growth,
    summary,
)
from tests.benchmarks.trials_gang.plan import (
    FIRST_STRUCK,
    LAST_STRUCK,
    PLACES,
    RANKS,
    STEPS,
    Kind,
    Trial,
    plan,
    quiet_steps,
)

RIGHT = Curve(tuple((("0x1p0", "0x1p1"),) * RANKS for _ in range(STEPS)), ("a", "b", "c"))
RAN = {str(rank): [*map(str, range(STEPS)), "3"] for rank in range(RANKS)}


def trial(kind=Kind.KILL, ranks=(1,), place=PLACES[0]):
    """A trial in step 3."""
    return Trial(0, kind, place, ranks, 3, 0.5, 11)


def seen(**other):
    """What is seen where rank 1 was killed and all went well."""
    usual = {
        "curve": RIGHT,
        "fired": {"1": 10.0},
        "ran": RAN,
        "outs": {"0": 10.3, "1": 99.0, "2": 10.1},
        "cuts": [1.0, 10.2],
        "told": [Told("rank 1 died", ("rank 1: dead (rank 1 died)",))],
        "causes": ["rank 1 died"],
        "answered_at": 11.5,
        "normal_s": 0.5,
    }
    return Observed(**{**usual, **other})


def test_the_same_seed_plans_the_same_and_another_one_something_else():
    """So that a trial can be held again."""
    assert plan(40, 3) == plan(40, 3) != plan(40, 4)


def test_fifty_trials_have_each_kind_at_most_places():
    """No kind is left out, none is held at one place alone, and none strikes where nothing can be repeated."""
    trials = plan(52, 1)
    assert Counter(one.kind for one in trials) == dict.fromkeys(Kind, 4)
    assert all(len({one.place for one in trials if one.kind is kind}) == len(PLACES) for kind in Kind)
    for one in trials:
        assert FIRST_STRUCK <= one.step <= LAST_STRUCK
        assert set(one.ranks) <= set(range(RANKS))
        assert one.kind is not Kind.KILL_TWO or len(set(one.ranks)) == 2
        assert one.kind is not Kind.KILL_ZERO or one.ranks == (0,)


def test_every_kind_kills_hangs_or_is_an_error():
    """One of the three, so that each has its figures."""
    assert [kind for kind in Kind if not kind.kills and not kind.hangs] == [Kind.RAISE]
    assert all(kind.kills for kind in Kind if kind.by_driver)


def test_the_hour_without_faults_has_all_that_looks_like_one():
    """Slow, compiling and writing ranks: one alone, which the others wait for, and all at once."""
    acts = {
        (act, step.acts.count(one))
        for step in islice(quiet_steps(1), 2_000)
        for one in step.acts
        for act in one[:1]
    }
    assert {(act, count) for act in ("compile", "write") for count in (1, RANKS)} <= acts


def test_a_good_trial_has_no_problems_and_all_its_figures():
    """From the fault to the answer, less a usual step; out means the last rank that was still in."""
    outcome = judge(trial(), seen(), RIGHT)
    assert outcome.problems == []
    assert (outcome.identical, outcome.guilty, outcome.steps_lost, outcome.in_vain) == (True, True, 1, 0)
    assert outcome.resume_s == pytest.approx(1.0)
    assert outcome.abort_s == pytest.approx(0.1)
    assert outcome.detect_s is None


def test_a_hang_resumes_from_when_it_was_found():
    """Finding it has a figure of its own."""
    outcome = judge(trial(Kind.LOOP), seen(fired={"1": 4.0}), RIGHT)
    assert outcome.detect_s == pytest.approx(6.2)
    assert outcome.resume_s == pytest.approx(0.8)


BROKEN = Curve((*RIGHT.losses[:-1], (("0x1p9", "0x1p1"),) * RANKS), RIGHT.digests)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"curve": BROKEN}, "the losses of step 6 differ"),
        ({"curve": Curve(RIGHT.losses, ("a", "b", "d"))}, "the weights differ"),
        ({"curve": Curve(RIGHT.losses[:-1], RIGHT.digests)}, "the weights differ"),
        ({"ran": {"0": [*RAN["0"], "3"]}}, "2 steps were made again"),
        ({"recoveries": 2}, "2 recoveries for one fault"),
        ({"fired": {}}, "misfired"),
        ({"fired": {"1": 10.0, "2": 10.0}}, "misfired"),
        ({"raised": "ValueError"}, "the caller got ValueError"),
        ({"told": [Told("rank 2 died")]}, "not who was struck"),
        ({"told": []}, "not who was struck"),
        ({"cuts": []}, "nobody was taken out"),
    ],
)
def test_what_is_wrong_is_told(other, says):
    """One thing at a time."""
    assert any(says in problem for problem in judge(trial(), seen(**other), RIGHT).problems)


def test_an_error_of_its_own_is_the_callers():
    """And comes once."""
    told = [Told("rank 1 raised StrikeError: an error (line 3 of /x/rank 7.py)")]
    assert judge(trial(Kind.RAISE), seen(told=told, raised="StrikeError"), RIGHT).problems == []
    assert judge(trial(Kind.RAISE), seen(told=told), RIGHT).problems != []


def test_two_that_die_at_once_are_both_to_be_named():
    """In the incident, or as the gang joins again."""
    both = ("rank 0: dead (rank 0 died)", "rank 2: dead (rank 2 died)")
    two, fired = trial(Kind.KILL_TWO, (2, 0)), {"0": 10.0, "2": 10.0}
    together = seen(fired=fired, told=[Told("rank 0 died", both)], causes=["rank 0 died"])
    apart = seen(fired=fired, told=[Told("rank 0 died", both[:1])], causes=["rank 0 died", "rank 2 died"])
    one = seen(fired=fired, told=[Told("rank 0 died", both[:1])], causes=["rank 0 died"])
    assert [judge(two, each, RIGHT).guilty for each in (together, apart, one)] == [True, True, False]


@pytest.mark.parametrize(
    ("causes", "right"),
    [
        (["rank 1 died", "rank 2 died"], True),
        (["rank 1 died", "rank 2 died", "rank 2 died"], True),
        (["rank 1 died"], False),
        (["rank 2 died", "rank 1 died"], False),
    ],
)
def test_who_dies_in_a_recovery_is_named_after_the_first(causes, right):
    """In their order."""
    fired = {"1": 10.0, "in-recovery": 11.0}
    struck = trial(Kind.KILL_IN_RECOVERY, (1, 2))
    assert judge(struck, seen(fired=fired, causes=causes), RIGHT).guilty is right


@pytest.mark.parametrize(
    ("cause", "ranks"),
    [
        ("rank 1 of 3 is stopped (SIGSTOP, or a debugger)", {1}),
        ("each of ranks 0, 2 of 3 is stopped", {0, 2}),
        ("no answer after 6 s, and nothing tells the ranks apart", set()),
        ("rank 2 died", {2}),
        ("rank 0 died; rank 2 died", {0, 2}),
        ("rank 1 raised ValueError: no rank 7", {1}),
        ("no answer after 6 s, and nothing tells the ranks apart: rank 1: train; rank 2: train", set()),
    ],
)
def test_ranks_are_read_from_a_cause(cause, ranks):
    """As the gang writes them."""
    assert ranks_named(cause) == ranks


def test_percentiles_and_ratios_of_few_are_the_worst():
    """So that no figure is kinder than what was seen."""
    assert percentile([], 0.99) is None
    assert percentile([1.0, 3.0, 2.0], 0.95) == 3.0
    whole = zip(PLACES, (1.0, 4.0, 2.0), (10.0, 10.0, None), strict=False)
    found = [Outcome(trial(place=place), resume_s=resume, whole_s=took) for place, resume, took in whole]
    found.append(Outcome(trial(Kind.ODD), resume_s=0.1, whole_s=10.0))  # nobody was replaced
    assert ratios(found, spare=True) == {"median": 0.1, "max": 0.1, "n": 1}
    assert ratios(found, spare=False)["max"] == 0.4
    assert ratios([], spare=True) == {"n": 0}


@pytest.mark.parametrize(
    ("values", "grown"),
    [
        ([5], 0),
        ([0, 0, 0, 20, 20, 20, 20], 0),
        ([0, 20, 20, 20, 20], 0),
        ([0, 0, 20, 20, 40], 40),
        ([8, 8, 9], 0),
    ],
)
def test_one_jump_is_no_leak_and_a_slope_is(values, grown):
    """An allocator grows once; what is lost in each generation grows with them."""
    assert steady_growth(values) == grown


def test_bars_of_correctness_are_missed_one_by_one():
    """Those of time are told, and miss nothing."""
    good = Outcome(trial(), guilty=True, resume_s=99.0, whole_s=10.0)
    assert missed(summary([good], [10.0])) == []
    assert missed(summary([Outcome(trial(), identical=False, guilty=False)], [])) == [
        "curve_identical",
        "guilty_right",
    ]
    assert missed({**summary([good], []), "false_alarms": 1, "leaked": 2, "broken": ["x"]}) == [
        "false_alarms",
        "leaked",
        "broken",
    ]
