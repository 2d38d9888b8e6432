"""Workers that start by themselves until one of them has imported what the others need, and are forked then."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rayguard.preloading import ask, later, order, start
from rayguard.preloading.later import Door, Wanted
from rayguard.preloading.runtime_env import preloaded_later
from rayguard.preloading.server import ForkServer
from tests.preloading.conftest import running_in

WAIT_S = 60  # for a busy machine: a deadline, no measure
# Starts workers one after the other as a raylet does, and makes the next one when there is a file of that name.
RAYLET = """
import os, pathlib, subprocess, sys, threading
left = ["1", "2", "3"]
while not pathlib.Path("end").exists():
    if left and pathlib.Path(f"start-{left[0]}").exists():
        number = left.pop(0)
        variables = {"RAY_RAYLET_PID": str(os.getpid()), "RAY_JOB_ID": f"0{number}000000"}
        command = f"exec {sys.argv[1]} {sys.argv[2]} {number}"
        subprocess.Popen(["bash", "-c", command], env=os.environ | variables, process_group=0)
    threading.Event().wait(0.01)
"""
WORKER = """
import json, os, pathlib, sys, threading
number, begun_with = sys.argv[1], "{module}" in sys.modules
os.environ.update({variables})
sys.path[:0] = {paths}
import {module}
from rayguard.preloading.ask import ask
try:
    heard = ask("{module}")
except OSError:
    heard = "nobody is there"
found = {{
    "heard": heard,
    "begun_with": begun_with,
    "parent": os.getppid(),
    "job": os.environ["RAY_JOB_ID"],
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "pid": os.getpid(),
}}
pathlib.Path(number + ".new").write_text(json.dumps(found))
os.rename(number + ".new", number)
while not pathlib.Path("end").exists():
    threading.Event().wait(0.01)
"""


def wait_for(what, why):
    until = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < until, why
        threading.Event().wait(0.02)
    return found


class Node:
    """A raylet of three workers."""

    def __init__(self, folder, module, *, variables, paths):
        self.folder, self.raylet = folder, None
        worker = folder / "workers" / "worker.py"
        worker.parent.mkdir()
        worker.write_text(WORKER.format(module=module, variables=variables, paths=paths))
        path = os.pathsep.join([str(folder), str(Path.cwd())])
        command = [sys.executable, "-c", RAYLET, preloaded_later(module, {})["py_executable"], str(worker)]
        self.raylet = subprocess.Popen(command, cwd=folder, env=os.environ | {"PYTHONPATH": path})

    def begin(self, number):
        """Start a worker; return what it found."""
        (self.folder / f"start-{number}").touch()
        wait_for((self.folder / str(number)).exists, f"worker {number} has not come")
        return json.loads((self.folder / str(number)).read_text())

    def listening(self):
        """Return the processes that listen for workers, or fork them."""
        found = running_in(self.folder)
        return [pid for pid, command in found.items() if "rayguard" in command and pid != self.raylet.pid]

    def settled(self, listening):
        """Wait until who listens has imported, or has given that up."""
        wait_for(lambda: len(self.listening()) == 1, "one process imports, one listens, one goes")
        return self.listening() != listening

    def end(self):
        (self.folder / "end").touch()
        assert self.raylet.wait(WAIT_S) == 0
        wait_for(lambda: not running_in(self.folder), "what forks ends with its raylet")


@pytest.fixture
def node(tmp_path):
    made = []

    def begin(module, *, variables=None, paths=()):
        made.append(Node(tmp_path, module, variables=variables or {}, paths=[str(one) for one in paths]))
        return made[0]

    yield begin
    try:
        made[0].end()
    finally:
        made[0].raylet.kill()


def test_workers_are_forked_once_one_of_them_has_the_module(node):
    """The first starts by itself, and asks; those after it are children of the raylet that have it."""
    here = node("colorsys")
    first = here.begin(1)
    assert (first["heard"], first["begun_with"]) == (True, False)
    wait_for(
        lambda: any("forks Ray" in command for command in running_in(here.folder).values()), "nobody forks"
    )
    wait_for(lambda: len(here.listening()) == 1, "who listened is gone")
    for number in (2, 3):
        found = here.begin(number)
        assert (found["heard"], found["begun_with"], found["nice"]) == (True, True, first["nice"])
        assert found["job"] == f"0{number}000000"
        assert found["parent"] == here.raylet.pid == first["parent"]


@pytest.mark.parametrize(
    "other", [{"READ_AT_IMPORT": "by the actor's module"}, {"PATH_BEFORE": "another copy"}, "threads"]
)
def test_no_worker_is_forked_that_would_have_another_module(node, tmp_path, other):
    """It would read another variable, come from another file, or lack its threads."""
    before = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    text = "import os\nIT = os.environ.get('READ_AT_IMPORT')\n"
    (tmp_path / "changed.py").write_text(before + text if other == "threads" else text)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "changed.py").write_text(text)
    variables = {} if other == "threads" else other
    here = node("changed", variables=variables, paths=[copy] if "PATH_BEFORE" in other else [])
    assert here.begin(1)["heard"]
    listening = here.listening()
    wait_for(lambda: len(here.listening()) == 2 or not here.settled(listening), "nobody imports")
    wait_for(lambda: len(here.listening()) == 1, "who imports has not given up")
    assert here.begin(2)["begun_with"] is False
    assert len(here.listening()) == 1, "it is not tried again"


@pytest.mark.parametrize("killed", ["keeper", "importer"])
def test_the_death_of_who_listens_or_imports_ends_nothing(node, tmp_path, killed):
    """The one that imports goes on alone; without it workers start by themselves."""
    (tmp_path / "slow.py").write_text("import threading\nthreading.Event().wait(3)\n")
    here = node("slow")
    here.begin(1)
    both = wait_for(lambda: len(here.listening()) == 2 and sorted(here.listening()), "nobody imports")
    os.kill(both[0 if killed == "keeper" else 1], signal.SIGKILL)
    assert here.begin(2)["begun_with"] is (killed == "keeper")


def keeper_of(door):
    return Door(door, os.pidfd_open(os.getppid()))


def test_who_listens_answers_at_once_and_knows_who_asked(door):
    """And ends when they have."""
    keeper, answers = keeper_of(door), []
    with subprocess.Popen(["sleep", "1"]) as worker:
        asking = threading.Thread(target=lambda: answers.append(start.forked(["colorsys"], ["worker.py"])))
        asking.start()
        assert keeper._asked() is None
        asking.join(WAIT_S)
        assert answers == [False]
        assert list(keeper.workers) == [os.getpid()]
        keeper.workers = {worker.pid: os.pidfd_open(worker.pid)}
        select.select(list(keeper.workers.values()), [], [], WAIT_S)
        keeper._forget(keeper._ready())
        assert not keeper.workers


def test_what_an_actor_has_imported_comes_as_it_was_said(door, monkeypatch):
    monkeypatch.setenv(order.DOOR, door.getsockname()[1:].decode())
    keeper, answers = keeper_of(door), []
    asking = threading.Thread(target=lambda: answers.append(ask.ask("pytest")))
    asking.start()
    wanted = keeper._asked()
    asking.join(WAIT_S)
    assert answers == [True]
    assert wanted.variables == dict(os.environ)
    assert wanted.files["pytest"] == pytest.__file__
    assert ask.ask("no_such_module_anywhere") is False
    monkeypatch.delenv(order.DOOR)
    assert ask.ask("pytest") is False, "nobody listens"


def test_another_user_hears_nothing(door, monkeypatch):
    """Of what runs here, or of variables."""
    monkeypatch.setenv(order.DOOR, door.getsockname()[1:].decode())
    monkeypatch.setattr(order, "same_user", lambda _: False)
    assert ask.ask("pytest") is False
    with door.accept()[0] as asked:
        asked.settimeout(WAIT_S)
        assert asked.recv(1) == b"", "nothing was sent"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(door.getsockname())
        assert keeper_of(door)._asked() is None
        assert stranger.recv(1) == b""


def test_who_says_nothing_that_can_be_read_is_passed_over(door, monkeypatch):
    monkeypatch.setattr(later, "_IDLE_S", 0.3)
    monkeypatch.setattr(later, "_LOOK_S", 0.05)
    monkeypatch.setattr(later, "_SAYS_S", 0.2)
    monkeypatch.setattr(later, "sibling", lambda: pytest.fail("forked"))
    keeper = keeper_of(door)
    with contextlib.ExitStack() as stack:
        for said in (b"", b"{\n", b"[1]\n", b"5\n", b"no end"):
            asked = stack.enter_context(socket.socket(socket.AF_UNIX))
            asked.connect(door.getsockname())
            asked.sendall(said)
        monkeypatch.setattr(Door, "_forget", lambda *_: None)  # this process asked, and lives
        assert keeper.keep() is None


def test_who_listens_keeps_nothing_for_an_import_that_was_given_up(door, monkeypatch):
    """Actors say it again with each hello of a pool's."""
    monkeypatch.setattr(later, "sibling", lambda: 1 << 30)  # forked, as far as it knows
    keeper, wanted = keeper_of(door), Wanted({}, {})
    for _ in range(3):
        assert keeper._begun(wanted) is None
    assert len(keeper.heard) == 3, "they are compared when it has imported"
    keeper.importing.close()
    keeper.importing = None
    keeper._begun(wanted)
    assert len(keeper.heard) == 3


def test_nothing_is_imported_where_memory_is_short(monkeypatch):
    """Half a gigabyte more might be what a job dies of."""
    monkeypatch.setattr(later, "_NEEDS", 1 << 60)
    assert "MiB of memory are left" in later._short_of_memory()
    monkeypatch.setattr(later, "_NEEDS", 1)
    assert later._short_of_memory() == ""


@pytest.mark.parametrize(("lived_s", "forks"), [(0.1, False), (60.0, True)])
def test_forks_that_end_at_once_are_no_more_made(door, lived_s, forks):
    """Workers start by themselves then, as they would have without."""
    server = ForkServer(door, unfit=False, differs=lambda _: "")
    for _ in range(2):
        with subprocess.Popen(["true"]) as ended:
            pidfd = os.pidfd_open(ended.pid)
        server._began[pidfd] = time.monotonic() - lived_s
        server._judge(pidfd)
        os.close(pidfd)
    assert server._unfit is not forks


@pytest.mark.parametrize("moment", ["while it is imported", "when others are forked"])
def test_another_actor_with_other_imports_is_not_forked_from_those(node, tmp_path, moment):
    """Of another class, say, of which one sets a variable: the node has one process for both."""
    (tmp_path / "changed.py").write_text(
        "import os, threading\nIT = os.environ.get('READ_AT_IMPORT')\nthreading.Event().wait(2)\n"
    )
    here = node("changed", variables="{'READ_AT_IMPORT': 'yes'} if sys.argv[1] == '2' else {}")
    here.begin(1)
    if moment == "when others are forked":
        wait_for(
            lambda: (
                any("forks Ray" in one for one in running_in(here.folder).values())
                and len(here.listening()) == 1
            ),
            "nobody forks",
        )
    second = here.begin(2)
    assert (second["heard"], second["begun_with"]) == (True, moment == "when others are forked")
    if moment == "while it is imported":
        wait_for(lambda: len(here.listening()) == 1, "who listened is gone")
    assert here.begin(3)["begun_with"] is False


def test_a_message_is_read_as_it_was_written():
    wanted = Wanted({"A": "ü\n"}, {"b": "/c"})
    assert Wanted.read(wanted.to_send()) == wanted
    assert wanted.to_send().count(b"\n") == 1
