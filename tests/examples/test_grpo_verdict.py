"""The verdict: silent when all is well, and it names each thing that is not."""

from dataclasses import replace

import pytest
from grpo_histories import good_history, incident

from examples.grpo.outcome.report import report
from examples.grpo.outcome.verdict import join, problems
from rayguard.recovery.incident import Outcome
from rayguard.testing.injector import What


def test_a_good_run_has_no_problems():
    """The demo can succeed."""
    assert problems(good_history()) == []


def change(history, **fields):
    history.incidents[4] = replace(history.incidents[4], **fields)  # of an engine that was killed


BREAKS = {
    "has 0 incidents": lambda h: h.incidents.pop(2),
    "has 2 incidents": lambda h: h.incidents.append(
        incident(What.KILL_ACTOR, detected_at=h.fired[-1].at + 9, id="x")
    ),
    "was taken for user_code": lambda h: change(h, kind="user_code"),
    "scope job instead of engine": lambda h: change(h, scope="job"),
    "does not quote": lambda h: change(h, cause="something broke"),
    "hit an idle engine": lambda h: change(h, requests=0),
    "ended as failed": lambda h: change(h, outcome=Outcome.FAILED),
    "an incident without a fault": lambda h: h.incidents.insert(
        0, incident(What.KILL_CORE, detected_at=1_001.0, id="y")
    ),
    "1 of 2560 requests never came back": lambda h: h.deliveries.seen.pop("5"),
    "1 samples came back twice": lambda h: h.deliveries.seen.update(["5"]),
    "made by other weights": lambda h: setattr(h.deliveries, "stale", 1),
    "not whole": lambda h: setattr(h.deliveries, "short", 1),
    "disagree about a logprob": lambda h: h.steps.__setitem__(7, replace(h.steps[7], logp_diff=2e-4)),
    "disagree about a logprob by nan": lambda h: h.steps.__setitem__(
        0, replace(h.steps[0], logp_diff=float("nan"))
    ),
    "did not learn": lambda h: h.steps.__setitem__(-1, replace(h.steps[-1], reward=0.6)),
    "nothing is known of the memory of rollout 1": lambda h: h.memory.pop(1),
    "never fired: stop_core": lambda h: setattr(h, "never_fired", ("stop_core",)),
    "ended early, at step 3": lambda h: setattr(h, "failure", "at step 3: boom"),
}


@pytest.mark.parametrize("sentence", BREAKS)
def test_each_thing_that_is_wrong_is_named(sentence):
    """One broken promise, one sentence about it."""
    history = good_history()
    BREAKS[sentence](history)
    assert any(sentence in problem for problem in problems(history)), problems(history)


def test_the_whole_run_is_in_the_report():
    """The keys that machines read are there, with the run's numbers."""
    history = good_history()
    found = report(history, problems(history))
    assert found["ok"] is True
    assert (found["steps"], found["wall_s"]) == (40, 50.0)
    assert (found["prompts_expected"], found["prompts_delivered"], found["prompts_duplicated"]) == (
        2560,
        2560,
        0,
    )
    assert (found["samples_stale"], found["logp_diff_max"]) == (0, 1e-6)
    assert (found["reward_first"], round(found["reward_last"], 2)) == (0.5, 0.99)
    assert len(found["incidents"]) == len(found["faults"]) == len(history.fired)
    assert [process["pid"] for process in found["memory"]] == [7, 8, 9]
    assert found["memory"][0]["most"] == 342_000_000
    assert set(found["incidents"][0]) >= {
        "kind", "scope", "cause", "remedy", "detect_s", "recover_s", "tokens_saved", "tokens_lost"
    }  # fmt: skip


def test_detection_is_measured_from_the_blow():
    """detect_s runs from the injector's clock, but for a natural fault from the engine's own record."""
    by_what = {joined.fault.planned.what: joined for joined in join(good_history())}
    assert by_what[What.KILL_CORE].detect_s == pytest.approx(0.1)
    assert by_what[What.SEEDED_PARTIAL_PREFILL].detect_s == 0.05


def test_a_bare_run_is_not_blamed_for_missing_incidents():
    """Without a guard there is nobody to write them; what it lost is still named."""
    history = good_history()
    history.guarded, history.failure, history.incidents = False, "at step 5: EngineDeadError", []
    history.deliveries.expected += 64
    assert problems(history) == [
        "the run ended early, at step 5: EngineDeadError",
        "64 of 2624 requests never came back",
    ]
