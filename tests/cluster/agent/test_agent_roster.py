"""Who the workers of a raylet are, by what the kernel says: this test process is the raylet here."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
from node_pair import until

from rayguard.cluster.agent import state_files
from rayguard.cluster.agent.node_reading import processes
from rayguard.cluster.agent.worker_table import WorkerTable, class_in, marks
from rayguard.metrics.instruments.node import Processes
from rayguard.process.deaths import DeathWatch
from rayguard.process.identity import ProcessId

WORKER = """
import os, sys, setproctitle
os.setpgrp()
setproctitle.setproctitle(sys.argv[1])
if sys.argv[2] == "fork" and os.fork() == 0:
    sys.stdin.close()
    import threading
    threading.Event().wait(60)
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
os._exit(int(sys.argv[3]))
"""


@pytest.fixture
def start():
    pytest.importorskip("setproctitle")
    started = []

    def begin(title, how="", code=0, job="05000000"):
        arguments = [sys.executable, "-c", WORKER, title, how, str(code)]
        one = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RAY_JOB_ID": job, "SPT_NOENV": "1"},
        )
        started.append(one)
        assert one.stdout.readline() == "ready\n"
        return one

    yield begin
    for one in started:
        one.kill()
        one.wait()
        for pipe in (one.stdin, one.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.mark.parametrize(
    ("title", "known_as"),
    [
        ("Rollout", "Rollout"),
        ("Rollout.generate", "Rollout"),
        ("rollout-0:Rollout.generate", "Rollout"),
        ("team:a (first):Rollout", "Rollout"),
        ("score", "score"),
        ("Rollout(path='a:b')", "Rollout"),
        ("module.score()", "module"),
        ("IDLE", "IDLE"),
        ("%", "%"),
    ],
)
def test_actors_names_are_no_classes(title, known_as):
    """A thousand named actors of one class are one class."""
    assert class_in(title) == known_as


def test_workers_are_known_by_their_title_and_their_page(start, tmp_path):
    """Rayguard runs in the one that has a page; which other children a raylet has is nobody's business."""
    plain, guarded = start("ray::Trainer.update"), start("ray::Rollout")
    start("ray::DashboardAgent")
    start("python")
    idle = start("ray::IDLE")
    process = ProcessId.of(guarded.pid)
    (tmp_path / "status").mkdir()
    page = {"who": {"actor_class": "Rollout2", "job_id": "07000000", "actor_id": "ab"}}
    (tmp_path / "status" / f"{process.pid}-{process.started}.json").write_text(json.dumps(page))
    roster = WorkerTable(os.getpid(), tmp_path)
    found = {one.process.pid: one for one in roster.look().values()}
    assert set(found) == {plain.pid, guarded.pid, idle.pid}
    assert (found[plain.pid].target, found[plain.pid].job_id, found[plain.pid].marked) == (
        "Trainer",
        "05000000",
        False,
    )
    seen = found[guarded.pid]
    assert (seen.target, seen.job_id, seen.actor_id, seen.marked) == ("Rollout2", "07000000", "ab", True)
    assert found[idle.pid].idle
    assert all(one.leads for one in found.values())
    assert marks(tmp_path) == {process}
    os.kill(plain.pid, signal.SIGSTOP)
    until(lambda: roster.look()[ProcessId.of(plain.pid)].state == "T")
    shown = processes(roster.look().values(), roster.private_bytes)
    assert shown["Trainer", "05000000"] == Processes(
        count=1, largest_bytes=roster.private_bytes(ProcessId.of(plain.pid)), stopped=1
    )
    assert ("IDLE", "05000000") not in shown
    os.kill(plain.pid, signal.SIGCONT)


def test_a_worker_that_was_started_before_a_job_wanted_it_belongs_to_none(start, tmp_path):
    """Ray calls that "ffffffff", which is no job that anybody knows."""
    start("ray::score", job="ffffffff")
    assert [one.job_id for one in WorkerTable(os.getpid(), tmp_path).look().values()] == [""]


def test_what_a_dead_worker_forked_is_found_and_what_others_did_is_not(start, tmp_path):
    """Only a fork has the memory's layout of its parent; a program that was executed has not."""
    worker, other = start("ray::A", "fork"), start("ray::B", "fork")
    roster = WorkerTable(os.getpid(), tmp_path)
    found = roster.look()
    process = ProcessId.of(worker.pid)
    layout = found[process].layout
    assert roster.forks_of(process, layout) == []  # it lives
    worker.kill()
    worker.wait()
    (fork,) = roster.forks_of(process, layout)
    assert os.getpgid(fork.pid) == worker.pid
    assert roster.forks_of(process, found[ProcessId.of(other.pid)].layout) == []
    assert roster.forks_of(process, (0, 0, 0)) == []  # where the kernel does not tell
    os.kill(fork.pid, signal.SIGKILL)
    other.kill()
    other.wait()
    for one in roster.forks_of(
        ProcessId(other.pid, 0), found[next(p for p in found if p.pid == other.pid)].layout
    ):
        os.kill(one.pid, signal.SIGKILL)


def test_the_kernel_tells_how_a_process_ended_that_is_no_child_of_who_asks(tmp_path):
    """From its pidfd, after its parent has asked already."""
    code = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'import os; input(); os._exit(3)'], stdin=subprocess.PIPE);"
        "print(child.pid, flush=True); sys.stdin.readline(); child.communicate(b'x'); print('asked', flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        process, told = ProcessId.of(int(parent.stdout.readline())), []
        watch = DeathWatch()
        watch.watch(process, told.append)
        parent.stdin.write("go\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "asked\n"
        until(lambda: told)
        watch.close()
        release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        assert process.exitcode() == 3 or (process.exitcode() is None and release < (6, 15))


def test_a_marker_is_of_this_boot_this_process_and_this_version(tmp_path):
    """All else means that there may be no agent."""
    assert not state_files.agent_lives(tmp_path, "n", state_files.version())
    state_files.write(tmp_path, "n", url="http://127.0.0.1:1/metrics")
    assert state_files.agent_lives(tmp_path, "n", state_files.version())
    assert not state_files.agent_lives(tmp_path, "m", state_files.version())
    assert (tmp_path / "agents" / "n.json").stat().st_mode & 0o777 == 0o600
    for wrong in ({"started": 1}, {"pid": 2**22 + 1}, {"world": "another boot"}, {"version": "0"}):
        state_files.save(tmp_path, "n.json", {**state_files.read(tmp_path, "n"), **wrong})
        assert not state_files.agent_lives(tmp_path, "n", state_files.version())
        state_files.write(tmp_path, "n")
    (tmp_path / "agents" / "n.json").write_text('{"torn')
    assert state_files.read(tmp_path, "n") == {}
    state_files.forget(tmp_path, "n")
    assert not (tmp_path / "agents").exists()
