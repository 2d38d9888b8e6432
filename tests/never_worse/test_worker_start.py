"""How tests start Ray's workers: as Ray does, without importing Ray first."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import worker_start

WAIT_S = 200  # for a busy machine: a deadline, no measure
WORKER = "import os, sys; print(os.environ['MINE'], sys.argv[1:], 'ray' in sys.modules)"


def test_a_worker_gets_its_variables_and_its_arguments(tmp_path):
    """Those that are meant for the start are gone."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    context = f"--serialized-runtime-env-context={json.dumps({'env_vars': {'MINE': 'here'}})}"
    command = [sys.executable, worker_start.__file__, str(worker), "--port=1", context, "--language=PYTHON"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split(maxsplit=1) == ["here", "['--port=1'] False\n"]


def test_what_it_does_not_know_is_left_to_rays_own(tmp_path):
    """All arguments go there as they came."""
    Path(tmp_path, "setup_worker.py").write_text("import sys; print(sys.argv[1:])")
    given = [str(tmp_path / "worker.py"), '--serialized-runtime-env-context={"command_prefix": ["nice"]}']
    command = [sys.executable, worker_start.__file__, *given]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == f"{given}\n"


RAYLET = """
import os, pathlib, subprocess, sys, threading
for number in "12":
    variables = {"RAY_RAYLET_PID": str(os.getpid()), "RAY_JOB_ID": f"0{number}000000"}
    subprocess.run([*sys.argv[1:], number], env=os.environ | variables, check=True, process_group=0)
    while not pathlib.Path(number).exists():
        threading.Event().wait(0.01)
"""
FORKED = """
import json, os, random, sys, threading
found = {
    "arguments": sys.argv[1:],
    "parent": os.getppid(),
    "leads": os.getpgid(0) == os.getpid(),
    "variables": [os.environ["MINE"], os.environ["RAY_JOB_ID"]],
    "here": [__name__, __file__, sys.path.count(os.path.dirname(__file__))],
    "thread": threading.main_thread().native_id == os.getpid(),
    "threads": len(os.listdir("/proc/self/task")),
    "forked": "worker_start" in sys.modules,
    "has": "colorsys" in sys.modules,
    "own": [os.getpid(), random.random()],
}
with open("writing", "w") as file:
    json.dump(found, file)
os.rename("writing", sys.argv[1])
"""


def running_in(folder):
    """Return the processes whose working directory that is."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            found += [one.name] if (one / "cwd").readlink() == folder else []
    return found


@pytest.mark.parametrize("module", ["colorsys", "no_such_module"])
def test_workers_are_forked_from_one_process_that_has_what_they_need(tmp_path, module):
    """Children of the raylet, each with its own arguments; where that cannot be, they start one by one."""
    worker = tmp_path / "worker.py"
    worker.write_text(FORKED)
    context = f"--serialized-runtime-env-context={json.dumps({'env_vars': {'MINE': 'here'}})}"
    command = [sys.executable, worker_start.__file__, str(worker), context, "--language=PYTHON"]
    environment = {**os.environ, worker_start.FORKED: module}
    with subprocess.Popen([sys.executable, "-c", RAYLET, *command], cwd=tmp_path, env=environment) as raylet:
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
    forked = module == "colorsys"
    for number, one in zip("12", found, strict=True):
        assert one == {
            "arguments": [number],
            "parent": raylet.pid,
            "leads": True,
            "variables": ["here", f"0{number}000000"],
            "here": ["__main__", str(worker), 1],
            "thread": True,
            "threads": 1,
            "forked": forked,
            "has": forked,
        }
