"""Canaries after a push: what an answer proves, who is fenced, loaded again or refused, and what is told."""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from rayguard import GuardPolicy, RestartBudget, Weights
from rayguard.engine.context import Surroundings
from rayguard.engine.supervision.slot import engine_slot
from rayguard.engine.weights.canary import Canary, disagreement, diverged, outvoted, sick
from rayguard.engine.weights.current import Doubt
from rayguard.errors import ConfigError, GaveUpError, WeightsError
from rayguard.recovery.incident import Outcome
from rayguard.recovery.tally import TALLY
from rayguard.testing.fakes import FakeEngine, FakeLLM

TOLERANCE = 0.5
POLICY = GuardPolicy(
    standby=None,
    engine_budget=RestartBudget(max_restarts=4, within_s=600.0),
    build_deadline_s=5.0,
    weights_deadline_s=5.0,
)


def says(*tokens, at=-1.0):
    """Return an answer of these tokens, each far likelier than the next best."""
    return Canary(tuple(((token, at), (token + 1, at - 3.0)) for token in tokens))


NAN = Canary((((0, math.nan), (1, math.nan)),))
GOOD, OTHER, THIRD = says(5, 9, 2), says(5, 8, 2), says(7, 8, 2)

# -- what answers mean

LOGPROBS = st.floats(-20.0, 0.0)
POSITIONS = st.lists(st.tuples(st.integers(0, 50), LOGPROBS), min_size=1, max_size=5).map(tuple)
ANSWERS = st.lists(POSITIONS, min_size=1, max_size=8).map(lambda positions: Canary(tuple(positions)))


@given(ANSWERS, ANSWERS)
def test_agreement_is_mutual_and_everybody_agrees_with_himself(one, other):
    """Whoever is asked."""
    assert disagreement(one, one, TOLERANCE) == ""
    assert bool(disagreement(one, other, TOLERANCE)) is bool(disagreement(other, one, TOLERANCE))


@given(ANSWERS, st.data())
def test_the_same_tokens_agree_up_to_the_tolerance_and_no_further(answer, data):
    """Other kernels and batches round differently."""

    def moved(by):
        first, *others = answer.positions
        (token, logprob), *rest = first
        return Canary((((token, logprob + by), *rest), *others))

    near = data.draw(st.floats(-0.99 * TOLERANCE, 0.99 * TOLERANCE))
    assert disagreement(moved(near), answer, TOLERANCE) == ""
    assert "log-probability" in disagreement(moved(1.01 * TOLERANCE), answer, TOLERANCE)


def test_other_tokens_agree_only_where_it_was_a_tie_for_both():
    """A tie may fall either way, and what follows it is another text."""
    tied = Canary((((5, -1.0), (8, -1.2)), ((3, -0.1), (4, -4.0))))
    fell = Canary((((8, -1.1), (5, -1.15)), ((40, -0.1), (41, -4.0))))
    assert disagreement(tied, fell, TOLERANCE) == ""
    sure = Canary((((8, -0.1), (5, -4.0)), ((40, -0.1), (41, -4.0))))
    assert disagreement(tied, sure, TOLERANCE) == "token 1 is 5 and not 8"
    flat = Canary((((5, -6.0), (8, -6.1)),))  # 7 is not told, and may be as likely as these
    assert disagreement(flat, Canary((((7, -6.0), (9, -6.1)),)), TOLERANCE) == ""
    assert "1 tokens and not 3" in disagreement(says(5), says(5, 9, 2), TOLERANCE)


@pytest.mark.parametrize(
    ("answer", "why", "numbers"),
    [
        (NAN, "token 1 of its answer has log-probability nan", True),
        (says(3, at=-math.inf), "log-probability -inf", True),
        (Canary((((3, -1.0), (4, math.nan)),)), "log-probability nan", True),
        (Canary(error="no KV"), "answers with an error: no KV", False),
        (Canary(), "without a token", False),
    ],
)
def test_no_engine_serves_that_answers_without_numbers(answer, why, numbers):
    """Only broken numbers are said to be the weights' own fault."""
    assert why in sick(answer)
    assert diverged(answer) is numbers
    assert (sick(GOOD), diverged(GOOD)) == ("", False)
    assert sick(Canary((((3, -1.0), (4, -math.inf)),))) == "", "a forbidden alternative"


def test_the_many_outvote_the_one():
    """And where nobody has more votes, nobody is right."""
    assert outvoted({"a": GOOD, "b": GOOD, "c": OTHER}, TOLERANCE) == {"c": GOOD}
    assert outvoted({"a": GOOD, "b": says(5, 9, 2, at=-1.2)}, TOLERANCE) == {}
    assert outvoted({"a": GOOD, "b": OTHER}, TOLERANCE) == {"a": None, "b": None}
    assert outvoted({"a": GOOD, "b": GOOD, "c": OTHER, "d": OTHER, "e": THIRD}, TOLERANCE).keys() == set(
        "abcde"
    )
    assert outvoted({}, TOLERANCE) == outvoted({"a": GOOD}, TOLERANCE) == {}


# -- what is done about them


class Asked(FakeEngine):
    """Answers as its script says: called with the version that it holds and how many were pushed to it."""

    @override
    def canary(self, *, deadline_s):
        assert deadline_s <= POLICY.weights_deadline_s
        return self._built.sings(self._built.weights, self.pushes)


class Singing(FakeLLM):
    sings = None

    def rayguard_engine(self, report, predecessor):
        return Asked(self, report, predecessor)


class Stage:
    """A slot whose engines answer as ``song(life, version, pushes)`` says."""

    def __init__(self, folder, song, policy=POLICY):
        self.built, self.told, self.version, self.asked = [], [], "1", 0
        self.song = song

        def recipe(settings):
            llm, life = Singing(None, **settings.as_kwargs(max_num_seqs=16)), len(self.built)
            llm.sings = lambda version, pushes: self._sing(life, version, pushes)
            self.built.append(llm)
            return llm

        around = Surroundings(target="Fake", home=lambda: folder, write=lambda i: self.told.append(i) or True)
        self.slot = engine_slot(recipe, policy=policy, surroundings=around, weights=self.weights)
        self.slot.start()

    def _sing(self, life, version, pushes):
        self.asked += 1
        return self.song(life, version, pushes)

    def weights(self):
        return Weights.from_tensors(self.version, {"w": torch.full((2,), float(self.version))})

    @property
    def incidents(self):
        return [i for i in self.told if i.outcome is not Outcome.OPEN]

    @property
    def pushes(self):
        return self.slot.engine(1.0).pushes

    def die(self):
        self.slot.report(RuntimeError("it died"), self.slot.engine(1.0).life).result(30)


@pytest.fixture
def stage(tmp_path):
    made = []

    def make(song, policy=POLICY):
        made.append(Stage(tmp_path, song, policy))
        return made[-1]

    yield make
    for one in made:
        one.slot.close(0.0)


def test_each_push_is_heard_and_agreement_tells_nothing(stage):
    """Across versions and lives; what the engine said stands in its proof."""
    one = stage(lambda _life, version, _pushes: GOOD if version == "1" else OTHER)
    assert one.slot.proof.canary == GOOD
    one.version = "2"
    assert one.slot.bring_weights() == "2"
    one.die()
    assert (one.slot.proof.canary, one.pushes, one.asked, len(one.incidents)) == (OTHER, 1, 3, 1)


def test_an_engine_that_answers_otherwise_than_its_earlier_life_is_loaded_once_more(stage):
    """The receipts were right; what became of the weights was not. Callers never know; one incident tells."""
    one = stage(lambda life, _version, pushes: OTHER if life == 1 and pushes == 1 else GOOD)
    one.die()
    assert (len(one.built), one.pushes, one.slot.proof.canary) == (2, 2, GOOD)
    assert one.slot.ready is not None
    told = one.incidents[0]
    assert (told.kind, told.outcome, told.remedy) == ("weight_sync_failed", Outcome.RECOVERED, "push_again")
    assert "token 2 is 8 and not 9" in told.cause
    assert "weights '1'" in told.cause


def test_an_engine_that_insists_is_replaced_with_the_same_settings(stage):
    """Fenced, loaded again, refused, rebuilt: none of it is a setting's fault, however often."""
    one = stage(lambda life, _version, _pushes: {1: OTHER, 2: THIRD}.get(life, GOOD))
    one.die()
    assert (len(one.built), one.slot.proof.canary, one.slot.weights_pending) == (4, GOOD, False)
    assert one.slot.status()["settings"] == []
    assert [engine.weights for engine in one.built] == ["1"] * 4


def test_two_lives_that_agree_are_believed_against_an_older_one(stage):
    """The record may be what was wrong: no engine is refused for ever because of it."""
    one = stage(lambda life, _version, _pushes: OTHER if life else GOOD)
    one.die()
    assert (len(one.built), one.slot.proof.canary) == (3, OTHER)
    one.die()
    assert (len(one.built), one.pushes) == (4, 1)


def test_weights_that_make_no_numbers_are_refused_and_a_newer_version_serves(stage):
    """In two lives: the caller is told what to do, nothing is pushed again, nobody is served."""
    one = stage(lambda _life, version, _pushes: NAN if version == "2" else GOOD)
    one.version = "2"
    for _ in range(3):
        with pytest.raises(WeightsError, match=r"weights '2' are not served.*log-probability nan"):
            one.slot.bring_weights()
        assert one.slot.ready is None
        assert one.slot.weights_pending
    assert (len(one.built), one.pushes) == (2, 1)
    assert {i.signature for i in one.incidents} == {"rayguard.weights.canary"}
    told = next(i for i in one.incidents if i.scope == "job")
    assert (told.kind, told.scope, told.outcome) == ("numeric_nan", "job", Outcome.FAILED)
    assert "gradient norm" in told.advice
    one.version = "3"
    assert one.slot.bring_weights() == "3"
    assert one.slot.ready is not None
    assert len(one.built) == 3, "its cache would hold NaN for ever"


def test_a_trainer_that_goes_on_diverging_is_told_each_time_until_the_budget_is_spent(stage):
    """Bounded: each version costs a rebuild."""
    one = stage(lambda _life, version, _pushes: GOOD if version == "1" else NAN)
    for version in "23":
        one.version = version
        with pytest.raises(WeightsError, match=f"weights '{version}' are not served"):
            one.slot.bring_weights()
    one.version = "1"
    assert one.slot.bring_weights() == "1"
    with pytest.raises(GaveUpError, match="log-probability nan"):
        for number in range(4, 9):
            one.version = str(number)
            with contextlib.suppress(WeightsError):
                one.slot.bring_weights()


def test_one_life_that_makes_no_numbers_is_replaced(stage):
    """It was damaged: the next one makes some of the same weights."""
    one = stage(lambda life, version, _pushes: NAN if (life, version) == (0, "2") else GOOD)
    one.version = "2"
    assert one.slot.bring_weights() == "2"
    assert (len(one.built), one.pushes, one.slot.ready is not None) == (2, 1, True)
    one.song = lambda life, version, _pushes: NAN if (life, version) == (2, "2") else GOOD
    one.die()
    assert (len(one.built), one.slot.proof.version) == (4, "2"), "it has proved since that it makes some"


def test_an_error_that_passes_when_they_are_loaded_once_more_is_no_harm(stage):
    """Of one request."""
    ill = Canary(error="no KV")
    one = stage(lambda _life, _version, pushes: ill if pushes == 1 else GOOD)
    assert (one.slot.proof.canary, one.pushes, len(one.built)) == (GOOD, 2, 1)
    assert one.incidents[0].outcome is Outcome.RECOVERED


def test_without_a_second_answer_nothing_shows_that_it_helped(stage):
    """Then the first one stands, and a new engine is built."""
    one = stage(lambda life, _version, pushes: GOOD if life != 1 else (OTHER if pushes == 1 else None))
    one.die()
    assert (len(one.built), one.slot.proof.canary) == (3, GOOD)


def test_a_broken_canary_is_counted_and_the_weights_are_served(stage):
    """Never worse; after three in a row no more are asked."""

    def broken(*_):
        raise RuntimeError("no song today")

    before, one = TALLY.guard_errors["canary"], stage(broken)
    for version in "2345":
        one.version = version
        assert one.slot.bring_weights() == version
        assert one.slot.ready is not None
    assert (one.asked, TALLY.guard_errors["canary"] - before, one.incidents) == (3, 3, [])


def test_no_canary_is_asked_where_none_is_wanted_or_nothing_is_pushed(stage):
    """The policy, and engines that cannot answer: the receipts are the proof then."""
    off = stage(lambda *_: NAN, replace(POLICY, canary_tolerance=None))
    assert (off.asked, off.slot.proof.canary, off.slot.proof.version) == (0, None, "1")
    cannot = stage(lambda *_: None)
    assert (cannot.asked, cannot.slot.proof.canary, cannot.slot.ready is not None) == (1, None, True)
    held = stage(lambda *_: GOOD)
    held.slot.bring_weights()
    assert (held.asked, held.pushes) == (1, 1)
    for value in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="canary_tolerance"):
            GuardPolicy(canary_tolerance=value)


def test_who_comes_while_weights_are_brought_finds_it_done(stage):
    """A canary lengthens a push by some steps: those who wait meanwhile must not each push again."""
    inside, go_on = threading.Event(), threading.Event()

    def song(_life, version, _pushes):
        if version == "2":
            inside.set()
            assert go_on.wait(30)
        return GOOD

    one = stage(song)
    one.version, results = "2", []
    threads = [threading.Thread(target=lambda: results.append(one.slot.bring_weights())) for _ in range(4)]
    threads[0].start()
    assert inside.wait(30)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert (results, one.pushes) == (["2"] * 4, 2)


# -- engines of a pool


def test_engines_of_a_pool_hold_the_outvoted_one_to_what_most_answer(stage):
    """Loaded once more, on what the others say; it is told in an incident."""
    pool = {name: stage(lambda *_: GOOD) for name in "ab"}
    pool["c"] = stage(lambda _life, _version, pushes: OTHER if pushes == 1 else GOOD)
    doubts = outvoted({name: one.slot.proof.canary for name, one in pool.items()}, TOLERANCE)
    assert doubts == {"c": GOOD}
    assert pool["c"].slot.bring_weights(Doubt(pool["c"].slot.proof.digest, doubts["c"])) == "1"
    assert pool["c"].slot.proof.canary == GOOD
    (told,) = pool["c"].incidents
    assert "other engines answer otherwise" in told.cause
    assert not outvoted({name: one.slot.proof.canary for name, one in pool.items()}, TOLERANCE)


def test_an_outvoted_engine_that_insists_is_replaced(stage):
    """Its process may be damaged; the next one is held to what most answer as well."""
    one = stage(lambda life, _version, _pushes: GOOD if life else OTHER)
    assert one.slot.bring_weights(Doubt(one.slot.proof.digest, GOOD)) == "1"
    assert (len(one.built), one.slot.proof.canary) == (2, GOOD)
    assert one.incidents[-1].signature == "rayguard.weights.canary"
    assert one.slot.status()["settings"] == []


def test_where_nobody_is_right_all_are_loaded_again_and_say_it_anew(stage):
    """What they said before counts for nothing."""
    one = stage(lambda _life, _version, pushes: OTHER if pushes == 1 else GOOD)
    assert one.slot.bring_weights(Doubt(one.slot.proof.digest)) == "1"
    assert (len(one.built), one.pushes, one.slot.proof.canary) == (1, 2, GOOD)
    (told,) = one.incidents
    assert told.outcome is Outcome.RECOVERED


def test_one_of_two_that_says_the_same_again_is_not_told_as_healed(stage):
    """It may have been right all along; its pool says what came of it."""
    one = stage(lambda *_: GOOD)
    assert one.slot.bring_weights(Doubt(one.slot.proof.digest)) == "1"
    assert (one.pushes, one.slot.proof.canary, one.incidents) == (2, GOOD, [])


def test_an_outvoted_engine_that_answers_no_more_is_replaced(stage):
    """Nothing shows that loading it again helped."""
    one = stage(lambda life, _version, pushes: GOOD if life else (OTHER if pushes == 1 else None))
    assert one.slot.bring_weights(Doubt(one.slot.proof.digest, GOOD)) == "1"
    assert (len(one.built), one.slot.proof.canary) == (2, GOOD)


def test_a_doubt_about_other_weights_is_void(stage):
    """It comes late: the engine has newer ones, or gets them now, and is not held to an answer to the older."""
    one = stage(lambda _life, version, _pushes: GOOD if version == "1" else OTHER)
    old = one.slot.proof.digest
    one.version = "2"
    assert one.slot.bring_weights(Doubt(old, THIRD)) == "2"
    assert one.slot.bring_weights(Doubt(old, THIRD)) == "2"
    assert (one.pushes, one.slot.proof.canary, one.incidents) == (2, OTHER, [])


@given(st.lists(st.sampled_from((GOOD, OTHER, THIRD)), max_size=7))
def test_who_agrees_with_more_than_half_is_never_outvoted(said):
    """And whoever is told what most answer answers otherwise."""
    answers = {str(n): one for n, one in enumerate(said)}
    found = outvoted(answers, TOLERANCE)
    for name, answer in answers.items():
        assert name not in found or said.count(answer) * 2 <= len(said)
    assert all(most is None or most != answers[name] for name, most in found.items())


# -- where no log-probabilities are told


def bare(*tokens):
    return Canary(tuple(((token, 0.0),) for token in tokens), bare=True)


def test_tokens_alone_are_compared_with_tokens_alone():
    """Beside an answer with log-probabilities, its ties count."""
    assert disagreement(bare(5, 9), bare(5, 9), TOLERANCE) == ""
    assert "(5, 9) and not (5, 8)" in disagreement(bare(5, 9), bare(5, 8), TOLERANCE)
    assert disagreement(bare(5, 9, 2), GOOD, TOLERANCE) == disagreement(GOOD, bare(5, 9, 2), TOLERANCE) == ""
    assert "token 2" in disagreement(bare(5, 8, 2), GOOD, TOLERANCE)
    tied = Canary((((5, -1.0), (8, -1.2)), ((3, -0.1), (4, -4.0))))
    assert disagreement(bare(8, 40), tied, TOLERANCE) == ""
    assert not sick(bare(5))


class Terse(Asked):
    """Tells tokens alone, unless it is asked closely."""

    @override
    def canary(self, *, deadline_s, closely=False):
        answer = super().canary(deadline_s=deadline_s)
        return answer if closely else bare(*answer.tokens)


@pytest.fixture
def terse(stage, monkeypatch):
    def adapter(llm, report, predecessor):
        return Terse(llm, report, predecessor)

    monkeypatch.setattr(Singing, "rayguard_engine", adapter)
    return stage


def test_damage_is_found_where_nobody_wants_log_probabilities(terse):
    """One engine alone, against what these weights answered in its earlier life."""
    one = terse(lambda life, _version, pushes: OTHER if life == 1 and pushes == 1 else GOOD)
    assert one.slot.proof.canary is None, "others have nothing to compare"
    one.die()
    assert (len(one.built), one.pushes) == (2, 2)
    assert "token 2 is 8 and not 9" in one.incidents[0].cause


def test_another_token_that_was_a_tie_is_no_damage(terse):
    """A closer look tells."""
    tied = Canary((((8, -1.0), (5, -1.1)), ((3, -0.1), (4, -4.0))))
    one = terse(lambda life, _version, _pushes: tied if life else says(5, 9))
    one.die()
    assert (len(one.built), one.pushes) == (2, 1)


def test_nan_is_found_by_the_one_token_that_it_leads_to(terse):
    """Any NaN makes a greedy engine say the first token for ever."""
    nan = Canary((((0, math.nan), (1, math.nan)),) * 3)
    one = terse(lambda _life, version, _pushes: nan if version == "2" else GOOD)
    one.version = "2"
    with pytest.raises(WeightsError, match="log-probability nan"):
        one.slot.bring_weights()


@pytest.mark.parametrize(
    ("says_what", "told"),
    [
        (says(7, 7, 7, at=-0.001), True),
        (Canary((((0, -6.0), (1, -6.0)),) * 3), True),
        (says(7, 7, 7), False),
        (says(7, 7, 6, at=-0.001), False),
    ],
    ids=["certain", "even", "likely", "two tokens"],
)
def test_weights_that_say_one_token_for_ever_serve_and_are_told_once(stage, says_what, told):
    """Where those before them said several, and nothing else is as likely, or all is."""
    one = stage(lambda _life, version, _pushes: says_what if version == "2" else GOOD)
    for version in "2121":
        one.version = version
        assert one.slot.bring_weights() == version
    assert [i.remedy for i in one.incidents] == ["serve_and_tell"] * told
