"""A real node and a real job on a Ray that has moved names: all that the user wrote runs on."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rayguard.ray_internals
from rayguard.ray_internals import runtime_env_plugin, worker_startup
from rayguard.ray_internals.capability import capabilities

pytestmark = pytest.mark.ray

# Each process of the node hides the names of MOVED_NAMES from rayguard, and from nobody else.
HIDING = """
import os

from rayguard.ray_internals import capability

find = capability.named


def named(place):
    if place in os.environ["MOVED_NAMES"].split(","):
        raise AttributeError(place)
    return find(place)


capability.named = named
"""
WORK = """
import os


def hook():
    os.environ["USERS_HOOK_RAN"] = "yes"


class Work:
    def __init__(self):
        self.n = 1

    def add(self, x):
        self.n += x
        return self.n

    def fail(self):
        raise KeyError("mine")

    def environment(self):
        return dict(os.environ)
"""
JOB = """
import json, ray, rayguard, user_work

plugin = {"agent": False, "supervisor": False}
ray.init(
    address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
    runtime_env={"rayguard": plugin, "worker_process_setup_hook": "user_work.hook"},
)
bare, task = ray.remote(user_work.Work), ray.remote(lambda x: x + 1)
guarded = ray.remote(rayguard.guard(type("Guarded", (user_work.Work,), {"__module__": "user_work"})))
found = {"task": ray.get(task.remote(1)), "put": ray.get(ray.put("kept")), "add": [], "errors": []}
for kind in (bare, guarded):
    actor = kind.remote()
    found["add"].append(ray.get(actor.add.remote(1)))
    try:
        ray.get(actor.fail.remote())
    except KeyError as error:
        found["errors"].append(type(error.cause).__name__)
    environment = ray.get(actor.environment.remote())
with rayguard.object_scope():
    found["scope"] = ray.get(ray.put([1, 2]))
found["hook"] = environment.get("USERS_HOOK_RAN")
found["plugin"] = "RAYGUARD_PLUGIN" in environment
found["session"] = ray._private.worker._global_node.get_session_dir_path()
ray.shutdown()
print(json.dumps(found))
"""
for _one in pkgutil.iter_modules(rayguard.ray_internals.__path__, "rayguard.ray_internals."):
    importlib.import_module(_one.name)
EVERYTHING = sorted({place for one in capabilities() for place in one.needs.values()})
BASE = runtime_env_plugin._plugin.needs.values()
HOOK = worker_startup.users_hook.needs.values()


@pytest.mark.parametrize(
    ("moved", "plugin"), [(BASE, False), (HOOK, True), (EVERYTHING, False)], ids=["plugin", "hook", "all"]
)
def test_a_node_and_a_job_run_where_names_have_moved(tmp_path, moved, plugin):
    """The node starts, the user's hook runs, values and errors are the user's own; the loss is in the log."""
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    (tmp_path / "user_work.py").write_text(WORK)
    environment = {
        **os.environ,
        "MOVED_NAMES": ",".join(moved),
        "PYTHONPATH": str(tmp_path),
        "RAYGUARD_HOME": str(tmp_path / "home"),
        "RAY_AUTH_MODE": "disabled",
        "RAY_RUNTIME_ENV_PLUGINS": '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]',
    }
    ran = subprocess.run(
        [sys.executable, "-c", JOB], capture_output=True, text=True, timeout=200, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    logs = "".join(path.read_text() for path in Path(found.pop("session"), "logs").glob("runtime_env_agent*"))
    assert found == {
        "task": 2,
        "put": "kept",
        "add": [2, 2],
        "errors": ["KeyError", "KeyError"],
        "scope": [1, 2],
        "hook": "yes",
        "plugin": plugin,
    }
    assert logs.count("rayguard's plugin: off, Ray") == (not plugin)
