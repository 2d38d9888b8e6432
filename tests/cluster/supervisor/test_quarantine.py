"""A node is shunned for what is its own, and for nothing else."""

import pytest

from rayguard.cluster.supervisor.quarantine import NodeHistory, QuarantinePolicy, verdict
from rayguard.errors import ConfigError
from rayguard.recovery.incident import Incident

POLICY = QuarantinePolicy(faults=3, within_s=900.0, actors=4, waves=3, actors_within_s=600.0, for_s=100.0)


def fault(at, kind="gpu_hardware", scope="node"):
    return Incident(id=f"{at}", kind=kind, scope=scope, cause="", node="a", detected_at=at)


def history(*incidents):
    found = NodeHistory()
    for one in incidents:
        found = found.with_incident(one)
    return found


@pytest.mark.parametrize(
    ("incidents", "shunned"),
    [
        ([fault(0), fault(100)], False),
        ([fault(0), fault(100), fault(200)], True),
        ([fault(200), fault(0), fault(100)], True),
        ([fault(n) for n in range(8)], False),  # eight ranks, one broken GPU
        ([fault(0), fault(100), fault(1_000)], False),
        ([fault(n * 100, "node_died") for n in range(3)], False),
        ([fault(n * 100, "preempted") for n in range(3)], False),
        ([fault(n * 100, "user_code", "code") for n in range(3)], False),
        ([fault(0), fault(100, "disk_full"), fault(200, "shm_exhausted")], True),
    ],
)
def test_repeated_faults_of_its_own_shun_a_node(incidents, shunned):
    """Not the same one seen often, not old ones, not its going, not the user's mistakes."""
    now = max(one.detected_at for one in incidents)
    found = verdict("a", {"a": history(*incidents), "b": NodeHistory()}, POLICY, now)
    assert (found is not None) is shunned
    assert found is None or found.until == now + 100.0


def deaths(*times):
    found = NodeHistory()
    for n, at in enumerate(times):
        found = found.with_death(f"actor{n}", at)
    return found


def test_a_node_on_which_all_die_is_shunned():
    """Different actors, one after the other."""
    found = verdict("a", {"a": deaths(0, 60, 120, 180), "b": NodeHistory()}, POLICY, 180)
    assert found is not None
    assert "4 actors died on it" in found.why


@pytest.mark.parametrize(
    ("here", "elsewhere"),
    [
        (deaths(0, 60, 120), NodeHistory()),
        (deaths(0, 1, 2, 3, 4, 5, 6, 7), NodeHistory()),  # a gang that went down together
        (deaths(0, 60, 120, 180), deaths(10, 70, 130, 170)),  # they die everywhere: it is the job
        (
            NodeHistory().with_death("x", 0).with_death("x", 60).with_death("x", 120).with_death("x", 180),
            NodeHistory(),
        ),
    ],
)
def test_deaths_that_say_nothing_about_the_node_do_not_shun_it(here, elsewhere):
    """Few, at once, everywhere, or of one actor only."""
    assert verdict("a", {"a": here, "b": elsewhere}, POLICY, 180) is None


def test_the_only_node_is_not_shunned_for_deaths():
    """Where else should they die?"""
    assert verdict("a", {"a": deaths(0, 60, 120, 180)}, POLICY, 180) is None


@pytest.mark.parametrize(
    "wrong", [{"faults": 1}, {"actors": 0}, {"waves": 1}, {"for_s": 0.0}, {"within_s": -1.0}]
)
def test_a_policy_without_meaning_is_refused(wrong):
    """With the key that is wrong."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        QuarantinePolicy(**wrong)
