"""Weights that the user pushes past rayguard: replayed into the next engine, or nobody is answered."""

from __future__ import annotations

import functools
import threading

import pytest

from rayguard import GuardPolicy, RestartBudget
from rayguard.engine.context import Surroundings
from rayguard.engine.supervision.slot import engine_slot
from rayguard.engine.weights.changes import LOST, WeightChanges
from rayguard.engine.weights.sources import CallbackWeights, OwnPush, as_source
from rayguard.errors import WeightsError
from rayguard.recovery.incident import Outcome
from rayguard.testing.fakes import FakeLLM

POLICY = GuardPolicy(
    standby=None,
    engine_budget=RestartBudget(max_restarts=4, within_s=600.0),
    build_deadline_s=5.0,
    weights_deadline_s=5.0,
)

# -- what is known of them


def after(*calls, lost=False):
    """Return the book after calls of (method, whether weights differ), made a second apart."""
    book = WeightChanges(watched=True)
    for now, (method, differ) in enumerate(calls):
        book.called(method, float(now), differ=differ)
    if lost:
        book.lose()
    return book


@pytest.mark.parametrize(
    ("calls", "changed"),
    [
        ([], False),
        ([("get_model_inspection", None), ("rayguard_weights", None), ("profile", True)], False),
        ([("mine", False)], False),
        ([("mine", True)], True),
        ([("mine", None)], True),
        ([("mine", True), ("stats", None)], True),
        ([("start_weight_update", None)], True),
    ],
)
def test_only_a_call_that_may_have_changed_weights_counts(calls, changed):
    """Those that are known to read do not; of others only a look tells, and else the worst is taken."""
    book = after(*calls)
    assert (book.changed, book.irreplaceable) == (changed, changed)


def test_where_a_source_says_what_is_current_no_change_counts():
    """The next engine gets that."""
    book = WeightChanges()
    book.called("mine", 0.0, differ=True)
    assert not book.changed
    assert not book.is_unclear("mine")


def test_the_same_push_again_ends_the_refusal():
    """And not a call that changes nothing, nor a part of a push."""
    book = after(("mine", True), lost=True)
    assert book.asked(1.0) == LOST
    assert book.is_unclear("stats")
    book.called("stats", 1.0, differ=False)
    book.called("mine", 1.0, differ=None, done=False)
    assert book.asked(1.0) == LOST
    book.called("mine", 1.0, differ=None)
    assert book.asked(1.0) == ""


def test_a_push_of_many_calls_is_whole_at_the_last_one():
    """As many as the longest before; or none more come for a while."""
    book = after(*[("one_tensor", True)] * 3)
    assert book.asked(3.0) == ""
    book.lose()
    for now in (4.0, 5.0):
        book.called("one_tensor", now, differ=None)
        assert book.asked(now) == LOST
    book.called("one_tensor", 6.0, differ=None)
    assert book.asked(6.0) == ""
    book.lose()
    book.called("one_tensor", 7.0, differ=None)
    assert book.asked(8.0) == LOST
    assert book.asked(20.0) == ""


def test_vllms_own_weight_transfer_is_whole_when_it_is_finished():
    """However many parts it has."""
    parts = [("start_weight_update", None), ("update_weights", None), ("finish_weight_update", None)]
    book = after(*parts, lost=True)
    for method, _ in parts[:-1] * 2:
        book.called(method, 9.0, differ=None)
        assert book.asked(9.0) == LOST
    book.called("finish_weight_update", 9.0, differ=None)
    assert book.asked(9.0) == ""


def test_a_checkpoint_that_is_loaded_is_a_push_whatever_its_bits():
    """Else nobody could mend an engine that shall have what it was built with."""
    book = after(("mine", True), lost=True)
    assert not book.is_unclear("reload_weights")
    book.called("reload_weights", 1.0, differ=None)
    assert book.asked(1.0) == ""


def test_what_was_pushed_is_remembered_beyond_the_process():
    """By plain types."""
    told = []
    book = WeightChanges(watched=True, tell=lambda: told.append(1))
    assert book.to_json() == {}
    for now in range(3):
        book.called("mine", float(now), differ=True)
    assert told == [1]
    again = WeightChanges(watched=True)
    again.recall(book.to_json())
    assert again.changed
    again.lose()
    again.called("mine", 9.0, differ=None)
    assert again.asked(9.0) == LOST, "the push has three calls"


def test_a_function_that_must_be_given_an_engine_is_the_users_own_push():
    """Told by its signature."""
    for source in (
        lambda: None,
        lambda *_: None,
        lambda _engine=None: None,
        functools.partial(lambda _trainer: None, 1),
        dict,
    ):
        assert isinstance(as_source(source), CallbackWeights)
    for push in (
        lambda _engine: None,
        lambda _engine, _more=1: None,
        functools.partial(lambda _trainer, _engine: None, 1),
        [].append,
    ):
        assert isinstance(as_source(push), OwnPush)


# -- in an engine slot


class Stage:
    """A slot whose user pushes by ``collective_rpc``; ``memory`` outlives it."""

    def __init__(self, folder, weights, memory):
        self.built, self.told = [], []

        def recipe(settings):
            self.built.append(FakeLLM(None, **settings.as_kwargs(max_num_seqs=16)))
            return self.built[-1]

        around = Surroundings(
            target="Fake",
            home=lambda: folder,
            write=lambda i: self.told.append(i) or True,
            recall=lambda: dict(memory),
            remember=memory.update,
        )
        self.slot = engine_slot(recipe, policy=POLICY, surroundings=around, weights=weights)
        self.slot.start()

    @property
    def llm(self):
        return self.slot.engine(5.0).handle

    def answers(self):
        """Return with which weights a request is answered."""
        if self.slot.weights_pending:
            self.slot.catch_up()
        self.llm.generate([1], 2)
        return self.llm.weights

    def die(self):
        self.slot.report(RuntimeError("it died"), self.slot.engine(1.0).life).result(30)


@pytest.fixture
def stage(tmp_path):
    made = []

    def make(weights=None, memory=None):
        made.append(Stage(tmp_path, weights, {} if memory is None else memory))
        return made[-1]

    yield make
    for one in made:
        one.slot.close(0.0)


def test_an_engine_after_one_that_the_user_pushed_into_answers_nobody_until_the_next_push(stage):
    """Not the checkpoint without a word; the incident says so, and what to give."""
    one = stage()
    assert one.answers() == ""
    for version in ("7", "8"):
        one.llm.collective_rpc("mine", version)
        assert one.answers() == version
        one.die()
        for _ in range(2):
            with pytest.raises(WeightsError, match=r"start_engine\(weights=lambda engine"):
                one.answers()
        with pytest.raises(WeightsError, match="pushed by your own code"):
            one.slot.bring_weights()
        assert one.told[-1].outcome is Outcome.STATE_LOST
        assert LOST in one.told[-1].notes
        assert one.slot.status()["weights_missing"] == LOST
    one.llm.collective_rpc("mine", "9")
    assert (one.answers(), one.slot.status()["weights_missing"], len(one.built)) == ("9", "", 3)


def test_requests_in_flight_do_not_go_on_with_the_checkpoint(stage):
    """They end with the same error."""
    one = stage()
    one.llm.collective_rpc("mine", "7")

    def kill(llm, request):
        if len(request.tokens) == 2:
            llm.script = None
            raise RuntimeError("it died")

    one.llm.script = kill
    with pytest.raises(WeightsError, match="pushed by your own code"):
        one.llm.generate([1, 2], 8)


def test_a_call_that_changed_nothing_takes_no_service(stage):
    """Whatever its name."""
    one = stage()
    one.llm.collective_rpc("statistics")
    one.die()
    assert one.answers() == ""
    assert one.told[-1].outcome is Outcome.RECOVERED


def test_the_users_own_push_is_made_into_each_new_engine_before_it_answers(stage):
    """Also into the first one; ``update_weights`` makes it once more."""
    current, pushed = ["1"], []

    def push(engine):
        pushed.append(engine)
        engine.collective_rpc("mine", current[0])
        return current[0]

    one = stage(push)
    assert one.answers() == "1"
    current[0] = "2"
    assert one.slot.bring_weights() == "2"
    assert one.answers() == "2"
    one.die()
    assert one.answers() == "2"
    assert pushed == [one.built[0], one.built[0], one.built[1]]
    assert one.told[-1].outcome is Outcome.RECOVERED


def test_whoever_waits_for_the_users_push_does_not_make_it_again(stage):
    """It may take a trainer minutes."""
    pushed, inside, go_on = [], threading.Event(), threading.Event()

    def push(engine):
        pushed.append(engine)
        if len(pushed) == 2:
            inside.set()
            assert go_on.wait(30)

    one = stage(push)
    threads = [threading.Thread(target=one.slot.bring_weights)]
    threads[0].start()
    assert inside.wait(30)
    assert one.slot.weights_pending
    threads += [threading.Thread(target=one.slot.catch_up) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(pushed) == 2


def test_a_push_of_the_users_that_fails_answers_nobody_and_restarts_nothing(stage):
    """It is made again when somebody asks."""
    broken = []

    def push(engine):
        if broken:
            raise ConnectionError("the trainer is away")
        engine.collective_rpc("mine", "1")

    one = stage(push)
    broken.append(1)
    one.die()
    for _ in range(2):
        with pytest.raises(WeightsError, match="ConnectionError: the trainer is away"):
            one.answers()
    assert len(one.built) == 2
    assert one.told[-1].outcome is Outcome.STATE_LOST
    broken.clear()
    assert (one.answers(), len(one.built)) == ("1", 2)


def test_the_next_process_of_the_actor_knows_that_weights_were_pushed(stage):
    """Its engine has the checkpoint as well."""
    memory = {}
    stage(memory=memory).llm.collective_rpc("mine", "7")
    one = stage(memory=memory)
    with pytest.raises(WeightsError, match="pushed by your own code"):
        one.answers()
    assert one.told[-1].outcome is Outcome.STATE_LOST
    one.llm.collective_rpc("mine", "8")
    assert one.answers() == "8"


def test_an_engine_with_weights_that_no_other_one_could_get_is_not_replaced(stage):
    """For faster settings, or because it grows: no fault is worth it."""
    one = stage()
    assert one.slot.renew("it grows") is not None
    one.slot.engine(5.0)
    one.llm.collective_rpc("mine", "7")
    assert one.slot.renew("it grows") is None
    assert one.answers() == "7"


def test_a_version_that_the_replay_said_ends_with_the_users_next_push(stage):
    """Nobody knows what that one is called: tokens of it are not said to be of the version before."""
    pushed = ["1"]

    def push(engine):
        engine.collective_rpc("mine", pushed[-1])
        return f"version {pushed[-1]}"

    one = stage(weights=push)
    assert one.answers() == "1"
    assert one.slot.status()["weight_version"] == "version 1"
    one.llm.collective_rpc("get_model")
    assert one.slot.status()["weight_version"] == "version 1", "that only reads"
    pushed.append("2")
    one.llm.collective_rpc("mine", "2")
    assert one.slot.status()["weight_version"] == ""
    one.die()
    assert one.answers() == "2"
    assert one.slot.status()["weight_version"] == "version 2"
