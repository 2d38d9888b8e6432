"""Which process is which, and whose."""

import os
import subprocess
import sys
import threading
import time

import pytest

from rayguard.process.identity import (
    OWNER_ENV,
    ProcessId,
    claim,
    mark_environment,
    owned_by,
    owner_mark,
    owner_of,
)

MARK = owner_mark(ProcessId.me())


def marked(mark=MARK):
    return {**os.environ, OWNER_ENV: mark}


def test_a_process_is_itself_until_it_dies(processes):
    """The same pid gives the same identity; after death there is none."""
    child = processes.sleeper()
    it = processes.identity(child)
    assert it == ProcessId.of(child.pid)
    assert it.alive()
    child.kill()
    child.wait()
    assert not it.alive()
    assert it.state() == ""
    assert it.cpu_s() == 0.0
    assert ProcessId.of(child.pid) is None


def test_a_zombie_is_not_alive(processes):
    """A dead child that nobody has waited for still has an entry in /proc."""
    child = processes.sleeper()
    it = processes.identity(child)
    child.kill()
    assert processes.until(lambda: it.state() == "Z")
    assert not it.alive()


def test_a_stopped_process_is_alive(processes):
    """SIGSTOP freezes, it does not kill."""
    child = processes.sleeper()
    processes.stop(child)
    assert processes.identity(child).alive()


def test_a_reused_pid_is_another_process(processes):
    """A different start time means that the one we knew is gone."""
    child = processes.sleeper()
    earlier = ProcessId(child.pid, processes.identity(child).started - 1)
    assert not earlier.alive()
    assert earlier.state() == ""
    assert earlier.cpu_s() == 0.0


def test_a_command_name_with_parentheses_is_no_riddle(processes, tmp_path):
    """The second field of /proc/<pid>/stat may hold anything."""
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    it = processes.identity(processes._keep([str(program), "60"]))
    assert processes.until(lambda: it.state() == "S")
    assert abs(it.started - ProcessId.me().started) < 1_000_000


def test_cpu_time_grows_with_work_only(processes):
    """A sleeping process burns nothing, a computing one does."""
    idle = processes.identity(processes.sleeper())
    busy = processes.identity(processes.python("print(1, flush=True)\nwhile True: pass"))
    before_s = busy.cpu_s()
    assert processes.until(lambda: busy.cpu_s() > before_s + 0.1)
    assert idle.cpu_s() < 0.05


def test_the_mark_names_its_owner():
    """owner_of is the inverse of owner_mark."""
    assert owner_of(MARK) == ProcessId.me()


@pytest.mark.parametrize("text", ["", "12", "12-", "-12", "a-b", "1-2-3", "-1-2"])
def test_what_is_no_mark_names_nobody(text):
    """Anything could stand in an environment variable."""
    assert owner_of(text) is None


def test_a_process_with_our_mark_is_ours(processes):
    """The environment that a process was started with proves whose it is."""
    child = processes.sleeper(env=marked())
    assert processes.until(lambda: owned_by(processes.identity(child), MARK))


def test_a_look_alike_without_the_mark_is_not_ours(processes):
    """Same program, same user, same parent: not enough."""
    assert not owned_by(processes.identity(processes.sleeper()), MARK)


@pytest.mark.parametrize("mark", [MARK + "1", "x" + MARK, MARK[:-1]], ids=["longer", "before", "shorter"])
def test_a_similar_mark_is_not_ours(processes, mark):
    """12-34 is neither 12-345 nor 2-34."""
    assert not owned_by(processes.identity(processes.sleeper(env=marked(mark))), MARK)


def test_an_empty_mark_owns_nothing(processes):
    """An unset mark must not match a process with an empty variable."""
    assert not owned_by(processes.identity(processes.sleeper(env=marked(""))), "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_another_users_process_is_not_ours_whatever_it_carries(processes):
    """The mark is public: another user can copy it into an environment."""
    child = processes.sleeper(env=marked(), user=65534)
    it = processes.identity(child)
    assert processes.until(lambda: processes.user(child) == 65534)
    assert not owned_by(it, MARK)


def test_a_reused_pid_with_our_mark_is_not_the_one_meant(processes):
    """The mark belongs to the process that has the pid now, not to the one we knew."""
    child = processes.sleeper(env=marked())
    assert processes.until(lambda: owned_by(processes.identity(child), MARK))
    assert not owned_by(ProcessId(child.pid, processes.identity(child).started - 1), MARK)


def test_a_dead_process_is_not_ours():
    """Nothing can be proved of it any more."""
    child = subprocess.Popen(["true"], env=marked())
    it = ProcessId.of(child.pid)
    child.wait()
    assert it is None or not owned_by(it, MARK)


RENAMED = "import setproctitle\nsetproctitle.setproctitle('VLLM::EngineCore')\nprint(1, flush=True)\ninput()"


def test_a_renamed_process_keeps_its_mark(processes):
    """Engine processes get a title from vLLM, which wipes the environment that /proc shows."""
    pytest.importorskip("setproctitle")
    environment = {**os.environ, **mark_environment(MARK)}
    child = processes.python(RENAMED, env=environment, stdin=subprocess.PIPE)
    assert owned_by(processes.identity(child), MARK)
    child.stdin.close()


def test_a_claim_survives_fork_and_renaming(processes):
    """A forked child shows its parent's environment: the claim proves it instead."""
    code = (
        "import os, sys\nfrom rayguard.process.identity import claim\n"
        f"claim({MARK!r})\npid = os.fork()\n"
        "print(pid, flush=True) if pid else None\ninput()"
    )
    child = processes.python(code, stdin=subprocess.PIPE)
    forked = ProcessId.of(int(child.said))
    assert owned_by(processes.identity(child), MARK)
    assert forked is not None
    assert owned_by(forked, MARK)
    assert not owned_by(forked, owner_mark(ProcessId(1, 1)))
    child.stdin.close()
    assert processes.until(lambda: not forked.alive())


def test_a_claim_ends_at_exec():
    """A program that a claiming process starts is not an engine of ours."""
    fd = claim(MARK)
    try:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
        assert not owned_by(ProcessId.of(child.pid), MARK)
        child.communicate(b"\n", timeout=30)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("end", "code"), [("kill -9 $$", -9), ("exit 3", 3), ("exit 0", None)])
def test_how_a_process_ended_is_known_to_who_asks_before_its_parent(end, code):
    """A zombie still has its exit status, and what was seen is remembered; a living process has none."""
    child = subprocess.Popen(["/bin/sh", "-c", f"read line; {end}"], stdin=subprocess.PIPE)
    process = ProcessId.of(child.pid)
    assert process.exitcode() is None
    child.stdin.close()
    until = time.monotonic() + 10
    while process.alive() and time.monotonic() < until:
        threading.Event().wait(0.005)
    assert process.exitcode() == code
    child.wait(10)
    assert process.exitcode() == code
    assert ProcessId(process.pid, process.started + 1).exitcode() is None, "another one with its pid"
