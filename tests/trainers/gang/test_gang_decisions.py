"""What becomes of a call, who gets which part of it, and how long it may take: pure, without Ray."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rayguard
from rayguard.errors import ConfigError
from rayguard.trainers.gang.call_pace import CallPace
from rayguard.trainers.gang.shares import checked_method, shares_of
from rayguard.trainers.gang.verdict import RankEnd, RankOutcome, decide_gang

ENDS = st.lists(st.sampled_from(list(RankEnd)), min_size=1, max_size=5)


def outcomes(*ends):
    """One outcome a rank."""
    return [
        RankOutcome(
            rank=rank, end=end, cause=f"{end.value} {rank}", error=None if end == "answered" else OSError()
        )
        for rank, end in enumerate(ends)
    ]


# -- the verdict


@given(ENDS, st.sampled_from(["", "rank 0 of 3 is stopped"]))
def test_a_call_is_ok_only_where_all_answered(ends, guilty):
    """Whoever is lost is replaced, whatever else happened."""
    verdict = decide_gang(outcomes(*ends), guilty=guilty)
    assert verdict.ok == all(end is RankEnd.ANSWERED for end in ends)
    gone = {RankEnd.DEAD, RankEnd.STUCK, RankEnd.POISONED}
    assert set(verdict.lost) == {rank for rank, end in enumerate(ends) if end in gone}
    assert verdict.ok or verdict.cause


@given(ENDS)
def test_an_error_is_the_callers_unless_a_process_went(ends):
    """What a rank raised because another one died comes again, if it is its own."""
    verdict = decide_gang(outcomes(*ends))
    died = {RankEnd.DEAD, RankEnd.POISONED} & set(ends)
    assert (verdict.error is not None) == (RankEnd.RAISED in ends and not died)


def test_the_first_cause_is_told():
    """A death before what followed from it."""
    end = RankEnd
    assert decide_gang(outcomes(end.CUT_OFF, end.DEAD, end.RAISED)).cause == "dead 1"
    assert decide_gang(outcomes(end.CUT_OFF, end.POISONED, end.DEAD)).cause == "poisoned 1"
    assert decide_gang(outcomes(end.CUT_OFF, end.ANSWERED)).cause == "cut_off 0"
    assert decide_gang(outcomes(end.DEAD, end.CUT_OFF, end.DEAD)).cause == "dead 0; dead 2"
    assert decide_gang(outcomes(end.STUCK, end.RAISED)).error.rank == 1
    assert decide_gang(outcomes(end.STUCK, end.CUT_OFF), guilty="rank 0 sleeps").cause == "rank 0 sleeps"


# -- how long a call may take


def test_the_pace_is_learned_by_method():
    """The first calls compile; a slow method is no measure for a quick one."""
    pace = CallPace(first_s=1_800.0)
    assert pace.suspicious_s("step") == 1_800.0
    for seconds in (40.0, 2.0, 2.0, 2.0):
        pace.took("step", seconds)
    assert pace.suspicious_s("step") == 30.0
    assert pace.suspicious_s("evaluate") == 1_800.0
    for _ in range(3):
        pace.took("quick", 0.001)
    assert pace.suspicious_s("quick") == 5.0
    pace.changed()
    assert pace.suspicious_s("step") == 1_800.0


@given(st.lists(st.floats(0.001, 100), min_size=3, max_size=60))
def test_ten_times_as_slow_is_not_suspicious(durations):
    """As long as half of the calls are not slower still."""
    pace = CallPace(first_s=1e9)
    for seconds in durations:
        pace.took("step", seconds)
    usual = sorted(durations[-33:])[(len(durations[-33:]) - 1) // 2]
    assert pace.suspicious_s("step") > 10 * usual


def test_what_the_user_says_counts():
    """In any case, also for the first call."""
    pace = CallPace(first_s=1_800.0, fixed_s=3.0)
    assert (pace.suspicious_s("step"), pace.over_s()) == (3.0, 3.0)


# -- who gets what


def test_each_rank_gets_its_part():
    """A list, a batch that is shared out anew, a function of the number of ranks."""
    assert shares_of(None, 2) == [(), ()]
    assert shares_of(["a", None], 2) == [("a",), (None,)]
    assert shares_of(range, 3) == [(0,), (1,), (2,)]
    batch = rayguard.split_batch(list(range(7)), world=3)
    assert [share.world for (share,) in shares_of(batch, 3)] == [3, 3, 3]
    assert [share.world for (share,) in shares_of(batch, 2)] == [2, 2]


@pytest.mark.parametrize(
    ("each", "said"),
    [([1], "1 arguments.*3 ranks.*split_batch"), ("abc", "got str"), (7, "got int"), ({0: 1}, "got dict")],
)
def test_what_does_not_fit_is_refused(each, said):
    """With what would."""
    with pytest.raises(ConfigError, match=said):
        shares_of(each, 3)


# -- what is asked for


class Fits(rayguard.TrainerMixin):
    """Has what a gang needs."""

    def setup(self, group):
        """Build nothing."""

    def step(self):
        """Do nothing."""


class AwaitedSetup(rayguard.TrainerMixin):
    """Its setup would be begun, and gone through by nobody."""

    async def setup(self, group):
        """Build nothing."""

    def rows(self):
        """Answer with what cannot be sent."""
        yield 1


class NoState:
    """Cannot say its state."""

    def setup(self, group):
        """Build nothing."""


class NoSetup(rayguard.TrainerMixin):
    """Builds itself elsewhere."""


@pytest.mark.parametrize(
    ("trainer", "options", "said"),
    [
        (Fits, {"ranks": 0}, "ranks must be a whole number from 1, got 0"),
        (Fits, {"ranks": True}, "ranks must be a whole number"),
        (Fits, {"ranks": 2, "spares": -1}, "spares must be a whole number from 0"),
        (Fits, {"ranks": 2, "policy": {}}, "takes a rayguard.GangPolicy"),
        (Fits, {"ranks": 2, "backend": "mpi"}, "gloo, nccl"),
        (Fits, {"ranks": 2}, r"Ray is not initialised.*ray\.init"),
        (Fits, {"rank": 2}, "no option.*rank"),
        (Fits(), {"ranks": 2}, "takes a class"),
        (NoState, {"ranks": 2}, "TrainerMixin"),
        (NoSetup, {"ranks": 2}, "has no setup"),
        (
            AwaitedSetup,
            {"ranks": 2},
            r"AwaitedSetup.setup is a coroutine \(async def\): a gang's ranks run plain",
        ),
    ],
)
def test_a_gang_that_cannot_be_is_refused(trainer, options, said):
    """Before anything is started."""
    with pytest.raises(ConfigError, match=said):
        rayguard.TrainerGang(trainer, **options)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rows", "rows is a generator"),
        ("stp", "no method 'stp'"),
        ("setup", "the gang itself calls it"),
        (3, "takes the name of a method, got 3"),
    ],
)
def test_what_a_gang_cannot_call_is_refused(name, said):
    """A coroutine would be an answer that cannot be sent."""
    with pytest.raises(ConfigError, match=said):
        checked_method(AwaitedSetup, name)


def test_a_gang_is_sent_nowhere():
    """Python's own words would be of a lock."""
    with pytest.raises(ConfigError, match="cannot be sent: use it in the process that made it"):
        pickle.dumps(object.__new__(rayguard.TrainerGang))


@pytest.mark.parametrize(
    "options",
    [
        {"min_ranks": 0},
        {"repeats": -1},
        {"call_s": 0},
        {"leave_s": True},
        {"restarts": 3},
        {"setup_s": "10"},
        {"copies": 2},
        {"copies": True},
    ],
)
def test_a_policy_that_means_nothing_is_refused(options):
    """By the name of the option."""
    with pytest.raises(ConfigError, match=f"GangPolicy.{next(iter(options))}"):
        rayguard.GangPolicy(**options)
