"""Real actors of Ray whose workers begin with their imports done."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import rayguard
from rayguard.ray_internals import spare_workers

GET_S = 120.0


class Plain:
    def __init__(self):
        self.begun_with = sorted({"torch", "colorsys"} & set(sys.modules))

    def facts(self):
        import torch

        return {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "begun_with": self.begun_with,
            "threads": torch.get_num_threads(),
            "variable": os.environ.get("MINE"),
        }

    def start_spare(self):
        return spare_workers.start(1)


@pytest.fixture(scope="module")
def ray_here():
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("OMP_NUM_THREADS", raising=False)
        paths = [str(Path(__file__).parents[2]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            yield ray
        finally:
            ray.shutdown()


def actor(ray, runtime_env, **options):
    return ray.remote(max_restarts=-1, max_task_retries=-1, runtime_env=runtime_env, **options)(
        Plain
    ).remote()


def facts(ray, one):
    return ray.get(one.facts.remote(), timeout=GET_S)


def test_each_life_begins_with_its_imports_done_and_as_many_threads_as_bare(ray_here):
    """A kill, again and again; what forks them is one process, and lives with them."""
    environment = {"env_vars": {"MINE": "here"}}
    bare = facts(ray_here, actor(ray_here, environment, num_cpus=2))
    ours = actor(ray_here, rayguard.preloaded("torch", "colorsys", runtime_env=environment), num_cpus=2)
    lives = [facts(ray_here, ours)]
    for _ in range(3):
        os.kill(lives[-1]["pid"], signal.SIGKILL)
        threading.Event().wait(0.1)
        lives.append(facts(ray_here, ours))
    assert len({one["pid"] for one in lives}) == 4
    for one in lives:
        assert one["begun_with"] == ["colorsys", "torch"]
        assert (one["parent"], one["variable"]) == (bare["parent"], "here")
        assert one["threads"] == bare["threads"] == 2
    forking = [
        child
        for child in psutil.Process(bare["parent"]).children()
        if "forks Ray's workers" in child.name()
        or any("forks Ray's workers" in word for word in child.cmdline())
    ]
    assert len(forking) == 1
    forking[0].kill()  # its end ends nobody's work
    assert facts(ray_here, ours)["pid"] == lives[-1]["pid"]
    os.kill(lives[-1]["pid"], signal.SIGKILL)
    threading.Event().wait(0.1)
    assert facts(ray_here, ours)["begun_with"] == ["colorsys", "torch"], "another one is started"


def test_a_module_that_is_not_there_is_no_reason_not_to_start(ray_here):
    found = facts(ray_here, actor(ray_here, rayguard.preloaded("no_such_module_anywhere")))
    assert "colorsys" not in found["begun_with"]


def test_an_actor_that_is_ended_is_gone(ray_here):
    """``ray.kill`` finds a forked worker as any other."""
    one = actor(ray_here, rayguard.preloaded("colorsys"))
    process = psutil.Process(facts(ray_here, one)["pid"])
    ray_here.kill(one)
    until = time.monotonic() + GET_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        threading.Event().wait(0.05)


def test_the_next_life_begins_in_a_worker_that_waited(ray_here):
    """It is older than the death of the life before, and has its imports, variables and threads."""
    environment = rayguard.preloaded("colorsys", runtime_env={"env_vars": {"MINE": "waited"}})
    one = actor(ray_here, environment, num_cpus=2)
    first = facts(ray_here, one)
    beside = set(psutil.Process(first["parent"]).children())
    assert ray_here.get(one.start_spare.remote(), timeout=GET_S)
    threading.Event().wait(5.0)  # until it has said to Ray that it is there
    come = set(psutil.Process(first["parent"]).children()) - beside
    os.kill(first["pid"], signal.SIGKILL)
    threading.Event().wait(0.1)
    second = facts(ray_here, one)
    assert second["pid"] in {process.pid for process in come}
    assert (second["variable"], second["threads"], second["begun_with"]) == ("waited", 2, ["colorsys"])
