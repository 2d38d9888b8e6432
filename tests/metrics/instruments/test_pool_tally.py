"""What pools counted: added up by name, never going back, read beside a pool that works."""

import os
import threading

import pytest

from rayguard.metrics.instruments.pool_tally import POOLS, WAIT_BOUNDS_S, PoolNow, Pools, PoolTally
from rayguard.recovery.tally import TALLY

NAME = "RolloutPool(Rollout)"


def counted(name=NAME, delivered=3):
    tally = PoolTally(name)
    tally.delivered = delivered
    tally.unanswered["late"] += 1
    tally.unanswered["refused"] += 1
    tally.interrupted("actor_died", 2)
    tally.tokens_saved += 30
    tally.tokens_lost += 5
    tally.losses["actor_died"] += 1
    tally.hires["start"] += 4
    tally.pushes["taken"] += 4
    tally.waited([0.0, 0.05, 7_200.0])
    tally.updated(2.0)
    tally.resumed(0.2)
    tally.replaced(6.0)
    return tally


def test_pools_of_one_name_are_one_and_others_are_not():
    """Numbers and what they have now."""
    pools = Pools()
    for name in (NAME, NAME, "other"):
        pools.opened(counted(name), lambda: PoolNow({"serving": 2, "lost": 1}, 5, 7))
    read = pools.snapshot()
    assert set(read) == {NAME, "other"}
    both, now = read[NAME].tally, read[NAME].now
    assert (both.delivered, both.failed, both.tokens_saved, both.tokens_lost) == (6, 4, 60, 10)
    assert (both.losses["actor_died"], both.interruptions["actor_died"]) == (2, 4)
    assert (both.hires["start"], both.pushes["taken"]) == (8, 8)
    assert (sum(both.wait_s.counts), both.wait_s.sum) == (6, pytest.approx(14_400.1))
    assert (both.wait_s.counts[0], both.wait_s.counts[-1]) == (2, 2)
    assert (sum(both.update_s.counts), both.update_s.sum) == (2, 4.0)
    assert (sum(both.resume_s.counts), both.resume_s.sum) == (2, 0.4)
    assert (sum(both.replace_s.counts), both.replace_s.sum) == (2, 12.0)
    assert (dict(now.engines), now.waiting, now.running) == ({"serving": 4, "lost": 2}, 10, 14)
    assert read["other"].tally.delivered == 3


def test_a_closed_pool_leaves_what_it_counted():
    """A counter never falls; closing twice counts once."""
    pools, tally = Pools(), counted()
    pools.opened(tally, lambda: PoolNow({"serving": 2}, 5, 7))
    pools.closed(tally)
    pools.closed(tally)
    pools.opened(counted(delivered=1), PoolNow)
    read = pools.snapshot()[NAME]
    assert read.tally.delivered == 4
    assert sum(read.tally.wait_s.counts) == 6
    assert read.now == PoolNow({}, 0, 0)
    assert tally.delivered == 3, "a reading is a copy"
    assert pools.snapshot()[NAME].tally.delivered == 4, "and changes nothing"


def test_a_pool_that_cannot_be_looked_at_still_shows_what_it_counted():
    """An error inside is counted."""

    def broken():
        raise RuntimeError("dictionary changed size during iteration")

    pools, before = Pools(), TALLY.guard_errors["metrics"]
    pools.opened(counted(), broken)
    assert pools.snapshot()[NAME].tally.delivered == 3
    assert TALLY.guard_errors["metrics"] == before + 1


def test_the_parts_of_a_histogram_agree_beside_a_busy_pool():
    """What was read is some number of whole rounds."""
    pools, tally, stop = Pools(), PoolTally(NAME), threading.Event()
    pools.opened(tally, PoolNow)

    def work():
        while not stop.is_set():
            tally.waited([0.5] * 64)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(200):
            waits = pools.snapshot()[NAME].tally.wait_s
            assert sum(waits.counts) % 64 == 0
            assert waits.sum == 0.5 * sum(waits.counts)
    finally:
        stop.set()
        worker.join(10)


def test_bounds_ascend():
    """A bucket counts all up to its bound."""
    assert list(WAIT_BOUNDS_S) == sorted(set(WAIT_BOUNDS_S))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_no_pools():
    """It would show its parent's."""
    tally = counted("forked")
    POOLS.opened(tally, PoolNow)
    try:
        child = os.fork()
        if child == 0:
            os._exit(len(POOLS.snapshot()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert "forked" in POOLS.snapshot()
    finally:
        POOLS.begin_again()
