"""The rounds of an agent: one that fails or hangs holds up no other."""

import threading

from node_pair import until

from rayguard.cluster.agent.periodic import PeriodicTasks
from rayguard.recovery.tally import TALLY


def test_a_round_that_fails_comes_again_and_is_counted():
    """An agent has no user to whom an error could be shown."""
    rounds, times = PeriodicTasks(), []

    def fails():
        times.append(1)
        raise ValueError("of a round")

    before = TALLY.guard_errors["agent_failing"]
    rounds.start("failing", fails, every_s=lambda: 0.01)
    until(lambda: len(times) > 3)
    rounds.stop()
    assert TALLY.guard_errors["agent_failing"] > before


def test_a_round_that_hangs_is_named_and_the_others_go_on():
    """Its thread is lost until it comes back."""
    rounds, stuck, times = PeriodicTasks(), threading.Event(), []
    rounds.start("hanging", lambda: stuck.wait(60), every_s=lambda: 1.0, deadline_s=0.05)
    rounds.start("other", lambda: times.append(1), every_s=lambda: 0.01)
    until(lambda: rounds.late() == ["hanging"] and len(times) > 3)
    stuck.set()
    until(lambda: rounds.late() == [])
    rounds.stop()


def test_a_kick_brings_the_next_round_at_once_and_a_stop_ends_all():
    """As when the kernel tells of a death."""
    rounds, ran = PeriodicTasks(), []
    rounds.start("deaths", lambda: ran.append(1), every_s=lambda: 3_600.0)
    until(lambda: ran)
    rounds.kick("deaths")
    until(lambda: len(ran) == 2)
    rounds.kick("of no round")
    rounds.stop()
    rounds.kick("deaths")
    assert len(ran) == 2
