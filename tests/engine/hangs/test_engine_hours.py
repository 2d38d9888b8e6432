"""No false alarm in hours of everything that is no hang, and real hangs found soon at any moment of them."""

import random

import pytest

from rayguard.engine.hangs.watchdog import LEARNED, WARM_TURNS, Hang, Phase, judge
from rayguard.recovery.policy import GuardPolicy
from tests.engine.hangs.engine_hours import LIMITS, Life, found_after_s, observed

SEEDS = range(24)


def test_the_limits_are_those_of_the_default_policy():
    """What is shown here is what users get."""
    policy = GuardPolicy()
    assert (LIMITS.stopped_s, LIMITS.idle_s, LIMITS.busy_s) == (
        policy.hang_stopped_s,
        policy.hang_idle_s,
        policy.hang_busy_s,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_an_hour_without_a_hang_has_no_verdict(seed):
    """Whatever the machine, the prompts and the owner do."""
    state, phases = None, set()
    for seen in observed(Life(seed), hours=1.0):
        state, verdict = judge(state, seen, LIMITS)
        assert verdict is None, (seen, str(verdict))
        phases.add(seen.phase)
    assert phases >= {Phase.DECODE, Phase.PREFILL}


def delays(hang, seeds=range(8), share=0.01):
    """Return how long hangs took to be found that struck working engines at random moments."""
    found = []
    for seed in seeds:
        state, rng = None, random.Random(seed)
        before = None
        for seen in observed(Life(seed), hours=1.0):
            before, (state, _) = state, judge(state, seen, LIMITS)
            if before is None or seen.progress == before.newest.progress or rng.random() > share:
                continue
            known = state.turns >= WARM_TURNS and state.paces.get(Phase.DECODE) is not None
            if seen.phase is Phase.DECODE and known and state.paces[Phase.DECODE].seen >= LEARNED:
                found.append(found_after_s(state, hang, rng))
    return sorted(found)


@pytest.mark.parametrize("hang", Hang)
def test_a_hang_is_found_within_ten_seconds(hang, record_property):
    """At the 95th percentile, for each kind, in the middle of decoding."""
    found = delays(hang)
    p95_s = found[int(0.95 * len(found))]
    record_property("p95_s", p95_s)
    assert len(found) >= 50
    assert p95_s <= 10.0, (hang, p95_s, found[-1])
