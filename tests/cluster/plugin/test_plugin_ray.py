"""The plugin on real Ray: code that knows nothing of rayguard, in a job whose runtime_env has one more key."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rayguard.cluster.plugin import named_restart_options
from rayguard.cluster.plugin.worker_hook import DRIVER_HOOK, HOOK, PLUGIN, PREPARE
from rayguard.errors import ConfigError
from rayguard.recovery.incident import Outcome, incident_of
from rayguard.recovery.journal import Journal
from rayguard.recovery.status import read_pages

pytestmark = pytest.mark.ray

PATIENCE_S = 60.0
USERS = '''
import os
import threading

_LOCK = threading.Lock()  # cannot be pickled


class Work:
    """A user's class: not a word of rayguard."""

    def __init__(self, start=0):
        self.n = start

    def add(self, x=1):
        with _LOCK:
            self.n += x
            return self.n

    def fail(self, error):
        self.n += 1
        raise error

    def flaky(self):
        self.n += 1
        if self.n < 3:
            import ray
            raise ray.exceptions.ObjectStoreFullError("a moment")
        return self.n

    def count(self):
        yield self.n
        yield self.n + 1

    def pid(self):
        return os.getpid()

    def environment(self):
        return dict(os.environ)


class AsyncWork:
    async def fail(self):
        raise LookupError("of an async method")

    async def count(self):
        for n in range(3):
            yield n


class Healing(Work):
    """The one that is named."""

    def poison(self, path):
        if not os.path.exists(path):
            open(path, "w").close()
            os._exit(3)
        return "answered"


class Unsaid(Work):
    """Named as well, and nothing more is said of it."""


class Saved(Work):
    """Named as well; it can say its state."""

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


class StartsAsync:
    """As OpenRLHF's rollouts."""

    async def __init__(self, start=0):
        import asyncio

        await asyncio.sleep(0.01)
        self.n = start

    async def add(self, x=1):
        self.n += x
        return self.n


class FailsToStart:
    def __init__(self):
        raise RuntimeError("no licence")

    def pid(self):
        return os.getpid()


def task(x):
    if x < 0:
        raise ArithmeticError(f"task of {x}")
    return x


def string_hook():
    os.environ["STRING_HOOK_RAN"] = "yes"


def broken_hook():
    raise RuntimeError("broken by its user")
'''
SABOTAGE = """
import os
import sys


class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("SABOTAGED"):
            raise OSError(f"{name} is sabotaged")


sys.meta_path.insert(0, Refusing())
"""
NESTED = """
import os, sys
import ray, user_work

ray.init(address=sys.argv[1], log_to_driver=False)
actor = ray.remote(user_work.Healing).remote()
print(ray.get(actor.poison.remote(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("plugin_home")


@pytest.fixture(scope="module")
def job(tmp_path_factory, home):
    """A cluster with the plugin, and a job under it: one class is named, two paths are wrong."""
    import ray

    def users_hook():
        os.environ["CALLABLE_HOOK_RAN"] = "yes"

    modules = tmp_path_factory.mktemp("user_modules")
    (modules / "user_work.py").write_text(USERS)
    (modules / "sabotage").mkdir()
    (modules / "sabotage" / "sitecustomize.py").write_text(SABOTAGE)
    (modules / "nested.py").write_text(NESTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(home))
        patch.setenv("RAY_RUNTIME_ENV_PLUGINS", '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]')
        patch.setenv(DRIVER_HOOK, PREPARE)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")]))
        patch.setattr(sys, "path", [str(modules), *sys.path])
        config = {
            "guard": {
                "user_work:Healing": {"state": "none", "idempotent": True},
                "user_work:Unsaid": {},
                "user_work:Saved": {},
                "user_work:task": {},
                "no_such_module:Thing": {},
            },
            "agent": False,
            "supervisor": False,
        }
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={
                "rayguard": config,
                "env_vars": {"USERS_OWN": "kept"},
                "worker_process_setup_hook": users_hook,
            },
        )
        try:
            yield modules
        finally:
            ray.shutdown()
            named_restart_options.named.clear()


def incidents(home, wanted, at_least=1):
    """Wait for incidents that ``wanted`` takes; return all of them."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [one for one in Journal(home).read() if wanted(one)]
        if len(found) >= at_least or time.monotonic() > deadline:
            return found
        threading.Event().wait(0.2)


def remote(name, **options):
    import ray
    import user_work

    return ray.remote(num_cpus=0.1, **options)(getattr(user_work, name))


def test_an_error_of_a_watched_actor_goes_out_as_it_is_and_is_told_once(job, home):
    """The user's own type, once in the journal, and never repeated."""
    import ray

    actor = remote("Work").remote(5)
    with pytest.raises(KeyError) as caught:
        ray.get(actor.fail.remote(KeyError("mine")))
    assert type(caught.value.cause) is KeyError
    assert ray.get(actor.add.remote()) == 7  # the failing call ran once
    told = incidents(home, lambda one: "mine" in one.cause)
    assert [(one.kind, one.target, one.outcome) for one in told] == [
        ("user_code", "Work.fail", Outcome.ANSWERED)
    ]
    assert told[0].id == incident_of(caught.value).id


def test_a_transient_error_is_not_repeated_where_we_only_watch(job):
    """A guard would call again; a watch answers what the user's code has raised."""
    import ray

    actor = remote("Work").remote()
    with pytest.raises(ray.exceptions.RayTaskError):
        ray.get(actor.flaky.remote())
    assert ray.get(actor.add.remote(0)) == 1


def test_every_kind_of_method_works_before_and_after_the_guard_has_come(job, home):
    """Sync, streaming, async, and streaming from async methods; errors in them are told."""
    import ray

    work, other = remote("Work").remote(1), remote("AsyncWork").remote()
    for n in range(2):
        for actor, items in ((work, [1 + n, 2 + n]), (other, [0, 1, 2])):
            stream = actor.count.options(num_returns="streaming").remote()
            assert [ray.get(item) for item in stream] == items
        with pytest.raises(LookupError):
            ray.get(other.fail.remote())
        with pytest.raises(KeyError):  # this brings the guard
            ray.get(work.fail.remote(KeyError(f"in round {n}")))
    assert [one.target for one in incidents(home, lambda one: "async method" in one.cause)] == [
        "AsyncWork.fail"
    ]


def test_a_task_is_watched(job, home):
    """Its error is its own, and is told."""
    import ray
    import user_work

    task = ray.remote(num_cpus=0.1)(user_work.task)
    assert ray.get(task.remote(3)) == 3
    with pytest.raises(ArithmeticError):
        ray.get(task.remote(-4))
    told = incidents(home, lambda one: "task of -4" in one.cause)
    assert [(one.kind, one.target) for one in told] == [("user_code", "task.task")]


def test_a_constructor_that_fails_is_told(job, home):
    """An actor that never came to be leaves an incident."""
    import ray

    with pytest.raises(ray.exceptions.ActorDiedError, match="no licence"):
        ray.get(remote("FailsToStart").remote().pid.remote())
    told = incidents(home, lambda one: "no licence" in one.cause)
    assert [one.target for one in told] == ["FailsToStart.__init__"]


def test_a_killed_watched_actor_has_one_incident_in_its_next_life(job, home):
    """Ray restarts it as its user said; the next life tells of the death and does nothing else."""
    import ray

    actor = remote("Work", max_restarts=1, max_task_retries=-1).remote(40)
    pid = ray.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    assert ray.get(actor.add.remote()) == 41
    told = incidents(home, lambda one: one.pid == pid)
    assert [(one.kind, one.target, one.outcome) for one in told] == [
        ("actor_died", "Work", Outcome.STATE_LOST)
    ]
    assert any("only watched" in note for note in told[0].notes)
    second = ray.get(actor.pid.remote())
    os.kill(second, signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError):  # no restart that the user did not want
        ray.get(actor.add.remote())


def test_pages_say_who_is_watched_and_who_is_guarded(job, home):
    """They are two words: of the watched one nothing is repaired."""
    import ray

    actors = [remote("Work").remote(), remote("Healing").remote()]
    pids = ray.get([actor.pid.remote() for actor in actors])
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = {page.pid: page.who.watched for page in read_pages(home)}
        if [found.get(pid) for pid in pids] == [True, False]:
            break
        threading.Event().wait(0.2)
    assert [found.get(pid) for pid in pids] == [True, False]


def test_a_named_class_heals(job, home, tmp_path):
    """Restart options were set where it was created, and calls are repeated: transient errors and deaths."""
    import ray

    actor = remote("Healing").remote()
    assert ray.get(actor.flaky.remote()) == 3
    assert ray.get(actor.poison.remote(str(tmp_path / "once"))) == "answered"
    told = incidents(home, lambda one: one.target == "Healing" and one.kind == "actor_died")
    assert [one.outcome for one in told] == [Outcome.RECOVERED]


def test_a_named_class_without_a_word_dies_as_bare_and_is_not_repeated(job, home):
    """Nobody can give it back what it held; what is told is the same as of a watched one."""
    import ray

    actor = remote("Unsaid").remote()
    with pytest.raises(ray.exceptions.RayTaskError):
        ray.get(actor.flaky.remote())
    assert ray.get(actor.add.remote(0)) == 1
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError):
        for _ in range(100):
            ray.get(actor.add.remote())
            threading.Event().wait(0.05)


def test_a_named_class_that_can_say_its_state_goes_on_from_it(job, home):
    """After any death; nothing more had to be said."""
    import ray

    actor = remote("Saved").remote(40)
    assert ray.get(actor.add.remote()) == 41
    pid = ray.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    assert ray.get(actor.add.remote()) == 42
    told = incidents(home, lambda one: one.pid == pid)
    assert [(one.target, one.outcome) for one in told] == [("Saved", Outcome.RECOVERED)]


def test_an_init_that_is_a_coroutine_is_awaited(job):
    """The plugin changes nothing of it, watched or named."""
    import ray

    actor = remote("StartsAsync").remote(5)
    assert ray.get(actor.add.remote()) == 6


def test_a_driver_that_a_worker_starts_is_under_the_plugin_too(job, tmp_path):
    """As that of ``ray job submit``: named actors that it creates are restarted."""
    import ray

    @ray.remote(num_cpus=0.1)
    def start(address, script, path):
        done = subprocess.run(
            [sys.executable, script, address, path], capture_output=True, text=True, timeout=100, check=False
        )
        return done.stdout, done.stderr

    address = ray.get_runtime_context().gcs_address
    out, err = ray.get(start.remote(address, str(job / "nested.py"), str(tmp_path / "once")))
    assert out.strip().endswith("answered"), err


def test_hooks_and_variables_of_the_user_are_kept(job):
    """A callable of the job, a module's function of an actor, and plain variables."""
    import ray

    seen = ray.get(remote("Work").remote().environment.remote())
    assert (seen["USERS_OWN"], seen["CALLABLE_HOOK_RAN"]) == ("kept", "yes")
    assert PLUGIN in seen
    own = {"env_vars": {HOOK: "user_work.string_hook"}}
    seen = ray.get(remote("Work").options(runtime_env=own).remote().environment.remote())
    assert seen["STRING_HOOK_RAN"] == "yes"
    assert seen[HOOK] == "user_work.string_hook"
    assert PLUGIN in seen


def test_an_actor_has_its_own_configuration_instead_of_its_jobs(job):
    """Ray replaces the whole key; what the actor leaves open has its default."""
    import ray

    own = {"rayguard": {"flight_recorder": False, "agent": False, "supervisor": False}}
    seen = ray.get(remote("Work").options(runtime_env=own).remote().environment.remote())
    config = json.loads(seen[PLUGIN])
    assert config["flight_recorder"] is False
    assert config["guard"] == {}


def test_workers_can_begin_with_their_imports_done_and_are_watched_as_others(job):
    """Forked on the node; by the key alone, no line of the user's."""
    import ray

    own = {"rayguard": {"preload": ["colorsys"], "agent": False, "supervisor": False}}
    actor = remote("Work").options(runtime_env=own).remote()
    assert ray.get(actor.__ray_call__.remote(lambda _: "rayguard.preloading.order" in sys.modules))
    assert ray.get(actor.__ray_call__.remote(lambda _: "colorsys" in sys.modules))
    seen = ray.get(actor.environment.remote())
    assert json.loads(seen[PLUGIN])["preload"] == ["colorsys"]


@pytest.mark.parametrize("off", [{"rayguard": False}, {"rayguard": None, "env_vars": {"OTHER": "1"}}])
def test_switched_off_it_leaves_nothing_behind(job, off):
    """No variable of ours but the user's own, and no thread."""
    import ray

    seen = ray.get(remote("Work").options(runtime_env=off).remote().environment.remote())
    assert [name for name in seen if name.startswith("RAYGUARD_")] == ["RAYGUARD_HOME"]
    assert DRIVER_HOOK not in seen or seen[DRIVER_HOOK] == os.environ[DRIVER_HOOK]
    assert seen.get("CALLABLE_HOOK_RAN") == "yes"


def test_what_is_asked_for_wrongly_is_refused(job):
    """Where the driver has our hook, at once; elsewhere by Ray, before the worker starts."""
    import ray
    import user_work

    wrong = {"rayguard": {"gaurd": []}}
    with pytest.raises(ConfigError, match="did you mean 'guard'"):
        remote("Work").options(runtime_env=wrong).remote()
    task = ray.remote(num_cpus=0.1, runtime_env=wrong)(user_work.task)
    with pytest.raises(ray.exceptions.RuntimeEnvSetupError, match="did you mean 'guard'"):
        ray.get(task.remote(1))


def test_named_classes_that_cannot_be_are_told_once_and_the_job_runs_on(job, home):
    """A function, and a module that is not there."""
    import ray

    assert ray.get([remote("Work").remote().add.remote() for _ in range(2)]) == [1, 1]
    mine = ray.get_runtime_context().get_job_id()
    told = incidents(home, lambda one: one.kind == "config_invalid" and one.job_id == mine, at_least=2)
    assert sorted(one.cause.split(" is not guarded: ")[0] for one in told) == [
        "no_such_module:Thing",
        "user_work:task",
    ]


@pytest.mark.parametrize(
    "module",
    [
        "rayguard.cluster.plugin.worker_hook",
        "rayguard.cluster.plugin.lazy_watch",
        "rayguard.cluster.plugin.named_restart_options",
        "rayguard.cluster.plugin.activation",
        "rayguard.actors.memory.memory_guard",
    ],
)
def test_a_worker_starts_whatever_fails_in_the_plugin(job, module):
    """Each module that a worker loads is made to fail; the actor answers as if nothing were there."""
    import ray

    path = os.pathsep.join([str(job / "sabotage"), str(job)])
    broken = {"env_vars": {"PYTHONPATH": path, "SABOTAGED": module}}
    actor = remote("Work").options(runtime_env=broken).remote(1)
    assert ray.get(actor.add.remote()) == 2
    with pytest.raises(KeyError):
        ray.get(actor.fail.remote(KeyError("mine")))
    seen = ray.get(actor.environment.remote())
    assert seen["SABOTAGED"] == module
