"""The audit: which requests are chosen, and what an answer that differs comes to. No engine."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from rayguard import ConfigError, GuardPolicy
from rayguard.engine.audit import Audit
from rayguard.engine.audited_answer import AuditedAnswer
from rayguard.engine.weights.canary import Canary
from rayguard.recovery.tally import EngineTally

TOLERANCE = 0.5


@dataclass
class Asked:
    """An engine that answers from a list, the last one again and again."""

    answers: list[Canary | Exception | None]
    closely: list[bool] = field(default_factory=list)

    def answer_again(self, _answer, *, deadline_s, closely):
        assert deadline_s > 0
        self.closely.append(closely)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found


def bare(*tokens):
    return Canary(tuple(((token, 0.0),) for token in tokens), bare=True)


def full(*positions):
    return Canary(tuple(positions))


class Judged:
    def __init__(self, *answers, outdated=False):
        self.engine, self.wrong, self.tally = Asked(list(answers)), [], EngineTally("e")
        audit = Audit(
            1.0,
            TOLERANCE,
            ready=lambda: self.engine,
            wrong=lambda error, engine: self.wrong.append((error, engine)),
            tally=self.tally,
        )
        audit.judge(AuditedAnswer("a", None, (4, 5), 0.1, lambda: outdated))


def test_the_same_answer_is_asked_for_once_and_counted():
    judged = Judged(bare(4, 5))
    assert judged.engine.closely == [False]
    assert (judged.tally.audited, judged.wrong) == (1, [])


def test_another_token_is_told_with_the_request_and_the_engine():
    judged = Judged(bare(4, 6), full(((4, -0.1), (9, -3.0)), ((6, -0.1), (9, -3.0))))
    (error, engine), *more = judged.wrong
    assert (error.request, error.tokens, engine, more) == ("a", 2, judged.engine, [])
    assert "token 2 is 6 and not 5" in str(error)
    assert (judged.tally.audited, judged.tally.audited_wrong) == (1, 1)
    assert judged.engine.closely == [False, True]


def test_a_tie_is_no_contradiction():
    judged = Judged(bare(4, 6), full(((4, -0.1), (9, -3.0)), ((6, -0.7), (5, -0.8))))
    assert (judged.tally.audited, judged.wrong) == (1, [])


@pytest.mark.parametrize(
    "answers",
    [(bare(4, 6), bare(4, 6)), (Canary(error="no"),), (bare(4, 6), Canary(error="no"))],
    ids=["no numbers", "an error", "an error at the second time"],
)
def test_what_cannot_be_compared_is_no_contradiction(answers):
    assert Judged(*answers).wrong == []


def test_an_engine_without_time_is_asked_again(monkeypatch):
    monkeypatch.setattr("rayguard.engine.audit._AGAIN_S", 0.001)
    judged = Judged(None, None, bare(4, 5))
    assert judged.engine.closely == [False] * 3
    assert judged.tally.audited == 1


@pytest.mark.parametrize("answer", [bare(4, 6), RuntimeError("it died")])
def test_an_answer_of_other_weights_or_another_life_says_nothing(answer):
    judged = Judged(answer, outdated=True)
    assert (judged.tally.audited, judged.wrong) == (0, [])


def choosing(share):
    return Audit(share, TOLERANCE, ready=lambda: None, wrong=lambda *_: None, tally=EngineTally("e"))


@pytest.mark.parametrize("share", [1.0, 0.25, 0.01])
def test_the_share_of_the_greedy_requests_is_chosen_evenly(share):
    audit = choosing(share)
    chosen = [audit.chooses(greedy=True) for _ in range(1000)]
    assert abs(sum(chosen) - 1000 * share) <= 1
    longest = max(len(gap) for gap in "".join("x" if one else "." for one in chosen).split("x"))
    assert longest <= 1 / share


def test_an_audit_that_has_nothing_to_audit_says_so_once(caplog):
    audit = choosing(1.0)
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not any(audit.chooses(greedy=False) for _ in range(5000))
    assert [record.message for record in caplog.records if "none" in record.message] != []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match=r"GuardPolicy\.audit must be a share from 0 to 1"):
        GuardPolicy(audit=share)
