"""``rayguard run`` on a real pseudo-terminal: what stays a terminal, what is typed, Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

from small_programs import DEADLINE_S, gone

CTRL_C = b"\x03"


class Person:
    """Sits at a terminal of 33 rows and 77 columns, in whose foreground one command runs."""

    def __init__(self, stage, story, *options, **streams):
        self.seen = b""
        pid, self._terminal = pty.fork()
        if pid == 0:
            environment = stage.environment(STORY=story, TERM="xterm")
            os.chdir(stage.folder)
            for number, path in streams.items():
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), int(number[1:]))
            words = [sys.executable, "-m", "rayguard", "run", *options, "--", sys.executable, "train.py"]
            os.execve(sys.executable, words, environment)
        self.pid = pid
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))

    def reads(self, until=None):
        """Read to the end, or until this was shown."""
        deadline = time.monotonic() + DEADLINE_S
        while until is None or until not in self.seen:
            assert select.select([self._terminal], [], [], deadline - time.monotonic())[0], self.seen
            try:
                chunk = os.read(self._terminal, 65_536)
            except OSError:  # the last one has let go of it
                break
            self.seen += chunk
        return self.seen

    def types(self, keys):
        os.write(self._terminal, keys)

    def leaves(self):
        """Read what is left, and return the exit code."""
        self.reads()
        os.close(self._terminal)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def test_a_terminal_stays_one_of_its_size(stage):
    """Progress bars and colours depend on it; lines end as they do without us."""
    story = (
        "time.sleep(1)\nprint([os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(1).columns)\n"
        "print('\\x1b[31mred\\x1b[0m\\rbar', end='')"
    )
    person = Person(stage, story)
    assert person.leaves() == 0
    assert person.seen == b"[True, True, True] 77\r\n\x1b[31mred\x1b[0m\rbar"


def test_what_goes_to_a_file_is_no_terminal(stage, tmp_path):
    """Stdout in a file, stderr on the terminal: each as it was."""
    story = "print(os.isatty(1), os.isatty(2)); print('seen', file=sys.stderr)"
    person = Person(stage, story, _1=tmp_path / "out")
    assert person.leaves() == 0
    assert (tmp_path / "out").read_bytes() == b"False True\n"
    assert person.seen == b"seen\r\n"


def test_what_is_typed_reaches_the_command_once(stage):
    """A debugger's prompt is answered, and shown once; the end of input ends it."""
    person = Person(stage, "print('name?', flush=True)\nprint('got', repr(sys.stdin.read()))")
    person.reads(until=b"name?")
    person.types(b"Ada\n")
    person.reads(until=b"Ada")
    person.types(b"\x04")
    assert person.leaves() == 0
    assert person.seen.count(b"Ada") == 2
    assert b"got 'Ada\\n'" in person.seen


def test_ctrl_c_ends_the_command_and_leaves_nothing(stage):
    """It is asked to end, and its own way of ending is its exit code."""
    story = (
        "import subprocess\nother = subprocess.Popen(['sleep', '1003'], start_new_session=True)\n"
        "try:\n    print('up', other.pid, flush=True)\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    sys.exit(33)"
    )
    person = Person(stage, story)
    shown = person.reads(until=b"\n").split()
    person.types(CTRL_C)
    assert person.leaves() == 33
    assert gone(int(shown[1]))
    assert len(stage.lives()) == 1


def test_a_second_ctrl_c_kills_at_once(stage):
    """Long before the grace is over."""
    person = Person(
        stage,
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(1000)",
        "--grace",
        "900",
    )
    person.reads(until=b"up")
    person.types(CTRL_C)
    person.reads(until=b"SIGINT is passed on")
    person.types(CTRL_C)
    assert person.leaves() == 128 + signal.SIGKILL


def test_a_stop_stops_the_command_too_and_both_go_on(stage):
    """Ctrl-Z, and the shell's ``fg``."""
    person = Person(
        stage,
        "for n in range(1000):\n    print(n, flush=True)\n    time.sleep(0.05)\n    n < 40 or sys.exit(0)",
    )
    person.reads(until=b"3")
    os.kill(person.pid, signal.SIGTSTP)
    _, status = os.waitpid(person.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    time.sleep(0.3)  # noqa: TID251 - what was on its way
    while select.select([person._terminal], [], [], 0)[0]:
        person.seen += os.read(person._terminal, 65_536)
    assert not select.select([person._terminal], [], [], 0.5)[0]
    os.kill(person.pid, signal.SIGCONT)
    assert person.leaves() == 0
    assert b"\n40\r\n" in person.seen


def test_the_terminal_is_left_as_it_was(stage):
    """Also after Ctrl-C."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "rayguard", "run", "--", sys.executable, "train.py"],
        env=stage.environment(STORY="os.kill(os.getpid(), 2)"),
        cwd=stage.folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    assert process.wait(DEADLINE_S) == 130
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
