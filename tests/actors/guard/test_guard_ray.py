"""Guarded actors on a real Ray cluster: what survives Ray, what is repeated, and how it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

import rayguard
from rayguard.actors.guard.guard import guard, method
from rayguard.actors.life.incarnation import ActorMemory
from rayguard.errors import GaveUpError
from rayguard.ray_internals.gcs_tables import actor_row
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.incident import Outcome, incident_of
from rayguard.recovery.policy import GuardPolicy

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

POISON = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
WAIT_S = 150  # for a busy machine: a deadline, no measure
freely = guard(state="none", idempotent=True)  # no state to lose, and calls may run twice


def get(ref, timeout=WAIT_S):
    return ray.get(ref, timeout=timeout)


def journal():
    from rayguard.recovery.journal import default_journal

    return default_journal().read()


def times(path):
    """Return how often the method that writes to ``path`` ran."""
    return len(Path(path).read_text().splitlines()) if Path(path).exists() else 0


class Work:
    """All kinds of methods, and ways to fail; each test guards a copy."""

    def __init__(self, log=""):
        self.log = log

    def pid(self):
        return os.getpid()

    def note(self):
        with Path(self.log).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def slow(self, seconds):
        self.note()
        threading.Event().wait(seconds)
        return os.getpid()

    def boom(self, error):
        raise error

    def poison(self, until=1):
        self.note()
        if times(self.log) <= until:
            raise RuntimeError(POISON)
        return os.getpid()

    def die(self):
        self.note()
        os._exit(1)


def work_class(**changes):
    """Return a fresh copy of ``Work`` for this test alone."""
    return type(
        "Work", (), {**{k: v for k, v in vars(Work).items() if not k.startswith("__dict")}, **changes}
    )


# -- what Ray sees


def test_all_kinds_of_methods_answer_through_ray():
    """Sync, generator, several returns, static and class methods, inherited ones, in one sync actor."""

    class Base:
        def inherited(self, x, *, y=1):
            return x + y

    @ray.remote
    @guard
    class Kinds(Base):
        @ray.method(num_returns=2)
        def two(self):
            return 1, 2

        def stream(self, n):
            for i in range(n):
                self.sent = yield i  # Ray sends statistics into a generator

        def last_sent(self):
            return type(self.sent).__name__

        @staticmethod
        def static(x):
            return x

        @classmethod
        def classy(cls):
            return cls.__name__

    actor = Kinds.remote()
    assert get(actor.inherited.remote(1, y=2)) == 3
    assert get(list(actor.two.remote())) == [1, 2]
    assert [get(ref) for ref in actor.stream.remote(3)] == [0, 1, 2]
    assert get(actor.last_sent.remote()) == "StreamingGeneratorStats"
    assert get(actor.static.remote(5)) == 5
    assert get(actor.classy.remote()) == "Kinds"
    with pytest.raises(TypeError, match="too many positional"):
        actor.inherited.remote(1, 2, 3)


def test_async_actors_and_concurrency_groups_stay_what_they_are():
    """Coroutines run side by side, async generators stream, groups have their own threads."""

    @ray.remote(concurrency_groups={"io": 2})
    @guard
    class Grouped:
        def __init__(self):
            self.event = asyncio.Event()

        async def wait(self):
            await self.event.wait()
            return "waited"

        async def set(self):
            self.event.set()

        @ray.method(concurrency_group="io")
        async def thread(self):
            return threading.current_thread().name

        async def main(self):
            return threading.current_thread().name

        async def stream(self, n):
            for i in range(n):
                yield i

    actor = Grouped.remote()
    waiting = actor.wait.remote()
    get(actor.set.remote())
    assert get(waiting) == "waited"
    assert get(actor.thread.remote()) != get(actor.main.remote())
    assert [get(ref) for ref in actor.stream.remote(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "expected"), [({"num_cpus": 0}, -1), ({"num_cpus": 0, "max_restarts": 3}, 3)], ids=str
)
def test_restart_options_reach_ray_and_the_users_win(given, expected):
    """As Ray's control process has them."""
    below = ray.remote(**given)(freely(work_class()))
    above = freely(ray.remote(**given)(work_class()))
    for actor in (below.remote(), above.remote(), below.options(num_cpus=0).remote()):
        get(actor.pid.remote())
        assert actor_row(actor._actor_id.hex()).max_restarts == expected
        ray.kill(actor)


@pytest.mark.parametrize("order", ["guard first", "ray first"])
def test_options_of_an_actor_whose_state_nobody_knows_stay_its_users(order):
    """Bare Ray does not restart it, so nobody does; where its user asks, Ray does."""
    cls = ray.remote(guard(work_class())) if order == "guard first" else guard(ray.remote(work_class()))
    for asked, expected in (({}, 0), ({"max_restarts": 3}, 3)):
        actor = cls.options(num_cpus=0, **asked).remote()
        get(actor.pid.remote())
        assert actor_row(actor._actor_id.hex()).max_restarts == expected
        ray.kill(actor)


def test_options_of_a_single_creation_win():
    """`.options()` is the user's last word."""
    actor = ray.remote(freely(work_class())).options(max_restarts=0).remote()
    get(actor.pid.remote())
    assert actor_row(actor._actor_id.hex()).max_restarts == 0


def test_a_class_from_main_is_guarded_when_another_actor_creates_it(tmp_path):
    """The class arrives by value in the creating worker; the mark brings the hook along."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os, sys, ray, rayguard
from rayguard.ray_internals.gcs_tables import actor_row

@ray.remote(num_cpus=0)
@rayguard.guard(state="none", idempotent=True)
class Inner:
    def __init__(self, flag): self.flag = flag
    def work(self):
        if not os.path.exists(self.flag):
            open(self.flag, "w").close()
            raise RuntimeError("CUDA error: device-side assert triggered")
        return os.getpid()
    def pid(self): return os.getpid()

@ray.remote(num_cpus=0)
class Outer:
    def run(self, flag):
        inner = Inner.remote(flag)
        before = ray.get(inner.pid.remote())
        return before != ray.get(inner.work.remote(), timeout=40), actor_row(inner._actor_id.hex()).max_restarts

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(ray.get(Outer.remote().run.remote(sys.argv[2]), timeout=150))
"""
    )
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, str(script), address, str(tmp_path / "flag")],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip().endswith("(True, -1)"), done.stderr


@pytest.mark.parametrize("order", ["guard first", "ray first"])
def test_a_class_of_an_importable_module_can_be_guarded_from_outside(order, monkeypatch):
    """The worker imports the module and would see it bare; the module's locks stay at home."""
    import importlib

    import late_guarded

    importlib.reload(late_guarded)
    late = late_guarded.Late
    actor = (ray.remote(guard(late)) if order == "guard first" else guard(ray.remote(late))).remote(1)
    assert get(actor.add.remote(2, twice=True)) == 5
    assert get(actor.wait.remote()) == "waited"
    with pytest.raises(ValueError, match="late") as caught:
        get(actor.fail.remote())
    assert incident_of(caught.value).target == "Late.fail"
    with pytest.raises(TypeError, match="too many positional"):
        actor.add.remote(1, 2)


# -- what goes out


class KeywordOnlyError(Exception):
    """Cannot be unpickled: Ray's own limit."""

    def __init__(self, *, code):
        super().__init__(code)


class UnpicklableError(Exception):
    """Cannot be pickled."""

    def __init__(self):
        super().__init__("held")
        self.lock = threading.Lock()


def test_the_callers_side_finds_the_incident_on_the_users_own_error():
    """Through Ray's pickling, on the dual class that is the user's type as well as Ray's."""

    class MineError(ValueError):
        def __init__(self, a, b):
            super().__init__(a, b)
            self.b = b

    actor = ray.remote(guard(work_class())).remote()
    for error in (ValueError("plain"), MineError("x", 7)):
        with pytest.raises(type(error)) as caught:
            get(actor.boom.remote(error))
        assert isinstance(caught.value, ray.exceptions.RayTaskError)
        incident = incident_of(caught.value)
        assert incident.outcome is Outcome.ANSWERED
        assert incident.actor_id == actor._actor_id.hex()
        assert incident.id in {i.id for i in journal()}
    assert caught.value.b == 7


def test_guarding_above_ray_reaches_every_kind_of_method_also_of_a_class_in_use():
    """Ray has copied the bare methods by then, and has sent them out when an actor runs already."""

    class Fails:
        def sync(self):
            raise ValueError("sync")

        def gen(self):
            raise ValueError("gen")
            yield

        async def coro(self):
            raise ValueError("coro")

        async def agen(self):
            raise ValueError("agen")
            yield

    actor_class = ray.remote(num_cpus=0)(Fails)
    bare = actor_class.remote()
    get(bare.__ray_ready__.remote())
    guard(actor_class)
    actor = actor_class.remote()
    refs = {"sync": actor.sync.remote(), "coro": actor.coro.remote()}
    refs |= {"gen": next(actor.gen.remote()), "agen": next(actor.agen.remote())}
    for name, ref in refs.items():
        with pytest.raises(ValueError, match=name) as caught:
            get(ref)
        assert incident_of(caught.value).target == f"Fails.{name}"


@pytest.mark.parametrize("name", ["keyword", "lock"])
def test_an_error_that_ray_cannot_carry_comes_out_no_worse_than_bare(name):
    """What Ray does without the guard is the measure."""

    def raising(self):
        raise (KeywordOnlyError(code=3) if name == "keyword" else UnpicklableError())

    outcomes = []
    for decorate in (lambda cls: cls, guard):
        actor = ray.remote(decorate(work_class(raising=raising))).remote()
        with pytest.raises(Exception, match=r"(?s).") as caught:
            get(actor.raising.remote())
        outcomes.append(type(caught.value).__name__)
        assert get(actor.pid.remote()) > 0
        ray.kill(actor)
    assert outcomes[0] == outcomes[1]


# -- what is repeated


def test_a_call_that_was_running_when_the_process_was_killed_is_answered(tmp_path):
    """The caller's ``ray.get`` returns; the next life knows what ended the one before."""
    log = tmp_path / "log"
    actor = ray.remote(freely(work_class())).remote(str(log))
    pid = get(actor.pid.remote())
    running = actor.slow.remote(1.0)
    until(lambda: times(log) == 1)
    os.kill(pid, signal.SIGKILL)
    assert get(running) != pid
    assert times(log) == 2
    (incident,) = of(actor)
    assert (incident.kind, incident.scope, incident.outcome) == ("actor_died", "process", Outcome.RECOVERED)
    assert (incident.pid, incident.incarnation) == (pid, 0)
    assert 0 < incident.recover_s < 30
    assert f"process {pid} died without a word: by SIGKILL" in incident.cause
    assert incident.tokens_lost == 0, "it had no engine"


def test_a_crash_is_named_by_its_signal(tmp_path):
    """Ray only sees a closed connection; the worker's own log has the signal."""
    actor = ray.remote(freely(work_class())).remote(str(tmp_path / "log"))
    pid = get(actor.pid.remote())
    os.kill(pid, signal.SIGSEGV)
    until(lambda: get(actor.pid.remote()) != pid)
    (incident,) = of(actor)
    assert f"{pid} was killed by signal {signal.SIGSEGV.value}" in incident.cause


@pytest.mark.parametrize("marked", ["class", "method", "nobody"])
def test_a_call_that_must_not_run_twice_raises_when_its_process_is_killed(marked, tmp_path):
    """Once is once, and the actor is there again afterwards.

    Where nobody said so, too: that there is no state to lose says that it may be restarted, not that its calls
    may run twice.
    """
    log = tmp_path / "log"
    if marked == "class":
        cls = guard(state="none", idempotent=False)(work_class())
    elif marked == "nobody":
        cls = guard(state="none")(work_class())
    else:
        cls = freely(work_class(slow=method(idempotent=False)(copy_of(Work.slow))))
    actor = ray.remote(cls).remote(str(log))
    pid = get(actor.pid.remote())
    running = actor.slow.remote(5.0)
    until(lambda: times(log) == 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorUnavailableError):
        get(running)
    until(lambda: answers(actor))
    assert times(log) == 1


def test_a_death_of_an_actor_whose_state_nobody_knows_is_as_loud_as_bare(tmp_path):
    """It is not restarted: nobody can give it back what it held."""
    outcomes = []
    for decorate in (lambda cls: cls, guard, guard(idempotent=True)):
        actor = ray.remote(decorate(work_class())).remote(str(tmp_path / "log"))
        os.kill(get(actor.pid.remote()), signal.SIGKILL)
        with pytest.raises(ray.exceptions.RayActorError) as caught:
            for _ in range(100):
                get(actor.pid.remote())
                threading.Event().wait(0.05)
        outcomes.append(type(caught.value).__name__)
    assert outcomes == ["ActorDiedError"] * 3


@pytest.mark.parametrize("restarts", [0, -1])
def test_a_poisoned_actor_whose_state_nobody_knows_answers_and_lives_on(restarts, tmp_path):
    """Its process is not ours to end, also where its user asked Ray for restarts."""
    cls = guard(idempotent=True)(work_class())
    actor = ray.remote(max_restarts=restarts)(cls).remote(str(tmp_path / "log"))
    pid = get(actor.pid.remote())
    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        get(actor.poison.remote(99))
    assert incident_of(caught.value).outcome is Outcome.ANSWERED
    assert get(actor.pid.remote()) == pid
    assert times(tmp_path / "log") == 1


def test_an_actor_that_ray_began_anew_is_not_called_recovered(tmp_path):
    """Its user asked Ray for restarts: so be it, and it is told."""
    actor = ray.remote(max_restarts=-1, max_task_retries=-1)(guard(work_class())).remote(
        str(tmp_path / "log")
    )
    pid = get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    until(lambda: answers(actor) not in (None, pid))
    (incident,) = of(actor)
    assert incident.outcome is Outcome.STATE_LOST
    assert f"process {pid} died without a word: by SIGKILL" in incident.cause
    assert any("began it anew" in note for note in incident.notes)


@pytest.mark.parametrize("order", ["guard first", "ray first"])
def test_a_poisoned_process_is_replaced_and_the_call_answered_by_the_new_one(order, tmp_path):
    """A device-side assert leaves a CUDA context that fails every later call."""
    log = tmp_path / "log"
    cls = ray.remote(freely(work_class())) if order == "guard first" else freely(ray.remote(work_class()))
    actor = cls.remote(str(log))
    pid = get(actor.pid.remote())
    assert get(actor.poison.remote()) != pid
    assert times(log) == 2
    (incident,) = of(actor)
    assert incident.kind == "cuda_device_assert"
    assert incident.target == "Work.poison"
    assert (incident.remedy, incident.outcome) == ("restart_process", Outcome.RECOVERED)
    assert "device-side assert" in incident.cause


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_poisoned_async_actor_is_replaced_too(idempotent, tmp_path):
    """Its other calls end with the process; those that may run twice are answered by the new one."""

    async def poison(self):
        self.note()
        if times(self.log) == 1:
            await asyncio.sleep(0.2)
            raise RuntimeError(POISON)
        return os.getpid()

    async def wait(self):
        await asyncio.sleep(0.5)
        return os.getpid()

    cls = guard(state="none", idempotent=idempotent)(work_class(poison=poison, wait=wait))
    actor = ray.remote(cls).remote(str(tmp_path / "log"))
    pid = get(actor.pid.remote())
    poisoned, waiting = actor.poison.remote(), actor.wait.remote()
    if idempotent:
        assert get(poisoned) != pid
        assert get(waiting) > 0
    else:
        with pytest.raises(RuntimeError, match="device-side assert"):
            get(poisoned)
    until(lambda: answers(actor) not in (None, pid))
    assert [i.outcome for i in of(actor)] == [Outcome.RECOVERED]


@pytest.mark.parametrize("why", ["class", "option"])
def test_a_poisoned_call_that_is_not_repeated_is_answered_before_the_process_goes(why, tmp_path):
    """The user's own error and not Ray's; the calls after it find a new process."""
    log = tmp_path / "log"
    cls = guard(state="none", idempotent=why != "class")(work_class())
    options = {"max_task_retries": 0} if why == "option" else {"num_cpus": 0}
    actor = ray.remote(cls).options(**options).remote(str(log))
    pid = get(actor.pid.remote())
    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        get(actor.poison.remote())
    assert incident_of(caught.value).remedy == "restart_process"
    until(lambda: answers(actor) not in (None, pid))
    assert times(log) == 1
    assert [i.outcome for i in of(actor)] == [Outcome.RECOVERED]


def test_an_actor_that_ray_would_not_restart_answers_and_lives_on(tmp_path):
    """``max_restarts=0`` is the user's word: no process is ended for good."""
    actor = ray.remote(max_restarts=0)(freely(work_class())).remote(str(tmp_path / "log"))
    pid = get(actor.pid.remote())
    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        get(actor.poison.remote())
    assert incident_of(caught.value).outcome is Outcome.ANSWERED
    assert get(actor.pid.remote()) == pid


def test_an_actor_whose_partner_died_does_not_die_with_it(tmp_path):
    """Ray's word about another process is no reason to end this one; the partner's poison neither."""

    @ray.remote(num_cpus=0)
    class Partner:
        def die(self):
            os._exit(1)

        def poison(self):
            raise RuntimeError(POISON)

    def ask(self, ref):
        return ray.get(ref[0])

    actor = ray.remote(freely(work_class(ask=ask))).remote(str(tmp_path / "log"))
    pid = get(actor.pid.remote())
    with pytest.raises(ray.exceptions.RayActorError):
        get(actor.ask.remote([Partner.remote().die.remote()]))
    with pytest.raises(RuntimeError, match="device-side assert"):
        get(actor.ask.remote([Partner.remote().poison.remote()]))
    assert get(actor.pid.remote()) == pid


def test_a_guarded_object_inside_an_unguarded_actor_never_ends_it(tmp_path):
    """The process is not the object's to end."""

    @ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=0)
    class Plain:
        def __init__(self, log):
            self.helper = freely(work_class())(log)

        def run(self):
            return os.getpid(), self.helper.pid()

        def poison(self):
            return self.helper.poison()

    actor = Plain.remote(str(tmp_path / "log"))
    before = get(actor.run.remote())
    with pytest.raises(RuntimeError, match="device-side assert"):
        get(actor.poison.remote())
    assert get(actor.run.remote()) == before


# -- how it ends


@pytest.mark.parametrize("where", ["method", "init", "bare"])
def test_an_actor_that_always_dies_ends_with_a_clear_error(where, tmp_path):
    """Ray alone restarts it for ever and the caller never hears (as with a method that eats the memory)."""
    log = tmp_path / "log"
    policy = GuardPolicy(process_budget=RestartBudget(max_restarts=2, within_s=600.0))
    if where == "bare":  # without an ``__init__`` the life begins at the first call
        cls = guard(policy=policy, state="none", idempotent=True)(
            type("Work", (), {"die": die_at(log), "pid": Work.pid})
        )
    elif where == "init":
        cls = guard(policy=policy, state="none", idempotent=True)(work_class(__init__=die_at(log)))
    else:
        cls = guard(policy=policy, state="none", idempotent=True)(work_class())
    actor = ray.remote(cls).remote(*([] if where == "bare" else [str(log)]))
    with pytest.raises(GaveUpError) as caught:
        get(actor.die.remote())
    assert times(log) == 3
    assert "Tried: restart_process -> restart_process" in str(caught.value)
    assert caught.value.cause.tried == ("restart_process", "restart_process")
    incident = incident_of(caught.value)
    assert (incident.remedy, incident.outcome) == ("give_up", Outcome.FAILED)
    started = time.monotonic()
    with pytest.raises(GaveUpError):
        get(actor.pid.remote())
    assert time.monotonic() - started < 2


def test_a_lasting_poison_spends_the_budget_and_answers_with_the_users_error(tmp_path):
    """Two new processes met the same; the third answers, with the reason in the incident."""
    log = tmp_path / "log"
    actor = ray.remote(freely(work_class())).remote(str(log))
    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        get(actor.poison.remote(99))
    assert times(log) == 3
    incident = incident_of(caught.value)
    assert (incident.remedy, incident.outcome) == ("give_up", Outcome.FAILED)
    assert "2 process restarts within" in incident.notes[0]


def test_children_that_hold_rays_connection_do_not_delay_the_restart(tmp_path):
    """A forked child keeps the actor 'alive' for Ray until it ends itself."""

    def fork_and_poison(self):
        self.note()
        if times(self.log) == 1 and os.fork() == 0:
            threading.Event().wait(60)
            os._exit(0)
        if times(self.log) == 1:
            raise RuntimeError(POISON)
        return "answered"

    actor = ray.remote(freely(work_class(fork_and_poison=fork_and_poison))).remote(str(tmp_path / "log"))
    get(actor.pid.remote())
    started = time.monotonic()
    assert get(actor.fork_and_poison.remote()) == "answered"
    assert time.monotonic() - started < 40, "Ray would have waited for the child"


def test_memory_survives_the_actor(tmp_path):
    """Kept by Ray's control process, under the actor's id."""

    def remember(self, values):
        from rayguard.actors.life.incarnation import Incarnation

        memory = ActorMemory(Incarnation.current().actor_id)
        known = memory.load()
        memory.save(values)
        return known, Incarnation.current().number

    actor = ray.remote(freely(work_class(remember=remember))).remote(str(tmp_path / "log"))
    assert get(actor.remember.remote({"rung": 2})) == ({}, 0)
    os.kill(get(actor.pid.remote()), signal.SIGKILL)
    assert get(actor.remember.remote({})) == ({"rung": 2}, 1)


# -- hands


def die_at(log):
    """Return a method that notes that it ran and ends its process."""

    def die(self, *_):
        with Path(log).open("a") as file:
            file.write("ran\n")
        os._exit(1)

    return die


def copy_of(function):
    import types

    return types.FunctionType(function.__code__, function.__globals__, function.__name__)


def of(actor):
    """Return this actor's incidents."""
    return [i for i in journal() if i.actor_id == actor._actor_id.hex()]


def answers(actor):
    """Return the pid that answers, or None while there is none."""
    try:
        return get(actor.pid.remote(), timeout=60)
    except ray.exceptions.RayActorError:
        return None


def until(condition, limit_s=90.0):
    """Wait for ``condition``, at most ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.02)


# -- what the caller finds


class OwnPickleError(Exception):
    """Pickles itself, as many libraries' errors do."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text

    def __reduce__(self):
        return OwnPickleError, (self.code, self.text)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an exception's notes came with Python 3.11")
def test_the_incident_of_what_ray_keeps_the_text_of_alone_is_found():
    """A death in ``__init__``, and an exception that pickles itself, end with their incident's name."""

    @ray.remote(num_cpus=0)
    @guard
    class Fails:
        def __init__(self, error=None):
            if error is not None:
                raise error

        def fail(self):
            raise OwnPickleError(7, "mine")

    with pytest.raises(OwnPickleError) as own:
        get(Fails.remote().fail.remote())
    with pytest.raises(ray.exceptions.ActorDiedError) as died:
        get(Fails.remote(ValueError("at start")).fail.remote())
    for caught, target in ((own, "Fails.fail"), (died, "Fails.__init__")):
        found = rayguard.incident_of(caught.value)
        assert found is not None
        assert found.target == target
        assert found in journal(), "whole, as this node keeps it"
