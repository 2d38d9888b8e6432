"""The catalog of questions and the right answers to them."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from rayguard import Sample
from rayguard.engine.generated import Generated
from rayguard.pool.values.request import check_sampling, fan_out
from rayguard.pool.values.result import Generation
from tests.benchmarks.trials.oracle import Answer, Oracle, Question, catalog, with_stops
from tests.benchmarks.trials.plan import Size

MADE = Generated(
    tokens=array("i", [5, 6]),
    width=1,
    ids=array("i", [5, 6]),
    logprobs=array("f", [-0.5, -1.5]),
    ranks=array("i", [1, 2]),
    versions=(("0-w0", 0),),
)
SAMPLE = Sample(
    id="a", prompt_token_ids=(1, 2, 3), generated=MADE, text="hi", finish_reason="length", engine="rollout-0"
)


def changed(**values):
    return replace(SAMPLE, **values)


def test_the_catalog_has_as_many_questions_as_are_drawn_from():
    """And each has a name of its own."""
    questions = catalog()
    assert len({q.name for q in questions}) == len(questions) == Size().questions


def test_every_question_has_one_right_answer():
    """Greedy or with a seed, and of 40 to 150 tokens."""
    for question in catalog():
        assert question.sampling["temperature"] == 0 or "seed" in question.sampling
        assert 40 <= question.sampling["max_tokens"] <= 150
        assert len(fan_out("id", question.prompt, check_sampling(question.sampling))) == question.n


def test_all_that_a_caller_sees_is_compared():
    """What another engine or a cut changes about a sample is not seen."""
    answer = Answer.of(SAMPLE)
    assert not Answer.of(changed(engine="rollout-1", cuts=(1,), restarted=("why",))).differs(answer)
    for other in (
        changed(text="ho"),
        changed(finish_reason="stop"),
        changed(stop_reason="i"),
        changed(generated=MADE.first(1)),
        changed(generated=replace(MADE, logprobs=array("f", [-0.5, -1.25]))),
        changed(generated=replace(MADE, ids=array("i", [5, 7]))),
        changed(generated=replace(MADE, ranks=array("i", [1, 3]))),
    ):
        assert Answer.of(other).differs(answer)


def test_a_difference_says_where_it_begins():
    """In tokens, which are easier to understand than the text that follows from them."""
    other = changed(generated=replace(MADE, tokens=array("i", [5, 9])), text="ho")
    assert Answer.of(other).differs(Answer.of(SAMPLE)).startswith("tokens from 1 of 2 on: (9,), not (6,)")


def test_stop_strings_come_from_the_answers():
    """One from each of the looks, from behind the middle."""
    questions = [
        Question(name="stop 0", kind="stop", prompt="p", sampling={"temperature": 0.0}),
        Question(name="greedy 0", kind="greedy", prompt="p", sampling={"temperature": 0.0}),
    ]
    stopped, other = with_stops(questions, [{"stop 0": "0123456789"}, {"stop 0": "abcdefghij"}])
    assert stopped.sampling["stop"] == ["6789", "ghij"]
    assert other is questions[1]


def test_an_oracle_answers_what_it_was_told():
    """By weights, question and index, with the length of the prompt."""
    oracle = Oracle(catalog())

    def ask(questions):
        return [Generation(id=q.name, samples=(SAMPLE,)) for q in questions]

    assert not oracle.known
    assert oracle.learn("w0", ask) == []
    assert oracle.known
    assert oracle.expects("w0", oracle.questions[0], 0) == Answer.of(SAMPLE)
    assert oracle.prompt_tokens[oracle.questions[0].name] == 3
    assert oracle.tokens("w0", oracle.questions[0]) == 2


def test_an_oracle_that_contradicts_itself_says_so():
    """A question that has two answers without any fault proves nothing."""
    texts = iter("ab" * 100)

    def ask(questions):
        return [Generation(id=q.name, samples=(changed(text=next(texts)),)) for q in questions]

    oracle = Oracle(catalog()[:1])
    assert oracle.learn("w0", ask) == ["greedy 0/0 under w0: text: 'b', not 'a'"]


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_every_question_is_asked_twice_in_another_company(count):
    """Whatever their number."""
    oracle = Oracle(catalog()[:count])
    asked = []

    def ask(questions):
        asked.append([q.name for q in questions])
        return [Generation(id=q.name, samples=(SAMPLE,)) for q in questions]

    oracle.learn("w0", ask)
    assert sorted(asked[0]) == sorted(asked[1])
    assert count < 3 or asked[0] != asked[1]
