"""Who keeps the others waiting: the eight kinds of faults, as ranks look while each lasts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.errors import ConfigError
from rayguard.trainers.guilty_rank import GuiltyRanks, RankEvidence, guilty_ranks

WAITS = {"state": "S", "beat_age_s": 0.05, "in_collective": True, "collectives": 7, "operation": "all_reduce"}


def ranks(guilty, *others, world=3):
    """Ranks that wait in one collective, and one that differs."""
    different = dict(zip((1, 2), (guilty, *others), strict=False))
    return [RankEvidence(rank=n, **{**WAITS, **different.get(n, {})}) for n in range(world)]


KINDS = {
    "killed": {"alive": False, "state": "", "beat_age_s": 9.0},
    "stopped outside a collective": {"state": "T", "state_s": 2.0, "beat_age_s": 2.0, "in_collective": False},
    "stopped inside one": {"state": "T", "state_s": 2.0, "beat_age_s": 2.0},
    "native code that holds the lock": {"state": "R", "beat_age_s": 3.0},
    "an endless loop": {"state": "R", "in_collective": False, "where": "train.py:12 in step"},
    "a deadlock": {"in_collective": False, "where": "train.py:9 in lock"},
    "another collective": {"operation": "barrier"},
    "one collective too few": {"collectives": 6},
    "a disk that does not answer": {"state": "D", "state_s": 9.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_rank_that_differs_is_named(kind):
    """It alone, with the reason, and the line where it stands."""
    verdict = guilty_ranks(ranks(KINDS[kind]))
    assert verdict.ranks == (1,)
    assert verdict.why.startswith("rank 1 of 3 ")
    assert verdict.certain == (kind.startswith(("killed", "stopped", "a disk")))
    assert KINDS[kind].get("where", "") in verdict.why


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_the_surer_kind_wins(first, second):
    """Two ranks differ: a dead one makes others wait, whatever they do."""
    order = ["killed", "stopped", "a disk", "native", "an endless", "a deadlock", "one collective", "another"]
    place = {kind: next(n for n, word in enumerate(order) if kind.startswith(word)) for kind in KINDS}
    place = {kind: min(place[kind], 4) if place[kind] == 5 else place[kind] for kind in KINDS}
    found = guilty_ranks(ranks(KINDS[first], KINDS[second], world=5)).ranks
    if place[first] < place[second]:
        assert 1 in found
    elif place[first] > place[second]:
        assert 2 in found
    else:
        assert found == (1, 2)


def test_two_that_died_at_once_are_both_named():
    """Replacing one of them would wait for the other."""
    verdict = guilty_ranks(ranks({"alive": False}, {"alive": False}, world=4))
    assert verdict == GuiltyRanks(ranks=(1, 2), why="each of ranks 1, 2 of 4 is dead", certain=True)


@pytest.mark.parametrize(
    "evidence",
    [
        [],
        ranks({}),
        ranks({"operation": "barrier"}, world=2),  # of two, either may be the odd one
        ranks({"operation": "barrier"}, {"operation": "broadcast"}),  # no majority
        [RankEvidence(rank=n, beat_age_s=9.0) for n in range(3)],  # the machine stood still
        [RankEvidence(rank=n, in_collective=False) for n in range(3)],  # all compute
        [RankEvidence(rank=n) for n in range(3)],  # nothing is known
    ],
)
def test_where_nothing_tells_them_apart_nobody_is_named(evidence):
    """A wrong name costs a healthy rank."""
    assert guilty_ranks(evidence) == GuiltyRanks()


@given(
    st.lists(
        st.builds(
            RankEvidence,
            rank=st.integers(0, 99),
            alive=st.booleans(),
            state=st.sampled_from(["", "R", "S", "T", "t", "D", "Z"]),
            state_s=st.floats(0, 60),
            beat_age_s=st.none() | st.floats(0, 60),
            in_collective=st.none() | st.booleans(),
            collectives=st.none() | st.integers(0, 9),
            operation=st.sampled_from(["", "all_reduce", "barrier"]),
        ),
        max_size=9,
        unique_by=lambda one: one.rank,
    )
)
def test_whatever_is_known_the_verdict_is_of_these_ranks(evidence):
    """Never a rank that is not there; the dead always, if there is one."""
    verdict = guilty_ranks(evidence)
    assert set(verdict.ranks) <= {one.rank for one in evidence}
    dead = {one.rank for one in evidence if not one.alive}
    assert not dead or set(verdict.ranks) == dead
    assert guilty_ranks(evidence[::-1]).ranks == verdict.ranks


def test_evidence_of_one_rank_twice_is_refused():
    """A mistake of the caller's."""
    with pytest.raises(ConfigError, match="of one rank"):
        guilty_ranks([RankEvidence(rank=1), RankEvidence(rank=1)])


def test_who_has_returned_while_others_wait_is_named():
    """It made one collective fewer, and is past the call; where nobody waits, who has not answered is."""
    waits = [RankEvidence(rank=rank, in_collective=True) for rank in (0, 2)]
    verdict = guilty_ranks([*waits, RankEvidence(rank=1, answered=True)])
    assert verdict.ranks == (1,)
    assert "has returned from the call" in verdict.why
    done = [RankEvidence(rank=rank, answered=True) for rank in (0, 2)]
    verdict = guilty_ranks([*done, RankEvidence(rank=1, in_collective=False)])
    assert verdict.ranks == (1,)
    assert "has not answered" in verdict.why
