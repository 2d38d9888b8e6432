"""Where the threads of another process stand: read without stopping it, and never of a stranger."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from rayguard.engine.hangs.blocked_loop import PAUSE_S, LoopPulse
from rayguard.process import stacks
from rayguard.process.identity import OWNER_ENV, ProcessId, owner_mark
from rayguard.process.stacks import CodePlace, Thread, from_faulthandler, from_py_spy, read_stacks, register

STANDS = """
import sys, threading
from rayguard.process.stacks import register
def stands_here():
    print("ready", flush=True)
    threading.Event().wait(60)
threading.Thread(target=threading.Event().wait, args=(60,), name="helper", daemon=True).start()
if len(sys.argv) > 1:
    register()
stands_here()
"""
needs_py_spy = pytest.mark.skipif(stacks._py_spy() is None, reason="py-spy is not installed")


@pytest.fixture
def mark():
    return owner_mark(ProcessId.me())


@pytest.fixture
def standing(processes, mark):
    """A process that stands in a function, with our mark."""

    def start(*arguments, marked=True):
        environment = {**os.environ, OWNER_ENV: mark} if marked else dict(os.environ)
        program = f"import sys; sys.argv += {list(map(str, arguments))!r}\n{STANDS}"
        child = processes.python(program, env=environment)
        assert child.said == "ready"
        return child

    return start


def read(child, mark, deadline_s=10.0):
    return read_stacks([ProcessId.of(child.pid)], mark=mark, deadline_s=deadline_s)


def functions(stack):
    return [place.function for thread in stack.threads for place in thread.places]


@needs_py_spy
def test_py_spy_reads_a_process_that_is_stopped(processes, standing, mark):
    """No signal handler runs in it; and it is as stopped afterwards as it was before."""
    child = standing()
    processes.stop(child)
    (stack,) = read(child, mark)
    assert (stack.by, stack.state) == ("py-spy", "T")
    assert "stands_here" in functions(stack)
    assert {thread.name for thread in stack.threads} >= {"MainThread", "helper"}
    assert ProcessId.of(child.pid).state() == "T"


def test_faulthandler_tells_where_there_is_no_py_spy(standing, mark, monkeypatch):
    """The process writes its stacks itself, and goes on."""
    monkeypatch.setattr(stacks, "_py_spy", lambda: None)
    child = standing("registered")
    for _ in range(2):  # the second dump replaces the first
        (stack,) = read(child, mark)
        assert stack.by == "faulthandler"
        assert functions(stack).count("stands_here") == 1
    assert child.poll() is None
    assert stack.state in {"S", "R"}


def test_a_process_that_does_not_catch_the_signal_is_not_sent_it(standing, mark, tmp_path, monkeypatch):
    """Its default is to kill: a file of the right name is no proof that the handler stands."""
    monkeypatch.setattr(stacks, "_py_spy", lambda: None)
    child = standing()
    path = tmp_path / f"engine_core-{child.pid}.stack"
    path.touch()
    monkeypatch.setattr(stacks, "_dump_file", lambda pid: path)
    (stack,) = read(child, mark)
    assert stack.threads == ()
    assert child.poll() is None


def test_a_stopped_process_is_not_sent_a_signal(processes, standing, mark, monkeypatch):
    """It could not answer, and would find the signal when it goes on."""
    monkeypatch.setattr(stacks, "_py_spy", lambda: None)
    child = standing("registered")
    processes.stop(child)
    (stack,) = read(child, mark)
    assert (stack.state, stack.threads) == ("T", ())
    pending = Path(f"/proc/{child.pid}/status").read_text()
    assert "ShdPnd:\t0000000000000000" in pending


def test_strangers_are_left_alone(standing, mark):
    """No mark, no look: neither by py-spy nor by a signal."""
    child = standing("registered", marked=False)
    assert read(child, mark) == ()


def test_a_process_that_is_gone_is_no_error(standing, mark):
    """It died between the verdict and the look."""
    child = standing()
    gone = ProcessId.of(child.pid)
    child.kill()
    child.wait(10)
    assert read_stacks([gone], mark=mark, deadline_s=1.0) == ()


def test_a_spy_that_hangs_does_not_keep_us(standing, mark, tmp_path, monkeypatch):
    """The deadline holds, and the spy is ended."""
    slow = tmp_path / "py-spy"
    slow.write_text(f"#!{sys.executable}\nimport threading; threading.Event().wait(60)\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stacks, "_py_spy", lambda: str(slow))
    child = standing()
    (stack,) = read(child, mark, deadline_s=0.3)
    assert stack.threads == ()
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(slow) in _text(p)]


def _text(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_signal_that_somebody_else_uses_is_left_to_them(processes):
    """Registering over it would take their handler away."""
    code = (
        "import signal, sys\n"
        "from rayguard.process.stacks import DUMP_SIGNAL, register\n"
        "signal.signal(DUMP_SIGNAL, lambda *_: None)\n"
        "print(register(), flush=True)\n"
    )
    assert processes.python(code).said == "False"


def test_a_process_that_cannot_make_its_file_goes_on(processes):
    """A start must not fail for it; and the signal is not caught then, so it is never sent."""
    code = (
        "import resource\n"
        "from rayguard.process.stacks import _catches, register\n"
        "import os\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 4096))\n"
        "said = register()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))\n"
        "print(said, _catches(os.getpid()))\n"
    )
    assert processes.python(code).said == "False False"


def test_a_forked_child_writes_to_its_own_file(processes, mark, monkeypatch):
    """As vLLM forks workers from a core that has registered; one that has not is not asked."""
    monkeypatch.setattr(stacks, "_py_spy", lambda: None)
    code = (
        "import os, threading\n"
        "from rayguard.process.stacks import register\n"
        "register()\n"
        "pids = [os.fork()]\n"
        "if pids[0] == 0:\n"
        "    register()\n"
        "elif os.fork() == 0:\n"
        "    pids.clear()\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "threading.Event().wait(60)\n"
    )
    child = processes.python(code, env={**os.environ, OWNER_ENV: mark})
    family = [int(child.said), *(int(child.stdout.readline()) for _ in range(2))]
    found = read_stacks([ProcessId.of(pid) for pid in family], mark=mark, deadline_s=10.0)
    assert sorted(stack.by for stack in found) == ["", "faulthandler", "faulthandler"]
    for pid in family:
        os.kill(pid, signal.SIGKILL)


def test_what_py_spy_prints_is_read():
    """Names without their class, innermost first."""
    text = (
        '[{"thread_name": "MainThread", "frames": [{"name": "Event.wait", "filename": "/a/b/c/d.py", "line": 7},'
        ' {"name": "go", "filename": "x.py", "line": null}]}]'
    )
    assert from_py_spy(text) == (
        Thread("MainThread", (CodePlace("wait", "/a/b/c/d.py", 7), CodePlace("go", "x.py"))),
    )
    assert str(CodePlace("wait", "/a/b/c/d.py", 7)) == "wait (b/c/d.py:7)"
    for wrong in ("", "{}", "nothing"):
        with pytest.raises(ValueError, match=r"Expecting value|list of threads"):
            from_py_spy(wrong)


def test_what_faulthandler_writes_is_read():
    """Torn at any place: what is whole counts."""
    text = (
        "Thread 0x00007fd4d09f76c0 (most recent call first):\n"
        '  File "/l/threading.py", line 982 in run\n'
        "\n"
        "Current thread 0x00007fd4d1696b80 [engine] (most recent call first):\n"
        '  File "/v/core.py", line ??? in Core.step\n'
        '  File "/v/co'
    )
    assert from_faulthandler(text) == (
        Thread("", (CodePlace("run", "/l/threading.py", 982),)),
        Thread("engine", (CodePlace("step", "/v/core.py"),)),
    )
    for cut in range(len(text)):
        from_faulthandler(text[:cut])
    assert register.__doc__


# -- event loops


class FakeLoop:
    """A loop that turns when told."""

    def __init__(self):
        self.calls, self.running, self.closed = [], True, False

    def is_running(self):
        return self.running

    def call_soon_threadsafe(self, call):
        if self.closed:
            raise RuntimeError("closed")
        self.calls.append(call)

    def turn(self):
        while self.calls:
            self.calls.pop(0)()


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_loop_that_turns_is_never_late():
    """One beat is under way at a time."""
    loop, clock = FakeLoop(), Clock()
    pulse = LoopPulse(loop, clock)
    for _ in range(10):
        assert pulse.late_s() == 0
        assert len(loop.calls) == 1
        loop.turn()
        clock.now += 0.5


def test_a_blocked_loop_is_late_since_it_was_asked():
    """And on time again with the first beat."""
    loop, clock = FakeLoop(), Clock()
    pulse = LoopPulse(loop, clock)
    late = []
    for _ in range(5):
        late.append(pulse.late_s())
        clock.now += 0.5
    assert late == [0.0, 0.5, 1.0, 1.5, 2.0]
    loop.turn()
    assert pulse.late_s() == 0


def test_a_pause_of_this_process_is_no_blocked_loop():
    """In a debugger everybody stood: who asks as well as the loop."""
    loop, clock = FakeLoop(), Clock()
    pulse = LoopPulse(loop, clock)
    pulse.late_s()
    clock.now += PAUSE_S + 60
    assert pulse.late_s() == 0


def test_a_loop_that_nobody_runs_is_not_late():
    """Between two ``run_until_complete``: asked anew once it runs."""
    loop, clock = FakeLoop(), Clock()
    pulse = LoopPulse(loop, clock)
    pulse.late_s()
    loop.running = False
    clock.now += 1
    assert not pulse.turns()
    loop.running = True
    assert pulse.turns()
    assert pulse.late_s() == 0
    loop.turn()
    loop.closed = True
    assert pulse.late_s() == 0


def test_it_is_told_where_the_loop_stands():
    """The innermost frames of its thread, whatever holds it."""
    loop, beating, go_on = FakeLoop(), threading.Event(), threading.Event()
    pulse = LoopPulse(loop)
    pulse.late_s()

    def users_code():
        loop.turn()
        beating.set()
        go_on.wait(30)

    thread = threading.Thread(target=users_code)
    assert pulse.stands() == ()
    thread.start()
    assert beating.wait(30)
    assert "users_code" in [frame.name for frame in pulse.stands()]
    go_on.set()
    thread.join(30)
