"""Workers that are forked from one process that has their imports, or start as they would without."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import rayguard
from rayguard.preloading import order, start
from rayguard.preloading.server import ForkServer
from tests.preloading.conftest import running_in

WAIT_S = 200  # for a busy machine: a deadline, no measure
RAYLET = """
import os, pathlib, subprocess, sys, threading
for number in "12":
    variables = {"RAY_RAYLET_PID": str(os.getpid()), "RAY_JOB_ID": f"0{number}000000", "RANK": number}
    command = f"exec {sys.argv[1]} {sys.argv[2]} {number}"
    subprocess.run(["bash", "-c", command], env=os.environ | variables, check=True, process_group=0)
    while not pathlib.Path(number).exists():
        threading.Event().wait(0.01)
"""
WORKER = """
import json, os, random, sys, threading
found = {
    "arguments": sys.argv[1:],
    "parent": os.getppid(),
    "leads": os.getpgid(0) == os.getpid(),
    "session": os.getsid(0),
    "variables": [os.environ["MINE"], os.environ["RAY_JOB_ID"], os.environ["RANK"],
                  os.environ.get("OMP_NUM_THREADS"),
                  os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")],
    "here": [__name__, __file__, sys.path.count(os.path.dirname(__file__))],
    "thread": threading.main_thread().native_id == os.getpid(),
    "threads": len(os.listdir("/proc/self/task")),
    "sockets": sum("socket" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                   if os.path.lexists(f"/proc/self/fd/{fd}")),
    "forked": "rayguard.preloading.order" in sys.modules,
    "has": "colorsys" in sys.modules,
    "own": [os.getpid(), random.random()],
}
with open("writing", "w") as file:
    json.dump(found, file)
os.rename("writing", sys.argv[1])
"""
THREADED = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


@pytest.mark.parametrize(
    ("module", "forks"),
    [
        ("colorsys", (True, True)),
        ("no_such_module", (False, False)),
        ("threaded", (False, False)),
        ("of_its_rank", (True, False)),  # what its import made of a variable does not hold for the second
    ],
)
def test_workers_are_forked_from_one_process_that_has_what_they_need(tmp_path, module, forks):
    """Children of the raylet, each with its own arguments; where that cannot be, they start one by one."""
    worker = tmp_path / "workers" / "worker.py"
    worker.parent.mkdir()
    worker.write_text(WORKER)
    (tmp_path / "threaded.py").write_text(THREADED)
    (tmp_path / "of_its_rank.py").write_text("import colorsys, os\nIT = os.environ.get('RANK')\n")
    set_meanwhile = {"OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK"}  # vLLM sets the second in a process
    environment = {name: value for name, value in os.environ.items() if name not in set_meanwhile}
    environment |= {"MINE": "here", "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
    command = [sys.executable, "-c", RAYLET, str(rayguard.preloaded(module)["py_executable"]), str(worker)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as raylet:
        try:
            assert raylet.wait(WAIT_S) == 0
        finally:
            raylet.kill()
    until = time.monotonic() + WAIT_S
    while running_in(tmp_path):
        assert time.monotonic() < until, "what forks ends with its raylet"
        threading.Event().wait(0.02)
    found = [json.loads((tmp_path / number).read_text()) for number in "12"]
    (first, drawn), (second, drawn_next) = (one.pop("own") for one in found)
    assert first != second
    assert drawn != drawn_next
    for number, forked, one in zip("12", forks, found, strict=True):
        assert one == {
            "arguments": [number],
            "parent": raylet.pid,
            "leads": True,
            "session": os.getsid(0),  # with autogroups, whoever has one of his own is scheduled apart
            "variables": ["here", f"0{number}000000", number, None, None],
            "here": ["__main__", str(worker), 1],
            "thread": True,
            "threads": 1,
            "sockets": 0,
            "forked": forked,
            "has": forked,
        }


def test_who_forks_and_does_not_answer_is_not_waited_for(door):
    """It may be stopped; the worker starts by itself."""
    assert not start.forked(["colorsys"], ["worker.py"], wait_s=0.2)
    with door.accept()[0] as asked:
        asked.settimeout(WAIT_S)
        assert asked.recv(1) == b"", "it was asked, and then left"


def test_nothing_is_forked_for_who_gave_up(door, monkeypatch):
    """A second start of the same worker would be two."""
    monkeypatch.setattr("rayguard.preloading.server.sibling", lambda: pytest.fail("forked"))
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(door.getsockname())
    with contextlib.suppress(OSError):
        assert ForkServer(door, unfit=False).asked() is None


def test_a_process_of_another_user_is_not_asked_and_gets_nothing(door, monkeypatch):
    """It would see all variables, and say what runs."""
    monkeypatch.setattr(order, "same_user", lambda _: False)
    assert not start.forked(["colorsys"], ["worker.py"], wait_s=5.0)
    with door.accept()[0] as asked:
        asked.settimeout(WAIT_S)
        assert asked.recv(1) == b"", "nothing was sent"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(door.getsockname())
        assert ForkServer(door, unfit=False).asked() is None
        assert stranger.recv(1) == b""


def test_who_has_no_worker_left_ends(door, monkeypatch):
    """It holds half a gigabyte."""
    monkeypatch.setattr("rayguard.preloading.server._IDLE_S", 0.3)
    monkeypatch.setattr("rayguard.preloading.server._LOOK_S", 0.05)
    server = ForkServer(door, unfit=False)
    with subprocess.Popen(["sleep", "1"]) as worker:
        server._workers.append(os.pidfd_open(worker.pid))
        began = time.monotonic()
        assert server.serve() is None
        assert time.monotonic() - began > 1.0, "as long as one lives"


@pytest.mark.parametrize(
    ("modules", "runtime_env", "said"),
    [
        ((), None, "needs the names of modules"),
        (("vllm; reboot",), None, "names of modules"),
        (("vllm",), {"pip": ["torch"]}, "does not go with 'pip'"),
        (("vllm",), {"py_executable": "python"}, "does not go with 'py_executable'"),
    ],
)
def test_what_cannot_work_is_refused(modules, runtime_env, said):
    with pytest.raises(rayguard.ConfigError, match=said):
        rayguard.preloaded(*modules, runtime_env=runtime_env)


def test_the_rest_of_a_runtime_environment_is_kept():
    asked = {"env_vars": {"A": "b"}}
    assert rayguard.preloaded("torch", runtime_env=asked)["env_vars"] == {"A": "b"}
    assert "py_executable" not in asked
