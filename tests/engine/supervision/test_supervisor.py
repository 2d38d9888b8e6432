"""One engine slot with scripted engines: who waits, who rebuilds, when it ends, what is told."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import re
import sys
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from rayguard.actors.guard.guard import guard
from rayguard.actors.guard.mixins import RolloutMixin
from rayguard.engine.build import builder
from rayguard.engine.calls import mark
from rayguard.engine.context import Surroundings
from rayguard.engine.protocol import Standing
from rayguard.engine.supervision.recovery import Recovery
from rayguard.engine.supervision.slot import engine_slot
from rayguard.engine.weights.version import Weights
from rayguard.errors import ConfigError, EngineCallError, GaveUpError, WeightsError
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.incident import Outcome, incident_of
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.tally import TALLY
from rayguard.testing.fakes import FakeEngine, FakeEngineDeadError, FakeLLM, answer
from tests.engine.contract import check_contract

POLICY = GuardPolicy(
    standby=None,
    engine_budget=RestartBudget(max_restarts=4, within_s=600.0),
    build_deadline_s=5.0,
    weights_deadline_s=5.0,
)


SLOTS = []


@pytest.fixture(autouse=True)
def close_slots():
    """No test leaves a watch behind."""
    yield
    while SLOTS:
        SLOTS.pop().close(0.0)


def die(*_):
    raise FakeEngineDeadError("the engine is dead")


class Kills:
    """Kills the engine before the n-th token of a given prompt, a given number of times.

    Once for each request, if they strike ``apart``: then it is no request's fault.
    """

    def __init__(self, times=1, prompt=None, at=3, *, apart=False):
        self.left, self.prompt, self.at, self.fired = times, prompt, at, 0
        self.apart, self.struck = apart, set()

    def __call__(self, llm, request):
        if self.apart and request.id in self.struck:
            return
        if self.left and (self.prompt in (None, request.prompt)) and len(request.tokens) + 1 >= self.at:
            self.left -= 1
            self.struck.add(request.id)
            self.fired += 1
            die()


class Journal:
    def __init__(self):
        self.lines = []

    def write(self, incident):
        self.lines.append(incident)
        return True

    def closed(self):
        return [i for i in self.lines if i.outcome is not Outcome.OPEN]


@pytest.fixture
def journal():
    return Journal()


@pytest.fixture
def around(tmp_path, journal):
    def diagnose(fault):
        mine = any(seen.type_name == "KeyError" for seen in fault.exceptions)
        return Diagnosis(
            signature="mine" if mine else "fake_dead",
            kind=Kind.USER_CODE if mine else Kind.ENGINE_DEAD,
            scope=Scope.CODE if mine else Scope.ENGINE,
            cause=str(fault.exceptions[0]) if fault.exceptions else "?",
            confidence=0.9,
            advice="look at the prompt",
        )

    return Surroundings(target="Fake", home=lambda: tmp_path, diagnose=diagnose, write=journal.write)


def slot_of(around, script=None, policy=POLICY, weights=None, built=None):
    def recipe(settings):
        llm = FakeLLM(script, **settings.as_kwargs(max_num_seqs=16))
        if built is not None:
            built.append(llm)
        return llm

    slot = engine_slot(recipe, policy=policy, surroundings=around, weights=weights)
    SLOTS.append(slot)
    slot.start()
    return slot


def use(slot, call):
    from rayguard.actors.guard.mixins import _use

    return _use(slot, call)


def test_an_interrupted_batch_goes_on_and_its_answer_is_what_it_would_have_been(around, journal):
    """The caller's call simply returns, with the same tokens, and one incident tells why."""
    kills = Kills(times=1, prompt=2, at=5)
    slot = slot_of(around, kills)
    results = use(slot, lambda llm: llm.generate([1, 2, 3]))
    assert [r.tokens for r in results] == [answer(p, 16) for p in (1, 2, 3)]
    assert kills.fired == 1
    (incident,) = journal.closed()
    assert incident.outcome is Outcome.RECOVERED
    assert incident.kind == "engine_dead"
    assert incident.tokens_saved == 5 + 4 + 4
    assert incident.requests == 3
    assert slot.status()["epoch"] == 2
    assert journal.lines[0].outcome is Outcome.OPEN, "in the journal before anything is done"


def test_one_rebuild_serves_all_who_wait(around, journal):
    """Eight threads on one dying engine: one recovery, eight answers."""
    built = []
    slot = slot_of(around, Kills(times=1, at=4), built=built)
    answers = {}
    barrier = threading.Barrier(8)

    def one(prompt):
        barrier.wait(5)
        answers[prompt] = use(slot, lambda llm: llm.generate([prompt]))[0].tokens

    threads = [threading.Thread(target=one, args=(p,)) for p in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == {p: answer(p, 16) for p in range(8)}
    assert len(built) == 2
    assert len(journal.closed()) == 1


def test_a_new_engine_that_is_asked_for_goes_on_with_what_runs(around, journal):
    """No fault, so no incident, and nothing is spent of the budget; while there is none, none is made."""
    asked, built, both = [], [], threading.Event()

    def script(llm, request):
        if len(request.tokens) == 5 and not asked:
            asked.extend((slot.renew("it has grown"), slot.renew("twice")))
            both.set()
            asked[0].result(10)

    def recipe(settings):
        assert not built or both.wait(5)
        built.append(FakeLLM(script, **settings.as_kwargs(max_num_seqs=16)))
        return built[-1]

    slot = engine_slot(recipe, policy=POLICY, surroundings=around)
    SLOTS.append(slot)
    slot.start()
    restarts = slot.status()["restarts"]
    results = use(slot, lambda llm: llm.generate([1, 2, 3]))
    assert [r.tokens for r in results] == [answer(p, 16) for p in (1, 2, 3)]
    assert asked[1] is None
    assert len(built) == 2
    assert not journal.lines
    assert slot.status()["restarts"] == restarts


def test_a_report_about_an_older_life_starts_nothing(around):
    """Epochs: who comes late finds the new engine."""
    slot = slot_of(around, Kills(times=1))
    before = slot.engine(1.0)
    use(slot, lambda llm: llm.generate([1]))
    assert slot.report(RuntimeError("late"), before.life).result(1.0) is None
    assert slot.status()["epoch"] == 2


def test_a_poison_prompt_is_quarantined_and_the_others_are_answered(around, journal):
    """It is found among its neighbours in three deaths, and answered with an error."""
    kills = Kills(times=99, prompt=2, at=2)
    slot = slot_of(around, kills)
    results = use(slot, lambda llm: llm.generate([1, 2, 3]))
    assert results[0].tokens == answer(1, 16)
    assert results[2].tokens == answer(3, 16)
    assert "quarantined" in results[1].error
    assert kills.fired == 3
    assert "r2" in " ".join(journal.closed()[-1].notes)


def test_a_poison_prompt_costs_no_setting(around, journal):
    """It was on each dead engine: it is the suspect, and the others run as fast as before."""
    slot = slot_of(around, Kills(times=99, prompt=2, at=2))
    use(slot, lambda llm: llm.generate([1, 2, 3]))
    assert [incident.settings for incident in journal.closed()] == [(), (), ()]
    assert slot.status()["settings"] == []


class Calls:
    """A call to a scripted engine that is no request: what it does is ``does``, while it is in the engine."""

    def __init__(self, monkeypatch, does):
        self.does, self.made, self.inside = does, 0, ()
        progress = FakeEngine.progress
        monkeypatch.setattr(
            FakeEngine, "progress", lambda engine: dataclasses.replace(progress(engine), calls=self.inside)
        )

    def __call__(self, llm):
        self.made += 1
        self.inside, core = ("collective_rpc('x')",), llm.core
        try:
            return self.does(llm)
        except Exception as error:
            mark(error, "collective_rpc('x')", core)
            llm.dead = error
            raise
        finally:
            if llm.report is not None and llm.dead is not None:
                llm.report(llm.dead, core).result(30)
            self.inside = ()


@pytest.mark.parametrize("run", ["sync", "async"])
def test_a_call_that_ends_the_engine_fails_once_with_the_cause(around, journal, monkeypatch, run):
    """One new engine, no second call, and the incident on the error that its caller gets."""
    call = Calls(monkeypatch, die)
    slot = slot_of(around)
    with pytest.raises(EngineCallError, match="the engine is dead") as caught:
        (use if run == "sync" else use_async)(slot, call)
    assert call.made == 1
    assert slot.status()["epoch"] == 2
    assert caught.value.call == "collective_rpc('x')"
    (incident,) = journal.closed()
    assert incident_of(caught.value).id == incident.id
    assert "collective_rpc('x')" in " ".join(incident.notes)


def test_a_call_that_fails_by_itself_costs_no_engine(around, journal):
    """Its own exception, with its own type."""
    slot = slot_of(around)

    def call(llm):
        error = KeyError("mine")
        mark(error, "collective_rpc('x')", llm.core)
        raise error

    with pytest.raises(KeyError):
        use(slot, call)
    assert slot.status()["epoch"] == 1
    assert not journal.lines


def test_no_request_is_blamed_for_the_deaths_that_a_call_was_in(around, monkeypatch):
    """Three killing calls beside the same request: it goes on, no setting is taken."""
    beside = Calls(monkeypatch, die)
    killed = []

    def script(llm, request):
        beside.inside = ()
        if len(request.tokens) in {2, 5, 8} and len(request.tokens) not in killed:
            killed.append(len(request.tokens))
            beside.inside = ("collective_rpc('x')",)
            die()

    slot = slot_of(around, script)
    assert use(slot, lambda llm: llm.generate([1]))[0].tokens == answer(1, 16)
    assert killed == [2, 5, 8]
    assert slot.status()["settings"] == []


def test_an_engine_that_always_dies_ends_in_an_error_that_tells_all(around, journal):
    """Cause, rungs tried and advice; every later call gets the same at once.

    When three requests were found guilty it is no longer the requests: safe settings are tried.
    """
    slot = slot_of(around, Kills(times=10**6, at=1), policy=GuardPolicy(standby=None))
    with pytest.raises(GaveUpError, match="look at the prompt") as caught:
        use(slot, lambda llm: llm.generate([1, 2, 3, 4, 5]))
    assert "chunked_prefill_off" in str(caught.value)
    assert isinstance(caught.value.__cause__, FakeEngineDeadError)
    incident = incident_of(caught.value)
    assert incident is not None
    assert incident.outcome is Outcome.FAILED
    with pytest.raises(GaveUpError):
        use(slot, lambda llm: llm.generate([1]))


def test_the_state_survives_the_process(around, journal):
    """A restarted actor takes up its rung."""
    kept = {}
    around = dataclasses.replace(around, remember=kept.update, recall=lambda: dict(kept))
    slot = slot_of(around, Kills(times=2, apart=True))
    use(slot, lambda llm: llm.generate([1]))
    use(slot, lambda llm: llm.generate([1]))
    assert slot.status()["settings"] == ["async_scheduling_off"]
    built = []
    again = slot_of(around, built=built)
    assert again.status()["settings"] == ["async_scheduling_off"]
    assert built[0].settings["async_scheduling"] is False


def tensors(value):
    import torch

    return {"w": torch.full((2,), float(value))}


def test_no_engine_serves_until_it_has_the_current_weights(around):
    """First start, push and restart: the version is the source's, read back from the engine."""
    current = {"v": Weights.from_tensors("1", tensors(1))}
    slot = slot_of(around, Kills(times=1, at=20), weights=lambda: current["v"])
    assert slot.status()["weight_version"] == "1"
    current["v"] = Weights.from_tensors("2", tensors(2))
    assert slot.bring_weights() == "2"
    assert use(slot, lambda llm: llm.generate([1]))[0].tokens == answer(1, 16, "2")
    current["v"] = Weights.from_tensors("3", tensors(3))
    use(slot, lambda llm: llm.generate([1], max_tokens=32))
    assert slot.status()["weight_version"] == "3", "the restart brought what was current by then"


def test_weights_that_the_engine_proves_to_have_are_not_sent_again(around):
    """Asked of the engine itself; what it does not prove is sent, whatever we remember."""
    offered = {"v": "1", "w": 1}
    slot = slot_of(around, weights=lambda: Weights.from_tensors(offered["v"], tensors(offered["w"])))
    engine = slot.engine(1.0)
    assert engine.pushes == 1
    assert [slot.bring_weights(), slot.bring_weights()] == ["1", "1"]
    assert engine.pushes == 1
    engine._receipts = []  # something may have changed it unseen
    assert (slot.bring_weights(), engine.pushes) == ("1", 2)
    engine._receipts = [dataclasses.replace(engine._receipts[0], digest="other")]
    assert (slot.bring_weights(), engine.pushes) == ("1", 3)
    offered["w"] = 2  # other bytes under the old name
    assert (slot.bring_weights(), engine.pushes) == ("1", 4)
    offered["v"] = "2"
    assert (slot.bring_weights(), engine.pushes) == ("2", 5)


def test_a_new_engine_gets_its_weights_whatever_the_old_one_proved(around):
    """What was proved is one life's."""
    slot = slot_of(around, Kills(times=1, at=3), weights=lambda: Weights.from_tensors("1", tensors(1)))
    before = slot.engine(1.0)
    use(slot, lambda llm: llm.generate([1]))
    after = slot.engine(1.0)
    assert after is not before
    assert after.pushes == 1


def test_the_same_reference_is_fetched_once_for_an_engine(around, monkeypatch):
    """And again for the next engine, and where the engine does not prove that it has it."""
    fake = ModuleType("ray")
    fake.ObjectRef = type("ObjectRef", (), {"hex": lambda _self: "ref"})
    body = Weights.from_tensors("1", tensors(1)).payload
    fetched = []
    fake.get = lambda _ref, timeout: fetched.append(timeout) or body
    fake.exceptions = SimpleNamespace(RayError=OSError)
    monkeypatch.setitem(sys.modules, "ray", fake)
    ref = fake.ObjectRef()
    slot = slot_of(around, Kills(times=1, at=3), weights=lambda: ("1", ref))
    assert [slot.bring_weights(), slot.bring_weights(), len(fetched)] == ["1", "1", 1]
    slot.engine(1.0)._receipts = []
    assert [slot.bring_weights(), len(fetched)] == ["1", 2]
    use(slot, lambda llm: llm.generate([1]))
    assert len(fetched) == 3


def test_unfit_weights_are_refused_before_the_engine(around):
    """NaN never reaches an engine; it keeps serving what it had."""
    current = {"v": Weights.from_tensors("1", tensors(1))}
    slot = slot_of(around, weights=lambda: current["v"])
    current["v"] = Weights.from_tensors("2", tensors(float("nan")))
    with pytest.raises(WeightsError, match="w"):
        slot.bring_weights()
    assert slot.status()["weight_version"] == "1"
    assert use(slot, lambda llm: llm.generate([1]))[0].tokens == answer(1, 16, "1")


def test_a_weight_source_that_is_dead_ends_the_start_at_once(around, journal):
    """No new engine makes a trainer answer: one try, a clear end."""
    built = []

    def gone():
        raise ConnectionResetError("the trainer is gone")

    with pytest.raises(GaveUpError, match="the trainer is gone"):
        slot_of(around, weights=gone, built=built)
    assert len(built) == 1


def test_a_weight_source_that_comes_back_is_waited_for(around):
    """A trainer that restarts answers a moment later."""

    class ActorUnavailableError(Exception):
        pass

    calls = []

    def restarting():
        calls.append(1)
        if len(calls) < 3:
            raise ActorUnavailableError("restarting")
        return Weights.from_tensors("1", tensors(1))

    assert slot_of(around, weights=restarting).status()["weight_version"] == "1"
    assert len(calls) == 3


@pytest.mark.parametrize("piece", ["diagnose", "write", "remember", "recall", "changed", "restartable"])
def test_a_broken_piece_of_the_guard_never_stops_a_recovery(around, piece):
    """Each inner piece raises in turn: the caller is answered all the same, and the failure is counted."""

    def broken(*_args):
        raise RuntimeError(f"{piece} is broken")

    before = sum(TALLY.guard_errors.values())
    slot = slot_of(dataclasses.replace(around, **{piece: broken}), Kills(times=1))
    assert use(slot, lambda llm: llm.generate([1]))[0].tokens == answer(1, 16)
    if piece != "restartable":
        assert sum(TALLY.guard_errors.values()) > before


def test_an_error_of_the_users_own_goes_out_untouched(around, journal):
    """A bug in the callback costs no engine."""
    slot = slot_of(around)
    with pytest.raises(KeyError, match="mine"):
        use(slot, lambda _llm: {}["mine"])
    assert slot.status()["epoch"] == 1
    assert journal.lines == []


def ended(how):
    raise how


class Owner(RolloutMixin):
    recipe = None

    def build_engine(self, settings):
        return type(self).recipe(settings)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (lambda settings: None, "returned None"),
        (lambda settings: FakeLLM(), "ignores its settings"),
        (lambda settings: FakeLLM(max_num_seqs=4, **settings.as_kwargs()), "settings.as_kwargs"),
        (lambda settings: settings.as_kwargs(), "returned a dict"),
        (lambda settings: asyncio.sleep(0, settings.as_kwargs()), "returned a coroutine"),
        (lambda settings: (FakeLLM() for _ in settings.as_kwargs()), "returned a generator"),
        (lambda settings: FakeLLM, "returned <class"),
        (lambda s: (s.as_kwargs(), type("EngineArgs", (), {"__module__": "vllm.a"})())[1], "a EngineArgs"),
        (lambda settings: sys.exit(3), r"SystemExit\(3\), at <lambda> \(.*test_supervisor\.py:\d+\)"),
        (lambda settings: argparse.ArgumentParser().parse_args(["--x"]), r"SystemExit\(2\).*, in exit \("),
        (lambda settings: ended(KeyboardInterrupt()), "KeyboardInterrupt"),
        (lambda settings: ended(GeneratorExit()), "GeneratorExit"),
        (lambda settings: ended(asyncio.CancelledError()), "CancelledError"),
    ],
)
def test_a_recipe_that_cannot_work_says_so_at_the_first_start(recipe, said, tmp_path, monkeypatch):
    """Returned nothing or no engine, ignored its settings, passed an argument twice, ended its thread."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setattr(Owner, "recipe", staticmethod(recipe))
    with pytest.raises(ConfigError, match=said):
        Owner().start_engine(policy=POLICY)


def test_a_recipe_that_ends_its_thread_in_a_rebuild_is_given_up_with_its_cause(around, journal):
    """Not for ever: whoever waits is told, and the journal too."""
    started = []

    def recipe(settings):
        started.append(settings.as_kwargs(max_num_seqs=16))
        return FakeLLM(Kills(), **started[0]) if len(started) == 1 else sys.exit(3)

    slot = engine_slot(recipe, policy=POLICY, surroundings=around)
    SLOTS.append(slot)
    slot.start()
    with pytest.raises(GaveUpError):
        use(slot, lambda llm: llm.generate([1]))
    incident = journal.closed()[-1]
    assert incident.outcome is Outcome.FAILED
    assert any("could not be started" in note and "SystemExit(3)" in note for note in incident.notes)


def test_weights_that_end_their_thread_do_not_end_the_process(around):
    """As for the recipe: their thread is one of ours."""
    with pytest.raises(ConfigError, match=r"SystemExit\(4\), at <lambda>"):
        slot_of(around, weights=lambda: sys.exit(4))


def test_a_slow_build_is_told_with_its_line(around, monkeypatch, caplog):
    """The thread that waits for it stands in our code, which tells nobody anything."""
    monkeypatch.setattr(builder, "_TOLD_AFTER_S", 0.2)
    told = threading.Event()

    class Log(logging.Handler):
        def emit(self, record):
            if "build_engine has run" in record.getMessage():
                told.set()

    def recipe(settings):
        assert told.wait(60)
        return FakeLLM(**settings.as_kwargs(max_num_seqs=16))

    monkeypatch.setattr(logging.getLogger("rayguard"), "handlers", [Log()])
    slot = engine_slot(recipe, policy=dataclasses.replace(POLICY, build_deadline_s=60.0), surroundings=around)
    SLOTS.append(slot)
    slot.start()
    (line,) = [line for line in caplog.messages if "build_engine has run" in line]
    assert re.search(r"stands at recipe \(.*test_supervisor\.py:\d+\), in wait \(", line)


@pytest.mark.parametrize("how", ["use", "call", "close"])
def test_an_engine_that_died_asleep_is_built_when_somebody_asks_for_it(around, journal, monkeypatch, how):
    """The memory that it gave back is somebody else's meanwhile; also for one whose very call it was that died."""
    stands = [Standing(state="asleep", call="sleep(level=1)", since=1.0)]
    monkeypatch.setattr(FakeEngine, "standing", lambda _self: stands[0])
    built = []
    slot = slot_of(around, built=built)
    if how == "call":
        monkeypatch.setattr(Recovery, "is_of_engine", lambda *_: True)
        use(slot, lambda llm: die() if len(built) == 1 else None)
    else:
        healed = slot.report(None, slot.engine(1.0).life)
        assert slot._recovery.parked.wait(60)
        assert (len(built), healed.done(), slot.status()["state"]) == (1, False, "asleep")
        assert slot.status()["stopped_by"] == "sleep(level=1)"
        if how == "close":
            slot.close(0.0)
            assert healed.exception(60) is not None
            return
        use(slot, lambda llm: None)
    assert len(built) == 2
    assert journal.closed()[-1].outcome is Outcome.RECOVERED


def test_the_policy_of_the_guard_is_the_engines_too(monkeypatch, tmp_path):
    """``@guard(policy=...)`` on the class is what ``start_engine`` goes by."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))

    @guard(policy=POLICY)
    class Guarded(RolloutMixin):
        def build_engine(self, settings):
            return FakeLLM(**settings.as_kwargs(max_num_seqs=16))

    owner = Guarded()
    owner.start_engine()
    assert owner._engine_slot._policy is POLICY
    owner.stop_engine()


def test_a_mixin_without_recipe_or_start_says_what_is_missing():
    """Both mistakes have an error that names the method."""

    class Empty(RolloutMixin):
        pass

    with pytest.raises(ConfigError, match="build_engine"):
        Empty().start_engine(policy=POLICY)
    with pytest.raises(ConfigError, match="start_engine"):
        Owner().with_engine(lambda engine: engine)


def test_what_the_recipe_raises_at_the_first_start_is_the_users_own(around):
    """A wrong model path is for people to mend: no retry, no disguise."""
    calls = []

    def recipe(settings):
        calls.append(settings.as_kwargs())
        raise FileNotFoundError("no such model")

    code = Diagnosis(signature="x", kind=Kind.USER_CODE, scope=Scope.CODE, cause="x", confidence=1.0)
    slot = engine_slot(
        recipe, policy=POLICY, surroundings=dataclasses.replace(around, diagnose=lambda _f: code)
    )
    with pytest.raises(FileNotFoundError, match="no such model"):
        slot.start()
    assert len(calls) == 1


def test_a_build_that_never_ends_is_ended_by_its_deadline(around):
    """Every wait has a deadline."""
    stop = threading.Event()
    policy = GuardPolicy(
        standby=None,
        build_deadline_s=0.2,
        quarantine_after=1,
        engine_budget=RestartBudget(max_restarts=1, within_s=60.0),
    )

    def recipe(settings):
        settings.as_kwargs()
        stop.wait(30)

    slot = engine_slot(recipe, policy=policy, surroundings=around)
    with pytest.raises(GaveUpError, match=r"build_engine took over .* stands at recipe \(.*test_supervisor"):
        slot.start()
    stop.set()


def use_async(slot, call):
    from rayguard.actors.guard.mixins import _use_async

    return asyncio.run(_use_async(slot, call))


@pytest.fixture
def on_a_rung(around):
    """A slot that had to take a safe setting, and the clock it goes by."""
    clock = {"now": 1000.0}
    slot = slot_of(dataclasses.replace(around, now=lambda: clock["now"]), Kills(times=2, apart=True))
    use(slot, lambda llm: llm.generate([1]))
    use(slot, lambda llm: llm.generate([1]))
    assert slot.status()["settings"] == ["async_scheduling_off"]
    return slot, clock


@pytest.mark.parametrize("use", [use, use_async], ids=["sync", "async"])
def test_probation_takes_a_setting_back_between_requests(on_a_rung, journal, use):
    """After a quiet period the engine is rebuilt one rung faster, and no incident is made of it."""
    slot, clock = on_a_rung
    told = len(journal.lines)
    use(slot, lambda llm: llm.generate([1]))
    assert slot.status()["epoch"] == 3, "not yet"
    clock["now"] += 1801.0
    assert use(slot, lambda llm: llm.generate([1]))[0].tokens == answer(1, 16)
    assert slot.status()["settings"] == []
    assert slot.status()["epoch"] == 4
    assert len(journal.lines) == told


def test_probation_that_the_engine_refuses_leaves_it_as_it_is(on_a_rung, monkeypatch):
    """And it is not asked again at each call."""
    slot, clock = on_a_rung
    asked = []
    monkeypatch.setattr(slot._lives.builder, "why_unusable", lambda applied: asked.append(applied) or "no")
    clock["now"] += 1801.0
    for _ in range(3):
        assert use(slot, lambda llm: llm.generate([1]))[0].tokens == answer(1, 16)
    assert asked == [()]
    assert (slot.status()["settings"], slot.status()["epoch"]) == (["async_scheduling_off"], 3)


def test_probation_whose_build_fails_returns_to_what_worked(around, journal):
    """The recipe cannot do without the safe setting any more: that is a fault like another, not the end."""
    clock, built = {"now": 1000.0}, []
    kills = Kills(times=2, apart=True)

    def recipe(settings):
        kwargs = settings.as_kwargs(max_num_seqs=16)
        if len(built) >= 3 and kwargs["async_scheduling"] is None:
            raise KeyError("mine")  # diagnosed as the user's code: at a first start it would come out
        built.append(kwargs)
        return FakeLLM(kills, **kwargs)

    slot = engine_slot(
        recipe, policy=POLICY, surroundings=dataclasses.replace(around, now=lambda: clock["now"])
    )
    SLOTS.append(slot)
    slot.start()
    for _ in range(2):
        use(slot, lambda llm: llm.generate([1]))
    clock["now"] += 1801.0
    assert use(slot, lambda llm: llm.generate([1]))[0].tokens == answer(1, 16)
    assert slot.status()["settings"] == ["async_scheduling_off"]
    assert journal.closed()[-1].outcome is Outcome.RECOVERED


def test_no_probation_while_weights_are_on_their_way(on_a_rung):
    """A rebuild would cut the push."""
    slot, clock = on_a_rung
    clock["now"] += 1801.0
    slot._lives.weights.pending = True
    slot.maintain()
    assert slot.serving
    slot._lives.weights.pending = False
    slot.maintain()
    slot.engine(5.0)
    assert slot.status()["epoch"] == 4


def test_an_async_caller_does_not_wait_for_ever():
    """A recovery that never ends is a bug of ours: its waiters have a deadline."""

    class Stuck:
        patience_s, ready = 0.05, SimpleNamespace(handle=None)

        def maintain(self):
            pass

        def failed(self, error, engine):
            return Future()

    with pytest.raises(TimeoutError if sys.version_info >= (3, 11) else asyncio.TimeoutError):
        use_async(Stuck(), die)


def test_an_async_caller_waits_through_two_recoveries_in_a_row():
    """By the time its wait is over the next recovery may have begun: that is waited for as well."""
    waits = []

    class Busy:
        patience_s, weights_pending = 5.0, False

        @property
        def ready(self):
            return SimpleNamespace(handle="engine") if len(waits) == 2 else None

        def maintain(self):
            pass

        def engine(self, timeout_s):
            waits.append(timeout_s)

    assert use_async(Busy(), lambda engine: engine) == "engine"
    assert waits == [5.0, 5.0]


def test_patience_is_longer_than_every_step_of_a_recovery_together():
    """One bound for all who wait, and it never cuts a recovery that keeps its own deadlines."""
    policy = GuardPolicy(build_deadline_s=100, weights_deadline_s=10, teardown_deadline_s=1)
    assert policy.patience_s >= (policy.engine_budget.max_restarts + 1) * (100 + 10 + 10 + 1)


def test_the_fake_keeps_the_contract_of_the_real_engines(around):
    """The same check runs on vLLM in test_vllm_engine.py."""
    kills = Kills(times=0)

    class Fake:
        slot = slot_of(around, kills)

        def answers(self):
            return [tuple(r.tokens) for r in use(self.slot, lambda llm: llm.generate([1, 2, 3]))]

        @contextmanager
        def struck(self):
            kills.left = 1
            yield
            assert kills.left == 0

    check_contract(Fake())


def test_a_slot_that_is_closed_while_it_recovers_begins_no_further_life(around):
    """Its engine would outlive it, and nobody would end it."""
    building, go_on, built = threading.Event(), threading.Event(), []

    def recipe(settings):
        if built:  # the second one: the slot is closed meanwhile
            building.set()
            go_on.wait(10)
        built.append(FakeLLM(None, **settings.as_kwargs(max_num_seqs=16)))
        return built[-1]

    slot = engine_slot(recipe, policy=POLICY, surroundings=around)
    slot.start()
    first = slot.engine(1.0)
    healing = slot.report(RuntimeError("the engine is dead"), first.life)
    assert building.wait(10)
    slot.close(0.0)
    go_on.set()
    with pytest.raises(ConfigError, match="stopped"):
        healing.result(10)
    assert len(built) == 2, "no third try"
