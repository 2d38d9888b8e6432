"""What the plugin tells of a real job: paths that matched no actor, and an ``__init__`` that does not come back."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rayguard.cluster.plugin import named_restart_options, unmatched_paths
from rayguard.cluster.plugin.worker_hook import DRIVER_HOOK, PREPARE
from rayguard.ray_internals.worker import logs_folder
from rayguard.recovery.journal import Journal

pytestmark = pytest.mark.ray

PATIENCE_S = 90.0
USERS = '''
import asyncio
import os
import threading


class Trainer:
    def __init__(self, gate=""):
        self.load(gate)

    def load(self, gate):
        while gate and not os.path.exists(gate):
            threading.Event().wait(0.1)

    def step(self):
        return 1


class AsyncTrainer(Trainer):
    async def __init__(self, gate):
        await self.load(gate)

    async def load(self, gate):
        while not os.path.exists(gate):
            await asyncio.sleep(0.1)


class Wrapped:
    """No actor is of this class: a framework makes others around it."""


class Decorated(Trainer):
    """Guarded in its user's words."""


import rayguard

rayguard.guard(Decorated)
'''
DRIVER = """
import sys, threading
import ray, told_user

config = {"guard": ["told_user:Wrapped", "told_user:Trainer", "told_user:AsyncTrainer"],
          "agent": False, "supervisor": "supervised" in sys.argv}
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False, runtime_env={"rayguard": config})
job = ray.get_runtime_context().get_job_id()
print(job, flush=True)
if "idle" not in sys.argv:
    actor = ray.remote(num_cpus=0)(told_user.Trainer).remote()
    assert ray.get(actor.step.remote()) == 1
for _ in range(600 if "supervised" in sys.argv else 0):
    try:
        ray.get(ray.get_actor(f"rayguard:supervisor:{job}", namespace="_rayguard").state.remote())
        break
    except ValueError:
        threading.Event().wait(0.1)
if "shutdown" in sys.argv:
    ray.shutdown()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, home):
    """A cluster with the plugin, and this process as a driver of it."""
    import ray

    def soon():  # in here, so that it goes to the workers whole
        from rayguard.actors.guard import slow_init

        slow_init.TOLD_AFTER_S = 1.0

    modules = tmp_path_factory.mktemp("modules")
    (modules / "told_user.py").write_text(USERS)
    (modules / "driver.py").write_text(DRIVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(home))
        patch.setenv("RAY_RUNTIME_ENV_PLUGINS", '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]')
        patch.setenv(DRIVER_HOOK, PREPARE)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")]))
        patch.setattr(sys, "path", [str(modules), *sys.path])
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={
                "rayguard": {"agent": False, "supervisor": False},
                "worker_process_setup_hook": soon,
            },
        )
        try:
            yield modules
        finally:
            ray.shutdown()
            named_restart_options.named.clear()
            unmatched_paths.tell_at_end(())


def run(cluster, *words, **env):
    """Run a driver to its end; return its job and what it said on its error stream, in seconds how long it took."""
    import ray

    address = ray.get_runtime_context().gcs_address
    ended = subprocess.run(
        [sys.executable, str(cluster / "driver.py"), address, *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, **env},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip(), ended.stderr


def told_of(home, job, at_least=1):
    """Return what the journal has of paths that matched nothing in this job."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [
            one.cause for one in Journal(home).read() if one.job_id == job and "guarded nothing" in one.cause
        ]
        if len(found) >= at_least or time.monotonic() > deadline:
            return sorted(found)
        threading.Event().wait(0.2)


NEVER = [
    f"told_user:{name} guarded nothing: no actor of this job was of that class; seen: told_user:Trainer (1 actor)"
    for name in ("AsyncTrainer", "Wrapped")
]


@pytest.mark.parametrize("end", ["shutdown", "exit"])
def test_the_driver_tells_which_paths_matched_nothing(cluster, home, end):
    """On its error stream and in the journal; whether it calls ``ray.shutdown`` or not."""
    job, said = run(cluster, end)
    assert sorted(line.split("; where")[0] for line in said.splitlines() if "guarded nothing" in line) == [
        f"rayguard: {line}" for line in NEVER
    ]
    assert told_of(home, job, len(NEVER)) == NEVER


def test_a_driver_that_made_no_actor_is_told_nothing(cluster, home):
    """It ended before it came so far."""
    job, said = run(cluster, "idle")
    assert "guarded nothing" not in said
    assert told_of(home, job, 0) == []


@pytest.mark.parametrize("hook", [PREPARE, ""])
def test_the_supervisor_tells_where_the_driver_did_not(cluster, home, hook):
    """And once: where the driver has told, it does not."""
    job, said = run(cluster, "supervised", **{DRIVER_HOOK: hook}) if hook else without_hook(cluster)
    assert said.count("guarded nothing") == len(NEVER) * bool(hook)
    assert told_of(home, job, len(NEVER)) == NEVER
    gone = f"rayguard:supervisor:{job}"
    deadline = time.monotonic() + PATIENCE_S
    while supervisor_lives(gone):
        assert time.monotonic() < deadline, written("has run for")
        threading.Event().wait(0.2)
    assert told_of(home, job, len(NEVER)) == NEVER


def without_hook(cluster):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(DRIVER_HOOK)
        return run(cluster, "supervised")


def supervisor_lives(name):
    import ray

    try:
        ray.get_actor(name, namespace="_rayguard")
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", ["Trainer", "AsyncTrainer", "Decorated"])
def test_an_init_that_does_not_come_back_is_told_with_its_line(cluster, tmp_path, name):
    """Once, on the worker's error stream, which Ray brings to the driver; the actor then goes on."""
    import ray
    import told_user

    gate = tmp_path / "gate"
    actor = ray.remote(num_cpus=0)(getattr(told_user, name)).remote(str(gate))
    wanted = f"rayguard: {name}.__init__ has run for 1 s and still runs, at load ("  # its own line, not its caller's
    deadline = time.monotonic() + PATIENCE_S
    while not (lines := written(wanted)):
        assert time.monotonic() < deadline, written("has run for")
        threading.Event().wait(0.2)
    gate.touch()
    assert ray.get(actor.step.remote(), timeout=PATIENCE_S) == 1
    assert len(lines) == len(written(wanted)) == 1
    assert "/told_user.py:" in lines[0]


def written(wanted):
    return [
        line
        for file in Path(logs_folder()).glob("worker-*.err")
        for line in file.read_text(errors="replace").splitlines()
        if wanted in line
    ]
