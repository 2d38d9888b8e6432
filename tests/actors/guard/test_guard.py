"""Guarding a class, without Ray: what comes back, what is wrapped, what goes out, and what never goes wrong."""

import asyncio
import functools
import inspect
import pickle
import subprocess
import sys

import pytest
import ray.cloudpickle

from rayguard.actors.guard import call_recovery, restarts
from rayguard.actors.guard.guard import guard, method
from rayguard.actors.life import current_life, incidents
from rayguard.actors.life.incarnation import Incarnation
from rayguard.actors.methods import MARK, is_guarded
from rayguard.errors import ConfigError, GaveUpError
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery import calls
from rayguard.recovery.incident import Outcome, incident_of
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.tally import Tally


class PassingError(Exception):
    """A failure that is gone a moment later."""


class BrokenError(Exception):
    """A failure of the user's own code."""


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """A journal, a tally and a process state of the test's own; no waiting between repeats."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setattr(restarts, "hands", restarts.LifeHands())
    monkeypatch.setattr(current_life, "state", current_life.LifeState(Incarnation()))
    monkeypatch.setattr(incidents, "_last_written", {})
    monkeypatch.setattr(call_recovery, "_BACK_OFF", lambda _state: 0.0)


@pytest.fixture
def tally(monkeypatch):
    """Count apart from the other tests."""
    mine = Tally()
    from rayguard import harmless
    from rayguard.recovery import journal
    from rayguard.recovery import tally as module

    monkeypatch.setattr(module, "TALLY", mine)
    monkeypatch.setattr(harmless, "errors", mine.guard_errors)
    for user in (incidents, journal):
        monkeypatch.setattr(user, "TALLY", mine)
    return mine


@pytest.fixture
def verdict(monkeypatch):
    """Diagnose by the exception's type, so that these tests do not hang on the catalog."""
    table = {
        "PassingError": (Kind.STORAGE_IO, Scope.NODE),
        "BrokenError": (Kind.USER_CODE, Scope.CODE),
        "MemoryError": (Kind.CUDA_OOM, Scope.ENGINE),
    }

    def diagnose(fault):
        name = fault.exceptions[0].type_name.rpartition(".")[2]
        kind, scope = table.get(name, (Kind.UNKNOWN, Scope.UNKNOWN))
        return Diagnosis(
            signature=f"test.{name.lower()}",
            kind=kind,
            scope=scope,
            cause=str(fault.exceptions[0]),
            confidence=1.0,
        )

    monkeypatch.setattr(incidents, "diagnosed", diagnose)


def journal():
    from rayguard.recovery.journal import default_journal

    return default_journal().read()


class Fails:
    """Raise the errors it is given, one a call, then answer."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.runs = 0

    def __call__(self, answer):
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return answer


def guarded_kinds():
    """One class with all kinds of methods; each takes what it fails with, and may run twice."""

    @guard(idempotent=True)
    class Kinds:
        def sync(self, fails):
            """Document."""
            return fails("sync")

        async def coro(self, fails):
            await asyncio.sleep(0)
            return fails("coro")

        def gen(self, fails):
            sent = yield fails("gen")
            yield sent
            return "value"

        async def agen(self, fails):
            sent = yield fails("agen")
            yield sent

    return Kinds


def run(obj, kind, fails):
    """Call ``kind`` and return its (first) answer."""
    if kind == "sync":
        return obj.sync(fails)
    if kind == "coro":
        return asyncio.run(obj.coro(fails))
    if kind == "gen":
        return next(obj.gen(fails))

    async def first():
        stream = obj.agen(fails)
        try:
            return await stream.asend(None)
        finally:
            await stream.aclose()

    return asyncio.run(first())


KINDS = ["sync", "coro", "gen", "agen"]


# -- what comes back


def test_the_very_same_class_comes_back():
    """Frameworks look at bases and identities."""

    class Plain:
        def work(self):
            return 1

    bases = Plain.__bases__
    assert guard(Plain) is Plain
    assert (Plain.__name__, Plain.__bases__, Plain().work()) == ("Plain", bases, 1)


def test_each_kind_of_function_keeps_its_kind_signature_and_attributes():
    """Ray tells actors and generators by the kind, frameworks find methods by attributes."""

    class Plain:
        def sync(self, a: int, *, b: str = "x") -> int:
            """Document."""
            return a

        async def coro(self):
            pass

        def gen(self):
            yield

        async def agen(self):
            yield

    Plain.sync.attrs_3141562937 = {"dispatch": 1}
    signature = inspect.signature(Plain.sync)
    guard(Plain)
    assert inspect.signature(Plain.sync) == signature
    assert (Plain.sync.__doc__, Plain.sync.__name__) == ("Document.", "sync")
    assert Plain.sync.attrs_3141562937 == {"dispatch": 1}
    assert inspect.iscoroutinefunction(Plain.coro)
    assert inspect.isgeneratorfunction(Plain.gen)
    assert inspect.isasyncgenfunction(Plain.agen)
    assert not inspect.iscoroutinefunction(Plain.sync)


def test_only_public_plain_methods_are_wrapped():
    """Static and class methods, properties, underscores and other objects stay what they are."""

    class Plain:
        limit = 3
        half = functools.partialmethod(int)

        @staticmethod
        def static():
            return "static"

        @classmethod
        def classy(cls):
            return cls

        @property
        def prop(self):
            return "prop"

        def _private(self):
            pass

        def __call__(self):
            pass

        def public(self):
            pass

    before = dict(vars(Plain))
    guard(Plain)
    changed = {name for name in vars(Plain) if vars(Plain)[name] is not before.get(name)}
    assert changed == {"public", MARK}
    assert (Plain.static(), Plain.classy(), Plain().prop) == ("static", Plain, "prop")


def test_a_guarded_module_of_torch_still_says_its_state():
    """Torch compares some of a module's methods with its own: wrapped, they count as replaced."""
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            return self.layer(x)

    guard(Model)
    first, second = Model(), Model()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(torch.ones(1, 2)), second(torch.ones(1, 2)))
    assert is_guarded(vars(Model)["forward"]), "it is the user's"
    assert Model.register_buffer is torch.nn.Module.register_buffer


def test_inherited_methods_are_guarded_and_the_base_is_left_alone(verdict, tally):
    """The user's base class may belong to a library."""

    class Base:
        def work(self, fails):
            return fails("base")

    bare = Base.work

    @guard(idempotent=True)
    class Child(Base):
        pass

    assert Base.work is bare
    assert Child().work(Fails(PassingError())) == "base"
    assert tally.calls["Child"] == 1
    with pytest.raises(PassingError):
        Base().work(Fails(PassingError()))


def test_a_guard_in_the_middle_of_a_diamond_keeps_the_order_of_bases():
    """Below ``class C(Guarded, Other)`` an inherited method must still come from ``Other``."""

    class Base:
        def __init__(self):
            self.who = "base"

        def name(self):
            return "base"

    @guard
    class Guarded(Base):
        pass

    class Other(Base):
        def __init__(self):
            super().__init__()
            self.who = "other"

        def name(self):
            return "other"

    class Both(Guarded, Other):
        pass

    assert (Both().name(), Both().who) == ("other", "other")


def test_a_class_without_init_gets_none():
    """An added ``__init__`` would cut off the ones of other bases."""

    @guard
    class Bare:
        def work(self):
            return 1

    class Other:
        def __init__(self, x):
            self.x = x

    class Both(Bare, Other):
        pass

    assert Both(5).x == 5
    assert "__init__" not in vars(Bare)


def test_slots_without_a_dict_are_fine(verdict):
    """The guard keeps nothing on the instance."""

    @guard(idempotent=True)
    class Slotted:
        __slots__ = ("x",)

        def __init__(self, x):
            self.x = x

        def work(self, fails):
            return fails(self.x)

    assert Slotted(7).work(Fails(PassingError())) == 7


def test_a_guarded_subclass_of_a_guarded_base_wraps_each_method_once(verdict, tally):
    """Its policy is the subclass's; a call through ``super()`` is one call."""

    @guard(policy=GuardPolicy(call_retries=0), idempotent=True)
    class Base:
        def work(self, fails):
            return fails("base")

        def only(self, fails):
            return fails("only")

    @guard(policy=GuardPolicy(call_retries=1), idempotent=True)
    class Child(Base):
        def work(self, fails):
            return super().work(fails)

    assert "only" not in vars(Child)
    fails = Fails(PassingError(), PassingError(), PassingError())
    with pytest.raises(PassingError) as caught:
        Child().work(fails)
    assert fails.runs == 2
    assert incident_of(caught.value).target == "Child.work"
    assert sum(tally.incidents.values()) == 1
    assert Child().only(Fails(PassingError())) == "only"


# -- what goes wrong at decoration


def function():
    pass


MISTAKES = {
    "built-in function": (lambda: guard(len), "function"),
    "instance": (lambda: guard(object()), "object of object"),
    "none": (lambda: guard(None), "NoneType"),
    "policy": (lambda: guard(policy=3)(object), "GuardPolicy"),
    "policy-class": (lambda: guard(policy=GuardPolicy), "GuardPolicy"),
    "idempotent": (lambda: guard(idempotent="no"), "idempotent"),
    "idempotent-none": (lambda: guard(idempotent=None), "idempotent"),
    "state": (lambda: guard(state="restorable"), 'be "none"'),
    "state-bool": (lambda: guard(state=False), r"guard\(state=False\) cannot be"),
    "state-one": (lambda: guard(state=("save",)), "names of two methods"),
    "state-twice": (lambda: guard(state=["save", "save"]), "names of two methods"),
    "state-number": (lambda: guard(state=("save", 3)), "names of two methods"),
    "state-three": (lambda: guard(state=("save", "load", "x")), "names of two methods"),
    "state-function": (
        lambda: guard(state=("save", "load"))(function),
        "names methods; function is a function",
    ),
    "state-missing": (
        lambda: guard(state=("save", "load"))(type("Half", (), {"save": lambda self: 1})),
        "Half cannot hand its state over by save and load: it must have both",
    ),
    "unknown": (lambda: guard(max_restarts=3), "max_restarts"),
    "twice": (lambda: guard(guard(type("Twice", (), {}))), "guarded twice"),
    "builtin": (lambda: guard(int), "int"),
    "bare-method": (lambda: method(function), "idempotent"),
    "empty-method": (method, "idempotent"),
    "static-method": (lambda: method(idempotent=False)(staticmethod(function)), "plain methods"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_at_decoration(mistake):
    """With the thing that is wrong and what to write instead."""
    decorate, says = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=says):
        decorate()


# -- what goes out


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_error_goes_out_at_once_as_itself_with_its_incident(kind, verdict, tally):
    """The same object, the user's frames, one run, no retry."""
    error = BrokenError("mine")
    fails = Fails(error)
    with pytest.raises(BrokenError) as caught:
        run(guarded_kinds()(), kind, fails)
    assert caught.value is error
    assert fails.runs == 1
    assert caught.traceback[-1].name == "__call__"
    incident = incident_of(error)
    assert (incident.kind, incident.outcome) == ("user_code", Outcome.ANSWERED)
    assert incident.target == f"Kinds.{kind}"
    assert [i.id for i in journal()] == [incident.id]
    assert incident_of(pickle.loads(pickle.dumps(error))) == incident


@pytest.mark.parametrize("kind", KINDS)
def test_a_passing_failure_is_repeated_and_the_caller_never_knows(kind, verdict, tally):
    """One incident, recovered, however many attempts it took."""
    fails = Fails(PassingError("one"), PassingError("two"))
    assert run(guarded_kinds()(), kind, fails) == kind
    assert fails.runs == 3
    (incident,) = journal()
    assert (incident.remedy, incident.outcome) == ("retry", Outcome.RECOVERED)
    assert incident.recover_s >= 0
    assert sum(tally.incidents.values()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_lasting_failure_goes_out_after_the_retries(kind, verdict, tally):
    """The last error itself, said to be still failing."""
    errors = [PassingError(str(n)) for n in range(5)]
    fails = Fails(*errors)
    with pytest.raises(PassingError) as caught:
        run(guarded_kinds()(), kind, fails)
    assert fails.runs == 3
    assert caught.value is errors[2]
    incident = incident_of(caught.value)
    assert incident.outcome is Outcome.FAILED
    assert "after 2 retries" in incident.notes[0]


@pytest.mark.parametrize("state", [{}, {"state": "none"}], ids=["unsaid", "none"])
def test_without_a_word_a_call_is_not_repeated(state, verdict, tally):
    """Nobody knows whether it may run twice; that there is no state to lose says nothing of it."""

    @guard(**state)
    class Plain:
        def work(self, fails):
            return fails("work")

        @method(idempotent=True)
        def often(self, fails):
            return fails("often")

    error = PassingError("one")
    fails = Fails(error)
    with pytest.raises(PassingError) as caught:
        Plain().work(fails)
    assert caught.value is error
    assert fails.runs == 1
    assert incident_of(error).outcome is Outcome.ANSWERED
    assert Plain().often(Fails(PassingError("two"))) == "often"
    assert [one.outcome for one in journal()] == [Outcome.ANSWERED, Outcome.RECOVERED]


@pytest.mark.parametrize("marked", ["class", "method"])
def test_a_method_that_must_not_run_twice_does_not(marked, verdict, tally):
    """Neither by the class's word nor by the method's."""

    @guard(idempotent=marked != "class")
    class Careful:
        def once(self, fails):
            return fails("once")

        if marked == "method":
            once = method(idempotent=False)(once)
        else:
            often = method(idempotent=True)(lambda self, fails: fails("often"))

    fails = Fails(PassingError())
    with pytest.raises(PassingError):
        Careful().once(fails)
    assert fails.runs == 1
    if marked == "class":
        assert Careful().often(Fails(PassingError())) == "often"


def test_a_generator_that_has_yielded_is_not_started_again(verdict, tally):
    """The reader has a part of the answer already."""

    @guard(idempotent=True)
    class Streams:
        runs = 0

        def gen(self):
            type(self).runs += 1
            yield 1
            raise PassingError

        async def agen(self):
            type(self).runs += 1
            yield 1
            raise PassingError

    async def read():
        return [item async for item in Streams().agen()]

    with pytest.raises(PassingError):
        list(Streams().gen())
    with pytest.raises(PassingError) as caught:
        asyncio.run(read())
    assert Streams.runs == 2
    assert incident_of(caught.value).outcome is Outcome.ANSWERED


def test_generators_pass_on_what_is_sent_thrown_and_returned(verdict):
    """They behave as without the guard."""

    @guard
    class Echo:
        def gen(self):
            got = yield "first"
            try:
                yield got
            except KeyError as error:
                yield repr(error)
            return "end"

        async def agen(self):
            got = yield "first"
            try:
                yield got
            except KeyError as error:
                yield repr(error)

        def empty(self):
            return "nothing"
            yield

    stream = Echo().gen()
    assert (next(stream), stream.send("sent"), stream.throw(KeyError("k"))) == (
        "first",
        "sent",
        "KeyError('k')",
    )
    with pytest.raises(StopIteration) as stop:
        next(stream)
    assert stop.value.value == "end"
    with pytest.raises(StopIteration) as stop:
        next(Echo().empty())
    assert stop.value.value == "nothing"

    async def drive():
        astream = Echo().agen()
        got = [await astream.asend(None), await astream.asend("sent"), await astream.athrow(KeyError("k"))]
        with pytest.raises(StopAsyncIteration):
            await astream.asend(None)
        return got

    assert asyncio.run(drive()) == ["first", "sent", "KeyError('k')"]


@pytest.mark.parametrize("kind", ["gen", "agen"])
def test_a_stream_that_is_closed_early_closes_the_users_generator(kind):
    """Its ``finally`` must run when the reader has had enough."""
    log = []

    @guard
    class Streams:
        def gen(self):
            try:
                yield 1
                yield 2
            finally:
                log.append("closed")

        async def agen(self):
            try:
                yield 1
                yield 2
            finally:
                log.append("closed")

    if kind == "gen":
        stream = Streams().gen()
        next(stream)
        stream.close()
    else:

        async def read():
            stream = Streams().agen()
            await stream.asend(None)
            await stream.aclose()

        asyncio.run(read())
    assert log == ["closed"]


def test_a_failure_further_in_is_judged_once_by_the_call_that_the_caller_made(verdict, tally):
    """Otherwise retries multiply: the inner call's by the outer call's."""

    @guard(idempotent=True)
    class Nested:
        def inner(self, fails):
            return fails("inner")

        def outer(self, fails):
            return self.inner(fails)

        async def aouter(self, fails):
            return self.inner(fails)

    for call in (lambda f: Nested().outer(f), lambda f: asyncio.run(Nested().aouter(f))):
        fails = Fails(*[PassingError() for _ in range(9)])
        with pytest.raises(PassingError):
            call(fails)
        assert fails.runs == 3


def test_an_error_that_was_judged_before_keeps_its_incident(verdict, tally):
    """Also when the user's code wraps it: pickling would drop the cause, and the incident with it."""
    judged = BrokenError("far")
    with pytest.raises(BrokenError):
        guarded_kinds()().sync(Fails(judged))

    @guard
    class Wraps:
        def work(self):
            raise ValueError("wrapped") from judged

    with pytest.raises(ValueError, match="wrapped") as caught:
        Wraps().work()
    assert incident_of(pickle.loads(pickle.dumps(caught.value))) == incident_of(judged)
    assert sum(tally.incidents.values()) == 1


def test_steering_and_final_words_are_no_failures(verdict, tally):
    """Exits, cancellations and rayguard's own errors pass untouched."""
    from ray.exceptions import AsyncioActorExit

    for error in (SystemExit(0), KeyboardInterrupt(), AsyncioActorExit(), GaveUpError("t", "c", (), "a")):
        with pytest.raises(type(error)) as caught:
            guarded_kinds()().sync(Fails(error))
        assert caught.value is error
    assert not journal()
    assert not tally.incidents


def test_memory_of_the_failed_call_is_free_before_it_is_repeated(verdict):
    """The error's frames hold the tensors that filled the device."""
    import weakref

    class Tensor:
        pass

    seen = []

    @guard(idempotent=True)
    class Trainer:
        def step(self):
            if not seen:
                tensor = Tensor()
                seen.append(weakref.ref(tensor))
                raise MemoryError("CUDA out of memory")
            return seen[0]() is None

    assert Trainer().step() is True


def test_the_same_cause_again_and_again_is_written_once_and_counted_each_time(verdict, tally):
    """A user's error in a loop must not fill the journal."""
    obj = guarded_kinds()()
    for _ in range(5):
        with pytest.raises(BrokenError):
            obj.sync(Fails(BrokenError("same")))
    with pytest.raises(BrokenError):
        obj.sync(Fails(BrokenError("other")))
    assert len(journal()) == 2
    assert sum(tally.incidents.values()) == 6


def test_an_error_in_init_goes_out_with_an_incident(verdict, tally):
    """Ray never retries a failing ``__init__``; at least it is known why."""

    @guard
    class Starts:
        def __init__(self):
            raise BrokenError("at start")

    with pytest.raises(BrokenError) as caught:
        Starts()
    assert incident_of(caught.value).target == "Starts.__init__"


# -- never worse


def explode(*_args, **_kwargs):
    raise RuntimeError("a bug in rayguard")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (incidents, "diagnosed"),
        (call_recovery, "decide_call"),
        (call_recovery, "facts_of"),
        (call_recovery, "attach"),
        (call_recovery, "incident_of"),
        (incidents, "opened"),
        (call_recovery, "Rescue"),
        (restarts, "_enter"),
    ],
)
def test_with_any_piece_broken_the_users_error_goes_out_as_it_would_have(
    owner, name, kind, verdict, tally, monkeypatch
):
    """And the bug is counted."""
    monkeypatch.setattr(owner, name, explode)
    error = BrokenError("mine")
    obj = guarded_kinds()()
    with pytest.raises(BrokenError) as caught:
        run(obj, kind, Fails(error))
    assert caught.value is error
    assert caught.value.__context__ is None
    assert sum(tally.guard_errors.values()) >= 1
    assert run(obj, kind, Fails()) == kind


def test_with_a_broken_journal_a_passing_failure_is_still_cured(verdict, tally, monkeypatch):
    """The cure does not hang on its record."""
    from rayguard.recovery import journal as module

    monkeypatch.setattr(module, "default_journal", explode)
    assert guarded_kinds()().sync(Fails(PassingError())) == "sync"
    assert tally.guard_errors == {"journal": 1}


def test_a_repeat_that_meets_a_bug_of_ours_ends_with_the_users_error(verdict, tally, monkeypatch):
    """The second decision may fail too; it must not loop."""
    decide = calls.decide_call
    decided = []

    def once(*args, **kwargs):
        decided.append(1)
        return decide(*args, **kwargs) if len(decided) == 1 else explode()

    monkeypatch.setattr(call_recovery, "decide_call", once)
    fails = Fails(*[PassingError() for _ in range(9)])
    with pytest.raises(PassingError):
        guarded_kinds()().sync(fails)
    assert fails.runs == 2
    assert tally.guard_errors == {"call": 1}


def test_the_same_error_object_raised_each_time_does_not_loop(verdict):
    """Some libraries raise one prepared exception again and again."""
    error = PassingError("prepared")
    fails = Fails(*[error] * 9)
    with pytest.raises(PassingError):
        guarded_kinds()().sync(fails)
    assert fails.runs == 3


# -- pickling


def test_a_guarded_class_goes_whole_to_another_process_and_brings_the_hook(tmp_path):
    """Ray sends classes by value; nothing in a wrapper may hold a lock, and the mark must arrive."""
    code = """
import pickle, sys
back = pickle.load(open(sys.argv[1], "rb"))
import ray.actor
from rayguard.actors.mark import mark_of
assert back().sync(lambda answer: answer) == "sync"
assert mark_of(back).policy.call_retries == 2
assert hasattr(ray.actor.ActorClass._remote, "__rayguard_hook__")
print("fine")
"""
    data = ray.cloudpickle.dumps(guarded_kinds())
    assert b"Tally" not in data
    (tmp_path / "class.pkl").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "class.pkl")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "fine\n", done.stderr
