"""A budget of restarts: of one actor for the same cause (a loop is the same end again, too fast), and of a job."""

import pytest

from rayguard.cluster.supervisor.job_incidents import why_it_ends
from rayguard.cluster.supervisor.policy import SupervisorPolicy
from rayguard.cluster.supervisor.restart_budget import Crash, Crashes, RestartPolicy
from rayguard.errors import ConfigError

LOOP = RestartPolicy(max_restarts=3, within_s=60.0).for_actors(1)


def crashes(*ends):
    kept = Crashes(most=LOOP.max_restarts)
    for at, exit_type in ends:
        kept.add(Crash(at, exit_type))
    return kept


@pytest.mark.parametrize(
    ("ends", "loop"),
    [
        ([(0, "OOM"), (1, "OOM")], False),
        ([(0, "OOM"), (1, "OOM"), (2, "OOM")], True),
        ([(0, "OOM"), (1, "SYSTEM_ERROR"), (2, "OOM")], False),
        ([(0, "OOM"), (50, "OOM"), (70, "OOM")], False),
        ([(0, "X"), (50, "OOM"), (70, "OOM"), (80, "OOM")], True),
        ([(0, ""), (1, ""), (2, "")], True),
        ([(0, "OOM"), (1, ""), (2, "OOM")], True),
    ],
)
def test_a_loop_is_many_ends_alike_within_the_window(ends, loop):
    """Not a few, not different ones, not slow ones; also when nobody knows how they ended."""
    assert crashes(*ends).are_loop(LOOP) is loop


def test_no_more_is_kept_than_is_asked_for():
    """An actor that restarts for a week costs as much as one that did so thrice."""
    assert len(crashes(*((n / 10, "OOM") for n in range(1_000)))) == LOOP.max_restarts


def test_words_prefer_what_an_incident_found():
    """Ray's guesses are left out."""
    assert (
        why_it_ends("SYSTEM_ERROR", "end of file Some common causes include: (1) ...", "")
        == "SYSTEM_ERROR: end of file"
    )
    assert why_it_ends("SYSTEM_ERROR", "x", "Hog.items grew to 8 GB") == "Hog.items grew to 8 GB"
    assert why_it_ends("", "", "") == "nobody knows how its process ended"


@pytest.mark.parametrize("wrong", [{"restarts": 1}, {"within_s": 0.0}])
def test_a_policy_without_meaning_is_refused(wrong):
    """With the key that is wrong."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SupervisorPolicy.of({"crash_loop": wrong})


def test_a_large_job_may_restart_more():
    """Never fewer than the least."""
    policy = RestartPolicy(max_restarts=20, per_actor=0.5, within_s=3_600.0)
    assert [policy.for_actors(n).max_restarts for n in (0, 10, 1_000)] == [20, 20, 500]


def test_the_share_falls_with_each_restart_and_comes_back_with_time():
    """From one to zero, and not below."""
    budget = RestartPolicy(max_restarts=4, within_s=100.0).for_actors(0)
    spending, shares = Crashes(), []
    for at in (0.0, 10.0, 20.0, 30.0, 40.0):
        spending.add(Crash(at))
        shares.append(spending.left(budget, at))
    assert shares == [0.75, 0.5, 0.25, 0.0, 0.0]
    assert spending.left(budget, 125.0) == 0.5
    assert spending.left(budget, 1_000.0) == 1.0


@pytest.mark.parametrize("wrong", [{"at_least": 0}, {"per_actor": -1.0}, {"within_s": 0.0}])
def test_a_budget_without_meaning_is_refused(wrong):
    """At once, and not when it would count."""
    with pytest.raises(ConfigError):
        SupervisorPolicy.of({"budget": wrong})
