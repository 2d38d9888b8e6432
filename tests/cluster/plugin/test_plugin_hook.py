"""The plugin's hands without a cluster: nothing that fails in them reaches a worker or a user's call."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
import traceback
import types
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from rayguard.actors.guard import restarts as restart
from rayguard.actors.life import retries
from rayguard.actors.mark import Guarding, StateRule, mark_of
from rayguard.actors.methods import MARK
from rayguard.cluster.plugin import (
    activation,
    driver_hook,
    guard_marks,
    lazy_watch,
    named_classes,
    named_restart_options,
    pending_calls,
    runtime_env,
    unmatched_paths,
    worker_hook,
)
from rayguard.cluster.plugin.config import asked
from rayguard.cluster.plugin.runtime_env import RayguardPlugin, variables
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.preloading.runtime_env import preloaded, preloaded_later, python_of, starting
from rayguard.ray_internals import actor_creation, worker_startup
from rayguard.recovery import journal
from rayguard.recovery.incident import incident_of
from rayguard.recovery.journal import Journal
from rayguard.recovery.tally import TALLY


class Context:
    """What the plugin sees of Ray's ``RuntimeEnvContext``."""

    def __init__(self, python=sys.executable, **env_vars):
        self.py_executable = python
        self.env_vars = env_vars


def started(context, given):
    """Return the variables of a worker that a fresh plugin has prepared."""
    ours = RayguardPlugin()
    env = {"rayguard": given}
    ours.validate(env)
    asyncio.run(ours.create(None, env, context, logging.getLogger("test")))
    ours.modify_context([], env, context, logging.getLogger("test"))
    return context.env_vars


# -- the plugin, in the agent of a node


def test_a_worker_gets_the_hook_and_the_configuration():
    """All that its start needs, in its environment."""
    found = started(Context(USERS="own"), {"metrics_port": 0, "home": "/var/rayguard"})
    assert found["USERS"] == "own"
    assert found[worker_hook.HOOK] == worker_hook.SETUP
    assert found[worker_hook.DRIVER_HOOK] == worker_hook.PREPARE
    assert json.loads(found[worker_hook.PLUGIN]) == asked({"metrics_port": 0, "home": "/var/rayguard"})
    assert (found["RAYGUARD_HOME"], found["RAYGUARD_METRICS_PORT"]) == ("/var/rayguard", "0")


@pytest.mark.parametrize("off", [None, False])
def test_switched_off_it_sets_nothing(off):
    """The environment is the user's own."""
    assert started(Context(USERS="own"), off) == {"USERS": "own"}


def test_hooks_of_the_user_are_kept_for_later():
    """Those of the runtime_env go before those that the node has."""
    config = asked({})
    found = variables(config, {worker_hook.HOOK: "their.hook"}, {worker_hook.DRIVER_HOOK: "their.driver"})
    assert found[worker_hook.USERS_HOOK] == "their.hook"
    assert found[worker_hook.USERS_DRIVER_HOOK] == "their.driver"
    again = variables(
        config, {worker_hook.HOOK: worker_hook.SETUP, worker_hook.DRIVER_HOOK: worker_hook.PREPARE}, {}
    )
    assert worker_hook.USERS_HOOK not in again  # never our own: it would call itself
    assert worker_hook.USERS_DRIVER_HOOK not in again


@pytest.mark.parametrize(
    ("hook", "moved", "ours"),
    [
        ("their.hook", True, True),
        ("ray_runtime_env_func::ab", False, True),
        ("ray_runtime_env_func::ab", True, False),
    ],
)
def test_a_hook_that_we_could_not_run_is_left_to_ray(monkeypatch, hook, moved, ours):
    """One that is a function is fetched by Ray alone: where that has moved, its worker runs without us."""
    worker_startup.users_hook.forget()
    if moved:
        worker_startup.users_hook.turn_off("Ray moved it")
    found = started(Context(**{worker_hook.HOOK: hook}), {})
    worker_startup.users_hook.forget()
    assert found[worker_hook.HOOK] == (worker_hook.SETUP if ours else hook)
    assert found.get(worker_hook.USERS_HOOK) == (hook if ours else None)


@pytest.mark.parametrize("python", ["/no/such/python", f"{sys.executable} -S -I"])
def test_a_python_without_rayguard_starts_without_it(python):
    """Ray ends a worker whose hook cannot be loaded."""
    assert started(Context(python, USERS="own"), {}) == {"USERS": "own"}


def test_workers_that_preload_are_started_by_what_has_them_forked():
    """In the node's own Python, as Ray would name it; not where somebody starts workers in a way of his own."""
    context = Context()
    started(context, {"preload": ["torch", "torch.nn"]})
    assert context.py_executable == starting(sys.executable, ["torch", "torch.nn"])
    context = Context(f"{sys.executable} -S")
    started(context, {"preload": ["torch"]})
    assert context.py_executable == f"{sys.executable} -S"
    context = Context()
    started(context, {})
    assert context.py_executable == sys.executable


def test_what_a_job_wants_preloaded_goes_before_what_a_pool_preloads_by_itself():
    """From the first life on; where the job wants nothing, the pool's way is left alone."""
    of_a_pool = str(preloaded_later("vllm", {})["py_executable"])
    context = Context(of_a_pool)
    started(context, {"preload": ["torch"]})
    assert context.py_executable == starting(sys.executable, ["torch"])
    context = Context(of_a_pool)
    assert worker_hook.PLUGIN in started(context, {}), "its Python has rayguard"
    assert context.py_executable == of_a_pool


@pytest.mark.parametrize("made", [preloaded("torch"), preloaded_later("torch", {})])
def test_what_has_workers_forked_is_not_started_to_see_whether_its_python_has_rayguard(made):
    """It would listen for workers that never come, and import."""
    python = python_of(str(made["py_executable"]))
    found = subprocess.run(["bash", "-c", f"echo {python}"], capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).samefile(sys.executable)
    assert "preloading" not in python
    assert python_of("python3 -S") == "python3 -S"


@pytest.mark.parametrize("step", ["_asked", "_place", "variables"])
def test_an_error_in_the_plugin_leaves_the_worker_as_it_was(monkeypatch, step):
    """Each step is made to fail."""
    context = Context(USERS="own")
    env = {"rayguard": {}}
    ours = RayguardPlugin()
    monkeypatch.setattr(runtime_env, step, failing)
    asyncio.run(ours.create(None, env, context, logging.getLogger("test")))
    ours.modify_context([], env, context, logging.getLogger("test"))
    assert context.env_vars == {"USERS": "own"}


def test_a_broken_installation_refuses_no_job(monkeypatch):
    """Without pydantic nothing can be checked; Ray's own errors would stop every worker."""
    monkeypatch.setitem(sys.modules, "rayguard.cluster.plugin.config", None)
    assert started(Context(USERS="own"), {"gaurd": 1}) == {"USERS": "own"}


def test_what_is_refused_is_said_once():
    """Ray shows whoever submits the job the whole traceback: pydantic's half would come before our sentence."""
    with pytest.raises(ConfigError, match="did you mean 'guard'") as refused:
        RayguardPlugin.validate({"rayguard": {"gard": 1}})
    assert "Extra inputs" not in "".join(traceback.format_exception(refused.value))


def failing(*_args, **_options):
    raise OSError("made to fail")


# -- the hook, in a worker


@pytest.fixture
def worker(monkeypatch):
    """A worker's environment and a function manager that the hook may patch."""
    from ray._private.function_manager import FunctionActorManager

    for name in ("_load_actor_class_from_gcs", "_load_actor_class_from_local", "get_execution_info"):
        monkeypatch.setattr(FunctionActorManager, name, getattr(FunctionActorManager, name))
    for capability in (worker_startup.classes, worker_startup.functions):
        capability.forget()
    monkeypatch.setattr(pending_calls, "load_guard", pending_calls.load_guard)
    monkeypatch.setattr(named_restart_options, "named", {})
    monkeypatch.setattr(lazy_watch, "config", {})
    monkeypatch.setenv(worker_hook.PLUGIN, json.dumps(asked({"guard": ["a:B"]})))
    monkeypatch.setenv(worker_hook.HOOK, worker_hook.SETUP)
    return FunctionActorManager


def test_the_hook_takes_itself_out_of_the_environment(worker):
    """What this worker starts finds what its user has set, and no trace of ours."""
    worker_hook.setup()
    assert worker_hook.HOOK not in os.environ
    assert set(named_restart_options.named) == {"a:B"}


def test_the_users_hook_runs_and_its_errors_are_rays(worker, monkeypatch):
    """As without us: a worker whose hook fails does not start."""
    monkeypatch.setenv(worker_hook.USERS_HOOK, "no_such_module.function")
    with pytest.raises(RuntimeError, match="no_such_module"):
        worker_hook.setup()
    assert os.environ[worker_hook.HOOK] == "no_such_module.function"


@pytest.mark.parametrize("step", ["_watch_classes", "_watch_functions", "_set_options"])
def test_a_step_that_fails_stops_neither_the_worker_nor_the_others(worker, monkeypatch, step):
    """Each step is made to fail; the user's hook runs all the same."""
    ran = []
    module = types.ModuleType("hook_of_a_user")
    module.function = lambda: ran.append(True)
    monkeypatch.setitem(sys.modules, "hook_of_a_user", module)
    monkeypatch.setenv(worker_hook.USERS_HOOK, "hook_of_a_user.function")
    before = worker._load_actor_class_from_gcs
    monkeypatch.setattr(worker_hook, step, named(step, failing))
    worker_hook.setup()
    assert ran == [True]
    assert (worker._load_actor_class_from_gcs is before) == (step == "_watch_classes")


def named(name, function):
    """Return a function of this name."""
    copy = types.FunctionType(function.__code__, function.__globals__, name)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@pytest.mark.parametrize("said", ["", "{", "[]", '{"guard": 1}'])
def test_a_configuration_that_cannot_be_read_stops_nothing(worker, monkeypatch, said):
    """Of another version, or torn."""
    monkeypatch.setenv(worker_hook.PLUGIN, said)
    worker_hook.setup()


def test_an_error_in_watching_leaves_rays_class_alone(worker, monkeypatch):
    """What Ray has loaded is what it gets."""

    class Loaded:
        pass

    monkeypatch.setattr(worker, "_load_actor_class_from_gcs", lambda *_: Loaded)
    monkeypatch.setattr(lazy_watch, "enlist", failing)
    worker_hook.setup()
    assert worker._load_actor_class_from_gcs(None, None, None) is Loaded


# -- calls before the guard comes


@pytest.fixture
def watching(monkeypatch, tmp_path):
    """A process like a worker's, in which the guard has not come yet; nothing goes on aside."""
    told = Journal(tmp_path)
    monkeypatch.setattr(journal, "default_journal", lambda: told)
    monkeypatch.setattr(lazy_watch, "config", asked({"agent": False, "supervisor": False, "memory": False}))
    monkeypatch.setattr(lazy_watch, "waiting", [])
    monkeypatch.setattr(lazy_watch, "arrived", False)
    monkeypatch.setattr(lazy_watch, "start_loading", lambda **_: None)
    monkeypatch.setattr(pending_calls, "load_guard", lambda: activation)
    monkeypatch.setattr(restart, "hands", restart.LifeHands())
    restart.hands.asks = False
    return told


class Bare:
    """As a user wrote it."""

    def __init__(self, n=0):
        self.n = n

    def add(self, x):
        self.n += x
        return self.n

    def fail(self, error):
        raise error

    def catch(self):
        try:
            self.fail(KeyError("caught"))
        except KeyError:
            return "caught"

    def outer(self, error):
        self.fail(error)

    def count(self):
        got = yield self.n
        yield got
        raise LookupError("of a stream")

    async def wait(self, gate):
        await gate
        return self.n

    @staticmethod
    def still():
        return "static"


def under_watch():
    """Return a class of its own with the methods of ``Bare``, under watch."""
    cls = type("Bare", (Bare,), {"__module__": "users.own"})
    lazy_watch.enlist(cls)
    return cls


@pytest.mark.parametrize("late", [False, True])
def test_calls_answer_as_they_did(watching, late):
    """Before the guard comes and after, every kind of method."""
    cls = under_watch()
    one = cls(2)
    if late:
        activation.arrive()
    assert (one.add(3), cls.still(), one.catch()) == (5, "static", "caught")
    stream = one.count()
    assert (next(stream), stream.send("sent")) == (5, "sent")
    with pytest.raises(LookupError):
        next(stream)

    async def waited():
        gate = asyncio.get_running_loop().create_future()
        gate.set_result(None)
        return await one.wait(gate)

    assert asyncio.run(waited()) == 5
    assert pending_calls.under_way == {}


@pytest.mark.parametrize("late", [False, True])
def test_an_error_is_told_once_by_the_outermost_call(watching, late):
    """The very same exception goes out, with its incident; one that its user has caught is no incident."""
    one = under_watch()()
    if late:
        activation.arrive()
    mine = KeyError(f"mine {late}")
    with pytest.raises(KeyError) as caught:
        one.outer(mine)
    assert caught.value is mine
    assert one.catch() == "caught"
    assert [(i.target, i.remedy) for i in watching.read()] == [("Bare.outer", "none")]
    assert incident_of(mine).target == "Bare.outer"


def test_what_loads_while_the_guard_comes_has_its_wrappers_too(watching, monkeypatch):
    """Between its last look at what waits and the word that it has come, nothing slips through."""
    settle = activation.settle

    def settled():
        settle()
        monkeypatch.setattr(activation, "settle", settle)
        under_watch()

    monkeypatch.setattr(activation, "settle", settled)
    activation.arrive()
    assert lazy_watch.waiting == []


def test_errors_beside_the_guard_are_counted_with_the_processs_own():
    """In drivers, too, where no guard comes."""
    before = TALLY.guard_errors["a piece"]
    with harmless("a piece"):
        failing()
    assert TALLY.guard_errors["a piece"] == before + 1


def test_errors_before_there_is_a_tally_are_kept():
    """Until the guard comes."""
    early = (
        "import sys; from rayguard.harmless import harmless\n"
        "with harmless('an early piece'): 1 / 0\n"
        "assert 'rayguard.recovery.tally' not in sys.modules\n"
        "from rayguard.recovery.tally import TALLY; print(dict(TALLY.guard_errors))"
    )
    run = subprocess.run(
        [sys.executable, "-c", early], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "{'an early piece': 1}"


def test_a_newer_nodes_configuration_watches_all_the_same(watching):
    """The plugin of the node may know keys of memory that the worker's rayguard does not."""
    mark = guard_marks.watching({**lazy_watch.config, "memory": {"of_tomorrow": 1}}, Bare)
    assert mark.policy.memory == guard_marks.memory_policy(None)


@pytest.mark.parametrize(("said_at", "makes"), [(None, True), (-10.0, False), (-400.0, True), (400.0, True)])
def test_one_worker_of_a_job_makes_its_supervisor(monkeypatch, said_at, makes):
    """Who said so long ago died of it; who says so of a day to come has another clock."""
    memory = Memory({} if said_at is None else {"at": time.time() + said_at})
    monkeypatch.setattr(activation, "ActorMemory", lambda *_: memory)
    monkeypatch.setattr("ray.get_actor", unknown)
    assert activation._is_ours_to_make("rayguard:supervisor:x") is makes
    assert time.time() - memory.values["at"] < 60 or not makes


class Memory:
    """Ray's table of one actor."""

    def __init__(self, values):
        self.values = values

    def load(self):
        return self.values

    def save(self, values):
        self.values = values
        return True


def unknown(*_args, **_options):
    raise ValueError("no such actor")


def test_a_call_that_runs_as_the_guard_comes_is_known_to_it(watching, monkeypatch):
    """The recorder is told of its begin and of its end."""
    told = []
    monkeypatch.setattr(
        "rayguard.process.flight.recorder.begin", lambda owner, name: told.append((owner, name)) or 7
    )
    monkeypatch.setattr("rayguard.process.flight.recorder.end", told.append)
    begun, go_on = threading.Event(), threading.Event()

    class Long:
        def train(self):
            begun.set()
            assert go_on.wait(30)

    lazy_watch.enlist(Long)
    call = threading.Thread(target=Long().train)
    call.start()
    assert begun.wait(30)
    activation.arrive()
    assert told == [("Long", "train")]
    go_on.set()
    call.join(30)
    assert told == [("Long", "train"), 7]


def test_an_error_while_the_guard_comes_is_not_the_users(watching, monkeypatch):
    """Its own exception goes out, whatever fails in ours."""
    monkeypatch.setattr(activation, "ended", failing)
    with pytest.raises(KeyError, match="mine"):
        under_watch()().fail(KeyError("mine"))


@pytest.mark.parametrize("late", [False, True])
def test_a_function_is_watched(watching, late):
    """Its answer and its error are its own; what we know of it stands beside them."""

    def users(x):
        if x < 0:
            raise ArithmeticError(f"of {x} {late}")
        return x

    users.__module__ = "users.own"
    function = lazy_watch.watch_function(users)
    if late:
        activation.arrive()
    assert function(4) == 4
    with pytest.raises(ArithmeticError):
        function(-1)
    assert [one.target for one in watching.read()] == ["users.task"]
    assert lazy_watch.watch_function(function) is function


@pytest.mark.parametrize(
    "module", ["ray.serve._private.replica", "rayguard.cluster.agent.node_agent", "ray.dashboard.x"]
)
def test_machinery_is_left_alone(watching, module):
    """Ray's own actors and ours are nobody's code."""
    cls = type("Machine", (Bare,), {"__module__": module})
    lazy_watch.enlist(cls)
    assert cls.add is Bare.add


def test_a_class_that_is_guarded_stays_as_its_user_said(watching, monkeypatch):
    """Its own decorator is the more exact word; its numbers are shown all the same."""
    import rayguard

    begun = []
    monkeypatch.setattr(lazy_watch, "start_loading", lambda **_: begun.append(True))
    cls = rayguard.guard(type("Own", (Bare,), {"__module__": "users.own"}))
    before = cls.add
    lazy_watch.enlist(cls)
    assert cls.add is before
    assert begun


def test_a_named_class_that_cannot_be_guarded_is_watched(watching, monkeypatch):
    """The guard fails; what is left is the watch."""
    monkeypatch.setitem(lazy_watch.config["guard"], "users.own:Bare", {"idempotent": True, "group": None})
    monkeypatch.setattr(activation, "guard_class", failing)
    one = under_watch()()
    assert one.add(1) == 1
    assert lazy_watch.waiting


# -- where actors are created


@pytest.mark.parametrize(
    ("said", "options", "restarts", "repeats"),
    [
        ({"idempotent": True}, {}, -1, -1),
        ({}, {}, -1, 0),
        ({"max_restarts": 3, "max_task_retries": 2}, {}, 3, 2),
        ({}, {"max_restarts": 0}, 0, None),
        ({}, {"max_restarts": 5, "max_task_retries": 1}, 5, 1),
    ],
)
def test_restart_options_are_filled_where_the_user_left_them_open(said, options, restarts, repeats):
    """What stands in the user's code wins. Here there is no state to lose; Ray repeats what may run twice."""
    config = asked({"guard": {"a:B": {"state": "none", **said}}})
    chosen = named_restart_options.filled(config["guard"]["a:B"], options, restorable=False)
    assert (chosen.get("max_restarts"), chosen.get("max_task_retries")) == (restarts, repeats)


@pytest.mark.parametrize(
    ("said", "options", "restarts", "repeats"),
    [
        ({}, {}, -1, -1),
        ({"max_restarts": 3}, {}, 3, -1),
        ({"max_restarts": 3, "max_task_retries": 2}, {}, 3, 2),
        ({}, {"max_restarts": 0}, 0, None),
        ({}, {"max_restarts": 5, "max_task_retries": 1}, 5, 1),
    ],
)
def test_calls_of_a_named_class_that_says_its_state_are_repeated(said, options, restarts, repeats):
    """Its next life knows which ones were cut off, and answers those that must not run twice."""
    config = asked({"guard": {"a:B": said}})
    chosen = named_restart_options.filled(config["guard"]["a:B"], options, restorable=True)
    assert (chosen.get("max_restarts"), chosen.get("max_task_retries")) == (restarts, repeats)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(
    ("said", "options", "expected"),
    [
        ({}, {}, {}),
        ({}, {"num_cpus": 0}, {"num_cpus": 0}),
        ({}, {"max_restarts": 4}, {"max_restarts": 4}),
        ({"max_restarts": 3}, {}, {"max_restarts": 3}),
        ({"max_restarts": 0}, {}, {"max_restarts": 0}),
        ({"max_restarts": 3, "max_task_retries": 2}, {}, {"max_restarts": 3, "max_task_retries": 2}),
        ({"max_restarts": 3}, {"max_restarts": 1}, {"max_restarts": 1}),
    ],
)
def test_a_named_class_whose_state_nobody_knows_is_restarted_only_where_its_user_said_so(
    idempotent, said, options, expected
):
    """In the job's ``runtime_env``, or where it is created."""
    config = asked({"guard": {"a:B": {"idempotent": idempotent, **said}}})
    assert named_restart_options.filled(config["guard"]["a:B"], options, restorable=False) == expected


@pytest.mark.parametrize("said", [{"state": "none"}, {}])
def test_a_member_of_a_named_group_is_restarted_only_where_its_user_said_so(said):
    """Alone it would be one that nobody has joined."""
    config = asked({"guard": {"a:B": {"group": "ranks", **said}}})["guard"]["a:B"]
    for given in ({}, {"max_restarts": 2}):
        assert named_restart_options.filled(config, given, restorable=not said) == given


@pytest.mark.parametrize(("made", "repeats"), [(True, 0), (False, 7)])
def test_the_word_of_who_made_an_actor_stays(monkeypatch, made, repeats):
    """``get_if_exists`` with other options finds it as it was made."""
    memory = Memory({retries.RETRIES: 7})
    monkeypatch.setattr(retries, "ActorMemory", lambda *_: memory)
    handle = types.SimpleNamespace(_ray_actor_id=b"\1")
    modified = type("Found", (), {"__ray_actor_class__": Bare})
    actor_class = types.SimpleNamespace(__ray_metadata__=types.SimpleNamespace(modified_class=modified))
    monkeypatch.setattr(
        named_restart_options, "named", {f"{__name__}:Bare": asked({"guard": ["a:B"]})["guard"]["a:B"]}
    )
    monkeypatch.setattr(actor_creation, "_steps", {"named": named_restart_options.before})
    create = actor_creation.wrapped(lambda *_args, **_options: handle)
    create(actor_class, max_task_retries=0, get_if_exists=not made)
    assert memory.values == {retries.RETRIES: repeats}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"state": "none"}, True),
        ({}, False),
        ({"max_restarts": 3}, False),
        ({"state": "none", "max_restarts": 0}, False),
    ],
)
def test_the_supervisor_gets_word_of_named_actors_that_are_restored(monkeypatch, said, told):
    """It may end those alone."""
    words = []
    monkeypatch.setattr(retries, "leave_word", lambda name, **word: words.extend([name] * word["restored"]))
    modified = type("Found", (), {"__ray_actor_class__": Bare})
    actor_class = types.SimpleNamespace(__ray_metadata__=types.SimpleNamespace(modified_class=modified))
    named = asked({"guard": {f"{__name__}:Bare": said}})["guard"]
    monkeypatch.setattr(named_restart_options, "named", named)
    _, after = named_restart_options.before(actor_class, {})
    after(types.SimpleNamespace(_ray_actor_id=b"\1"))
    assert words == ["01"] * told


@pytest.fixture
def fresh_driver(worker, monkeypatch):
    monkeypatch.setattr(unmatched_paths, "_named", ())
    monkeypatch.setattr(unmatched_paths.worker, "before_leaving", lambda _: True)
    for name in (worker_hook.PLUGIN, worker_hook.USERS_DRIVER_HOOK):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_driver_that_asks_for_nothing_gets_nothing(fresh_driver):
    """Its runtime_env is its own."""
    assert driver_hook.prepare(None) is None
    given = {"env_vars": {"A": "1"}}
    assert driver_hook.prepare(given) is given


def test_a_driver_is_told_what_is_wrong_before_anything_runs(fresh_driver):
    """The same words as everywhere."""
    with pytest.raises(ConfigError, match="did you mean 'watch'"):
        driver_hook.prepare({"rayguard": {"wach": True}})


def test_the_environment_may_ask_for_all_jobs(fresh_driver):
    """What a job says of itself wins, False included; the user's object is left as it is."""
    fresh_driver.setenv(worker_hook.PLUGIN, '{"guard": ["a:B"]}')
    given = {"env_vars": {"A": "1"}}
    assert driver_hook.prepare(given) == {"env_vars": {"A": "1"}, "rayguard": {"guard": ["a:B"]}}
    assert given == {"env_vars": {"A": "1"}}
    assert set(named_restart_options.named) == set(unmatched_paths._named) == {"a:B"}
    assert driver_hook.prepare({"rayguard": False}) == {"rayguard": False}
    assert named_restart_options.named == {}
    assert unmatched_paths._named == ()
    fresh_driver.setenv(worker_hook.PLUGIN, "{")
    with pytest.raises(ConfigError, match="RAYGUARD_PLUGIN"):
        driver_hook.prepare(None)


def test_the_users_driver_hook_comes_first(fresh_driver):
    """We see what it returns."""
    module = types.ModuleType("driver_hook_of_a_user")
    module.add = lambda env: {**(env or {}), "rayguard": {"guard": ["c:D"]}}
    fresh_driver.setitem(sys.modules, "driver_hook_of_a_user", module)
    fresh_driver.setenv(worker_hook.USERS_DRIVER_HOOK, "driver_hook_of_a_user.add")
    assert driver_hook.prepare(None) == {"rayguard": {"guard": ["c:D"]}}
    assert set(named_restart_options.named) == {"c:D"}


# -- class paths


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("named_user:Here", ""),
        ("named_user:Here.Inner", ""),
        ("named_user:Maybe", ""),
        ("named_user:Imported", ""),
        ("named_user:made", ""),
        ("named_user:later", ""),
        ("named_user:decorated", ""),
        ("named_star:anything", ""),
        ("named_lazy:anything", ""),
        ("named_filled:anything", ""),
        ("named_user:nowhere", "has no 'nowhere'"),
        ("named_user:function", "is a function"),
        ("named_broken:Any", "does not import"),
        ("named_missing:Any", "no module 'named_missing'"),
        ("named_user.sub:Any", "is no package"),
        ("math:Any", ""),
        ("__main__:Any", ""),
    ],
)
def test_a_path_is_judged_without_importing_it(tmp_path, monkeypatch, path, said):
    """By what stands in the module's source; where that cannot tell, it may be right."""
    (tmp_path / "named_user.py").write_text(
        "import sys\nsys.exit('imported')\nfrom x import Imported\nclass Here: pass\n"
        "try:\n    class Maybe: pass\nexcept OSError: pass\ndef function(): pass\nmade = type('made', (), {})\n"
        "def bind():\n    global later\n    later = made\n@type\ndef decorated(): pass\n"
    )
    (tmp_path / "named_star.py").write_text("from x import *\n")
    (tmp_path / "named_lazy.py").write_text("def __getattr__(name): pass\n")
    (tmp_path / "named_filled.py").write_text("def fill(name):\n    globals()[name] = object\n")
    (tmp_path / "named_broken.py").write_text("class Any(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = named_classes.problem_of(path)
    assert said in problem
    assert bool(problem) == bool(said)
    assert "named_user" not in sys.modules


def test_namespaces_and_editable_packages_are_found(tmp_path, monkeypatch):
    """Folders without __init__.py in one another; packages that a finder knows and no path has."""
    (tmp_path / "named_space" / "inner").mkdir(parents=True)
    (tmp_path / "named_space" / "inner" / "deep.py").write_text("class Here: pass\n")
    (tmp_path / "elsewhere.py").write_text("class Here: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert named_classes.problem_of("named_space.inner.deep:Here") == ""

    class Editable:
        @staticmethod
        def find_spec(name, path=None, target=None):
            ours = name == "named_editable"
            return spec_from_file_location(name, tmp_path / "elsewhere.py") if ours else None

    monkeypatch.setattr(sys, "meta_path", [Editable, *sys.meta_path])
    assert named_classes.problem_of("named_editable:Here") == ""
    assert "has no 'There'" in named_classes.problem_of("named_editable:There")


def test_what_cannot_be_read_as_source_is_said(tmp_path, monkeypatch):
    """Some Pythons have a ValueError for it, and no SyntaxError."""
    (tmp_path / "named_nul.py").write_bytes(b"class A: pass\0")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "does not import" in named_classes.problem_of("named_nul:A")


@pytest.mark.parametrize(
    ("state", "said", "told"),
    [
        (StateRule.STATELESS, {"state": "none"}, True),
        (StateRule.RESTORABLE, {}, True),
        (StateRule.UNSAID, {"max_restarts": 3}, True),
        (StateRule.UNSAID, {}, False),
        (StateRule.STATELESS, {"state": "none", "max_restarts": 0}, False),
    ],
)
def test_a_nested_class_that_ray_will_not_restart_is_told(state, said, told, monkeypatch):
    """It is named as it is everywhere else: with the class around it. Where nobody wants a restart, nothing."""

    class Inner:
        pass

    if state is StateRule.RESTORABLE:
        Inner.snapshot, Inner.restore = lambda self: self, lambda self, state: state
    says = []
    Inner.__qualname__, Inner.__ray_actor_class__ = "Outer.Inner", Inner
    actor = type("Inner", (Inner,), {MARK: Guarding(by_plugin=True, state=state)})()
    assert mark_of(type(actor)).state is state
    config = asked({"guard": {"__main__:Outer.Inner": said}})["guard"]
    Inner.__module__ = "__main__"
    monkeypatch.setattr(named_classes, "this_actor", lambda: actor)
    monkeypatch.setattr(named_classes, "_has_word", lambda _: False)
    monkeypatch.setattr(named_classes, "say", lambda *words: says.append(words))
    named_classes.check(config)
    assert [target for target, _, _ in says] == ["Inner"] * told
