"""No snapshot is left, on a real Ray: not of actors that others made, that have a name, that died or were detached."""

from __future__ import annotations

import json
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

pytestmark = pytest.mark.ray

WAIT_S = 150  # for a busy machine: a deadline, no measure

SAVED = """
class Saved:
    n = 0

    def __init__(self):
        self.more = ""

    def step(self):
        self.n += 1
        self.more = "a state that grows" * 1000
        return self.n

    def pid(self):
        import os
        return os.getpid()

    def snapshot(self):
        return self.n, self.more

    def restore(self, state):
        self.n, self.more = state
"""
DRIVER = (
    """
import os, signal, sys
import ray, rayguard

ray.init(address=sys.argv[1], namespace="left", log_to_driver=False, logging_level="ERROR")
"""
    + SAVED
    + """
Saved = ray.remote(num_cpus=0)(rayguard.guard(Saved))


@ray.remote(num_cpus=0)
class Outer:
    def of_inner(self, name):
        return ray.get(getattr(self.inner, name).remote())

    def make(self, depth):
        self.inner = Saved.remote() if depth == 0 else Outer.remote()
        return ray.get(self.inner.step.remote() if depth == 0 else self.inner.make.remote(depth - 1))


made = [Saved.remote(), Saved.options(name="named").remote()]
if len(sys.argv) > 3:
    made.append(Saved.options(name="detached", lifetime="detached").remote())
    parent = Outer.options(name="parent", lifetime="detached").remote()
    ray.get(parent.make.remote(0))
outer = [Outer.remote(), Outer.remote()]
gone = Saved.remote()
ray.get([one.step.remote() for one in [*made, gone]] + [one.make.remote(n) for n, one in enumerate(outer)])
ray.kill(gone)
job, folder = ray.get_runtime_context().get_job_id(), os.environ["RAYGUARD_HOME"] + "/snapshots"
print("kept", sum(job in name for name in os.listdir(folder)), flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "raises":
    Saved.remote().step.remote()  # not waited for: its file may come while the job ends
    raise RuntimeError("of the user")
if sys.argv[2] == "shutdown":
    ray.shutdown()
    print("left", sum(job in name for name in os.listdir(folder)), flush=True)
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")  # and another job
"""
)
NAMED = """
import os, sys
import ray
from named_work import Saved

config = {"guard": ["named_work:Saved"], "home": sys.argv[1], "agent": False, "supervisor": False}
ray.init(
    address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
    runtime_env={"rayguard": config},
)
actor = ray.remote(num_cpus=0)(Saved).remote()
assert ray.get(actor.step.remote(), timeout=150) == 1
print("kept", len(os.listdir(sys.argv[1] + "/snapshots")), flush=True)
assert "rayguard.actors.guard.guard" not in sys.modules
"""


def until(condition, limit_s=30.0):
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.05)
    return found


def files():
    return sorted((Path(os.environ["RAYGUARD_HOME"]) / "snapshots").glob("*"))


def run(how, *more):
    """Run a driver in the module's cluster; return what it printed."""
    address = ray.get_runtime_context().gcs_address
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER, address, how, *more],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert "kept" in ran.stdout, ran.stderr
    return ran.stdout


def begin():
    """Begin to keep a snapshot of an actor of this driver's own; return the actor."""
    names = {}
    exec(SAVED, names)
    actor = ray.remote(num_cpus=0)(rayguard.guard(names["Saved"])).remote()
    assert ray.get(actor.step.remote(), timeout=WAIT_S) == 1
    return actor


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("how", ["exits", "raises", "shutdown"])
def test_a_job_leaves_none(how):
    """Made by its driver or by its actors, named, killed in the middle; and its driver may live on."""
    before = files()
    out = run(how)
    assert "kept 5" in out, out
    assert how != "shutdown" or "left 0" in out, out
    if how == "raises":  # its last actor may have come to keep one as the job ended: the next one sees it
        actor = begin()
        until(lambda: len(files()) == 1)
        ray.kill(actor)
    else:
        assert set(files()) <= set(before)


@pytest.mark.usefixtures("cluster")
def test_a_detached_actor_keeps_its_own_after_its_driver_and_loses_it_with_its_death():
    """And so does what such an actor has made. They go on from it; once dead for good, who comes next removes it."""
    out = run("exits", "detached")
    assert "kept 7" in out, out
    paths = [one for one in files() if one.suffix == ".detached"]
    assert len(paths) == 2
    actor, parent = (ray.get_actor(name, namespace="left") for name in ("detached", "parent"))
    other = begin()
    threading.Event().wait(1.0)
    assert all(path.exists() for path in paths), "of living actors"
    for call in (lambda name: getattr(actor, name).remote(), parent.of_inner.remote):
        pid = ray.get(call("pid"), timeout=WAIT_S)
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
        threading.Event().wait(0.5)
        assert ray.get(call("step"), timeout=WAIT_S) == 2
    for one in (actor, parent, other):
        ray.kill(one)
        until(lambda one=one: _state(one) == "DEAD")
    threading.Event().wait(1.0)  # the parent's own ends with it
    last = begin()
    until(lambda: len(files()) == 1)
    ray.kill(last)


@pytest.mark.usefixtures("cluster")
def test_those_of_a_killed_driver_go_when_another_actor_begins():
    """Nothing runs at its end; Ray knows the job as over a moment later."""
    assert "kept 5" in run("killed")
    until(lambda: len(_running()) == 1)
    actor = begin()
    until(lambda: len(files()) == 1)
    assert ray.get(actor.step.remote(), timeout=WAIT_S) == 2
    ray.kill(actor)


def _state(actor):
    from rayguard.ray_internals.gcs_tables import actor_row

    return actor_row(actor._actor_id.hex()).state


def _running():
    from rayguard.ray_internals.gcs_tables import jobs

    return [job for job in jobs() if job.running]


def test_a_driver_that_never_imports_the_guard_leaves_none_either(tmp_path):
    """The plugin names the class and gives the workers a home of their own."""
    (tmp_path / "named_work.py").write_text(SAVED)
    home = tmp_path / "workers_home"
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAYGUARD_HOME": str(tmp_path / "home"),
        "RAY_RUNTIME_ENV_PLUGINS": json.dumps([{"class": "rayguard.cluster.plugin.RayguardPlugin"}]),
        "RAY_RUNTIME_ENV_HOOK": "rayguard.cluster.driver.prepare",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    ran = subprocess.run(
        [sys.executable, "-c", NAMED, str(home)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert "kept 1" in ran.stdout, ran.stderr
    assert ran.returncode == 0, ran.stderr
    assert list((home / "snapshots").iterdir()) == []
