"""Verdicts on answers, tokens and times."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from rayguard import QuarantinedError, Sample
from rayguard.engine.generated import Generated
from rayguard.pool.values.result import Generation
from tests.benchmarks.trials import score
from tests.benchmarks.trials.observer import Notes, Sent
from tests.benchmarks.trials.oracle import Oracle, Question
from tests.benchmarks.trials.plan import Fault, Trial
from tests.benchmarks.trials.score import Cut, Outcome
from tests.benchmarks.trials.witness import SeenRequest

QUESTION = Question(name="greedy 0", kind="greedy", prompt="p", sampling={"temperature": 0.0})
PENALISED = replace(QUESTION, exact=False)


def sample(name="a", tokens=(5, 6), versions=(("3-w0", 0),), **values):
    made = Generated(tokens=array("i", tokens), versions=versions)
    return Sample(id=name, prompt_token_ids=(1, 2), generated=made, finish_reason="length", **values)


def generation(name="a", *samples, **values):
    return Generation(id=name, samples=samples or (sample(name),), **values)


def outcome(fault=Fault.KILL_CORE, *, standby=False, **values):
    return Outcome(trial=Trial(number=0, fault=fault, target=0, standby=standby), **{"fired": True, **values})


def judged(got, *, asked=None, delivered=("a",), due="3-w0", newest=3):
    oracle = Oracle([QUESTION])
    for weights in ("w0", "w1"):
        oracle.learn(weights, lambda questions: [generation("x") for _ in questions])
    notes = Notes(
        sent=[Sent(at=0.0, id="a", engine="rollout-0", version=due, known=0)],
        delivered=[(1.0, name) for name in delivered],
    )
    told = outcome()
    score.judge(told, asked or {"a": QUESTION}, got, oracle, notes, newest)
    return told


def test_the_right_answer_is_no_problem():
    """Nor is one from another engine, cut and gone on with."""
    assert judged([generation()]).problems == []
    assert judged([generation("a", sample(cuts=(1,), engine="rollout-1"))]).problems == []


def test_what_is_missing_is_lost():
    """No answer, an error, too few samples."""
    assert judged([], delivered=()).lost == ["a: no answer"]
    assert judged([Generation(id="a", error=RuntimeError("why"))]).lost == [
        "a: 0 of 1 samples RuntimeError: why"
    ]
    several = replace(QUESTION, sampling={"temperature": 0.0, "n": 2})
    assert judged([generation()], asked={"a": several}).lost == ["a: 1 of 2 samples "]


def test_what_comes_twice_is_doubled():
    """To the caller, or inside the pool."""
    assert judged([generation(), generation()]).doubled == ["a: 2 times"]
    assert judged([generation()], delivered=("a", "a")).doubled == ["a: 2 times inside"]


def test_a_request_that_gets_an_error_for_what_it_did_not_do_is_blamed():
    """It is lost, and more than that."""
    told = judged([Generation(id="a", error=QuarantinedError("a", "why"))])
    assert told.innocents_blamed == ["a: QuarantinedError"]
    assert judged([], delivered=()).innocents_blamed == []


@pytest.mark.parametrize("version", ["2-w0", "4-w0", "", "default", "3-missing"])
def test_weights_that_were_not_current_are_stale(version):
    """Older than what the pool had when it was sent, newer than there are, unknown, or refused."""
    told = judged([generation("a", sample(versions=((version, 0),)))])
    assert len(told.stale) == 1
    assert not told.not_identical


def test_weights_that_became_current_meanwhile_are_not_stale():
    """An actor that begins anew has what the source has, before the pool has heard of it."""
    assert not judged([generation()], due="2-w2").problems


def test_a_sample_of_two_weights_is_mixed():
    """It may be of none of them alone, and the pool was told to allow no lag."""
    told = judged([generation("a", sample(versions=(("3-w0", 0), ("4-w1", 1))))], newest=4)
    assert len(told.mixed) == 1
    assert told.problems


def test_another_answer_is_a_problem_where_it_must_be_the_same():
    """What cannot always be continued exactly is told apart, with why it was begun afresh."""
    other = sample(tokens=(5, 7), restarted=("a penalty",), cuts=(1,))
    told = judged([generation("a", other)])
    assert "greedy 0, 3-w0, cut at [1], begun afresh: a penalty" in told.not_identical[0]
    told = judged([generation("a", other)], asked={"a": PENALISED})
    assert not told.problems
    assert len(told.differing_other) == len(told.restarted) == 1


def seen(name, at, start, now):
    return SeenRequest(id=f"{name}-12345678", at_ns=at, start=start, now=now)


def test_a_cut_is_between_two_cores():
    """What the first one made, what the next one began with; prompts are not counted."""
    lives = [seen("a", 3, 25, 40), seen("a", 1, 10, 30), seen("b", 1, 10, 90), seen("other", 1, 1, 2)]
    assert score.cuts_of(lives, {"a": 10, "b": 10}) == [Cut(id="a", made=20, kept=15)]
    assert Cut(id="a", made=20, kept=15).lost == 5


def test_what_a_core_makes_after_its_actor_is_gone_is_told_apart():
    """Nobody could have had it."""
    lives = [seen("a", 1, 10, 90), seen("b", 1, 10, 12), seen("a", 5, 30, 95)]
    found, unseen = score.as_of_fault(lives, [seen("a", 1, 10, 32), seen("b", 1, 10, 12)])
    assert unseen == 58
    assert score.cuts_of(found, {"a": 10, "b": 10}) == [Cut(id="a", made=22, kept=20)]
    assert score.as_of_fault(lives, []) == (lives, 0)


def test_tokens_are_lost_by_what_was_made_and_not_kept():
    """Requests that waited for their first token lose nothing and are not counted."""
    told = outcome()
    cuts = [Cut(id="a", made=20, kept=15), Cut(id="b", made=0, kept=0), Cut(id="c", made=9, kept=9)]
    score.judge_tokens(told, cuts, {"a": sample(cuts=(15,)), "c": sample("c", cuts=(8,))})
    assert told.tokens_lost == [5, 0]
    assert told.cuts_misstated == ["c: cut at [9], says [8]"]


def test_a_sample_begun_afresh_need_not_name_its_cut():
    """There is none any more."""
    told = outcome()
    score.judge_tokens(told, [Cut(id="a", made=20, kept=3)], {"a": sample(restarted=("why",))})
    assert told.cuts_misstated == []


def test_recovery_ends_with_a_token_that_nobody_had():
    """News of what was made before the fault may come after it."""
    cuts = [Cut(id="a", made=12, kept=10), Cut(id="b", made=5, kept=5)]
    news = [(0.5, "a", 11), (1.1, "a", 10), (1.2, "c", 50), (3.0, "b", 6), (4.0, "a", 11)]
    assert score.next_token_s(1.0, cuts, news, {"a", "b", "c"}) == 2.0
    assert score.next_token_s(1.0, cuts, news, {"a"}) == 3.0
    assert score.next_token_s(1.0, [], news, {"a"}) is None


def test_a_percentile_is_a_value_that_occurs():
    """The nearest one from above."""
    values = [float(n) for n in range(1, 101)]
    assert score.percentile(values, 0.99) == 99.0
    assert score.percentile(values[:20], 0.95) == 19.0
    assert score.percentile([4.0], 0.95) == 4.0
    assert score.percentile([], 0.95) is None


def test_the_summary_keeps_kinds_apart():
    """Restarts from a process against cold starts, standbys, deaths and hangs."""
    told = score.summary(
        [
            outcome(Fault.KILL_CORE, detect_s=0.1, recover_s=2.0, tokens_lost=[0, 7]),
            outcome(Fault.KILL_WORKER, detect_s=0.3, recover_s=4.0),
            outcome(Fault.KILL_ACTOR, detect_s=0.2, recover_s=1.0),
            outcome(Fault.STOP_CORE, detect_s=2.5, recover_s=9.0),
            outcome(Fault.KILL_CORE, standby=True, detect_s=0.1, recover_s=0.4, lost=["x"]),
            outcome(Fault.KILL_CORE, fired=False),
        ],
        cold_s=[10.0, 14.0],
    )
    assert told["recover_ratio_prefork"] == 0.25
    assert told["recover_s_standby"] == 0.4
    assert told["detect_p99_s"] == 0.3
    assert told["hang_detect_p95_s"] == 2.5
    assert told["tokens_lost_max"] == 7
    assert (told["lost"], told["misfired"], told["trials"]) == (1, 1, 6)
    assert told["n"]["kill_core"] == 3


def test_a_fault_that_never_fired_is_a_problem():
    """It proves nothing."""
    assert outcome(fired=False).problems == ["the fault never fired while requests ran"]


@pytest.mark.parametrize("name", score.LISTED)
def test_whatever_must_be_none_is_counted_and_told(name):
    """In the summary, by which the run ends well or not, and for the one trial."""
    told = outcome(**{name: ["why"]})
    assert told.problems == [f"{name}: why"]
    assert score.summary([told], [])[name] == 1
    assert name in score.ZERO


def test_calls_that_end_no_process_at_once_are_not_in_the_time_of_detection():
    """Nor are hangs, which have a time of their own."""
    slow = [outcome(fault, detect_s=9.0) for fault in (Fault.HUNG_CALL, Fault.MISFIT_PUSH, Fault.STOP_ACTOR)]
    told = score.summary([*slow, outcome(Fault.KILL_ASLEEP, detect_s=0.1)], [])
    assert (told["detect_p99_s"], told["hang_detect_p95_s"]) == (0.1, 9.0)
