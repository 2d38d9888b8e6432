"""``rayguard run`` on small real programs: what it starts, says, passes on, and leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from small_programs import DEADLINE_S, gone
from test_published_runs import CHUNKED

HEAD = "Traceback (most recent call last):\n  "
LOST = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."


def lines_until(stream, wanted: bytes):
    """Read lines up to the one that holds ``wanted``."""
    seen = []
    while line := stream.readline():
        seen.append(line)
        if wanted in line:
            return seen
    raise AssertionError(seen)


def test_a_command_that_does_its_work_is_not_talked_about(stage):
    """Its output and exit code are all there is."""
    ran = stage.run(sys.executable, "train.py", story="print('loss 0.1'); print('warned', file=sys.stderr)")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"loss 0.1\n", b"warned\n")
    assert stage.incidents() == []


def test_a_framework_that_lost_a_worker_is_started_once_more_with_the_same_words(stage):
    """A transient fault; then it does its work, and the incident says recovered."""
    ran = stage.easyr1(story=f"if life == 0:\n    fail({LOST!r})\nprint('done')")
    first, second = stage.lives()
    assert (ran.returncode, ran.stdout) == (0, b"done\n")
    assert first["words"] == second["words"] == ["trainer.save_freq=20", "trainer.save_limit=3"]
    assert [one.outcome.value for one in stage.incidents()] == ["recovered"]


def test_the_same_failure_twice_at_the_same_place_is_not_tried_a_third_time(stage):
    """Two lives, one restart, and both told as failed."""
    ran = stage.easyr1(story=f"fail({LOST!r}, 7)")
    assert ran.returncode == 7
    assert len(stage.lives()) == 2
    assert [one.outcome.value for one in stage.incidents()] == ["failed", "failed"]
    assert b"the same failure came again" in ran.stderr


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (
            HEAD
            + 'File "reward.py", line 3, in compute\n    return 1/0\nZeroDivisionError: division by zero',
            1,
            b"own",
        ),
        (HEAD + "ModuleNotFoundError: No module named 'flash_attn'", 1, b"packages do not fit"),
        (
            "usage: main.py [-h]\nmain.py: error: unrecognized arguments: --foo",
            2,
            b"the command line is refused",
        ),
    ],
)
def test_what_a_restart_cannot_help_is_stopped_at_once(stage, text, code, why):
    """With why, and what to do."""
    ran = stage.easyr1(story=f"fail({text!r}, {code})")
    assert ran.returncode == code
    assert len(stage.lives()) == 1
    assert why in ran.stderr
    assert b"what to do: " in ran.stderr


def test_a_setting_that_its_framework_refuses_is_taken_back_and_the_next_one_tried(stage):
    """The override was ours: the usage error is not the user's."""
    refused = "omegaconf.errors.ConfigKeyError: Key 'enable_chunked_prefill' not in 'RolloutConfig'"
    ran = stage.easyr1(
        "worker.rollout.enable_chunked_prefill=true",
        story=f"fail({CHUNKED!r} if life != 1 else {refused!r})",
    )
    assert ran.returncode == 1
    assert "worker.rollout.enable_chunked_prefill=false" in stage.lives()[1]["words"]
    assert len(stage.lives()) == 2
    assert b"the same settings fail again" in ran.stderr or b"the same failure" in ran.stderr


def test_a_command_of_no_known_framework_is_diagnosed_and_left_alone(stage):
    """It might overwrite its results; how to allow it is said, and works."""
    story = f"if life == 0:\n    fail({LOST!r})"
    ran = stage.run(sys.executable, "train.py", story=story)
    assert (ran.returncode, len(stage.lives())) == (1, 1)
    assert b"--retry-unknown" in ran.stderr
    assert b"actor" in ran.stderr
    stage.book.unlink()
    ran = stage.run(sys.executable, "train.py", options=["--retry-unknown"], story=story)
    assert (ran.returncode, len(stage.lives())) == (0, 2)


def test_checkpoints_are_switched_on_unless_that_is_refused(stage):
    """EasyR1 saves none by itself, which is said."""
    ran = stage.easyr1(options=["--save-every", 5])
    assert "trainer.save_freq=5" in stage.lives()[0]["words"]
    assert b"trainer.save_freq=5" in ran.stderr
    stage.easyr1(options=["--no-save"])
    assert stage.lives()[1]["words"] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -9 $$"], 137),
        ([sys.executable, "-c", "import sys; sys.exit(-9)"], 247),
        (["/no/such/program"], 127),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
        ([], 125),
    ],
)
def test_the_exit_code_is_the_command_s_own(stage, words, code):
    """As a shell has it for signals; 125 is rayguard's own."""
    assert stage.run(*words).returncode == code


def test_a_killed_command_is_told_by_its_signal(stage):
    """Also by the exit code that a Python makes of it."""
    ran = stage.run(sys.executable, "-c", "import sys; sys.exit(-9)")
    assert b"which speaks of SIGKILL" in ran.stderr


def test_bytes_pass_as_they_are_and_streams_stay_apart(stage):
    """Neither lines nor characters are made of them."""
    story = "sys.stdout.buffer.write(bytes(range(256)) * 4000); sys.stderr.buffer.write(b'\\xff\\x00' * 9)"
    ran = stage.run(sys.executable, "train.py", story=story)
    assert hashlib.sha256(ran.stdout).digest() == hashlib.sha256(bytes(range(256)) * 4000).digest()
    assert ran.stderr == b"\xff\x00" * 9


def test_one_file_for_both_keeps_their_order(stage, tmp_path):
    """As ``> log 2>&1`` of a shell."""
    story = "for n in range(200):\n    os.write(1 + n % 2, f'{n}\\n'.encode())"
    log = tmp_path / "log"
    with log.open("wb") as file:
        stage.run(sys.executable, "train.py", story=story, stdout=file, stderr=file)
    assert log.read_text().split() == [str(n) for n in range(200)]


def test_a_closed_output_ends_no_command(stage):
    """``>&-``: nobody wants to read it."""
    words = f"{sys.executable} -m rayguard run -- {sys.executable} train.py >&-"
    ran = stage.run("sh", "-c", words, story="print('x')")
    assert ran.returncode == 0
    assert len(stage.lives()) == 1


def test_a_reader_that_goes_is_told_to_the_command_as_ever(stage):
    """By a closed pipe; and it is not started again to talk to nobody."""
    story = "try:\n    while True: print('y' * 99)\nexcept BrokenPipeError:\n    os._exit(5)"
    process = stage.start(sys.executable, "-m", "verl.trainer.main", story=story)
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(DEADLINE_S) == 5
    assert b"nobody reads its output" in error
    assert len(stage.lives()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_command_which_ends_as_it_likes(stage, number):
    """And it is not started again."""
    story = (
        f"import signal\nsignal.signal({int(number)}, lambda *_: (os.write(1, b'saved\\n'), os._exit(9)))\n"
        "os.write(1, b'up\\n')\ntime.sleep(100)"
    )
    process = stage.start(sys.executable, "-m", "verl.trainer.main", story=story)
    lines_until(process.stdout, b"up")
    process.send_signal(number)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said) == (9, b"saved\n")
    assert len(stage.lives()) == 1


def test_who_does_not_end_is_killed_with_all_that_it_started(stage):
    """After the grace, in its session or out of it."""
    story = (
        "import signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = subprocess.Popen(['sleep', '1000'])\n"
        "outer = subprocess.Popen(['sleep', '1001'], start_new_session=True)\n"
        "print('up', inner.pid, outer.pid, flush=True)\ntime.sleep(1000)"
    )
    process = stage.start(sys.executable, "train.py", story=story, options=["--grace", "1"])
    *_, up = lines_until(process.stdout, b"up")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 137
    assert all(gone(int(pid)) for pid in up.split()[1:])


def test_a_signal_reaches_the_command_where_nobody_hears_what_is_said(stage):
    """Both readers have gone: it is ended all the same, and does not live on alone."""
    process = stage.start(
        sys.executable, "train.py", story="print(os.getpid(), flush=True)\ntime.sleep(1000)"
    )
    pid = int(process.stdout.readline())
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 143
    assert gone(pid)


def test_what_a_failed_command_left_is_ended_before_the_next_life(stage):
    """It would hold the GPU and the ports; what a command that ended well left, may stay, and is named."""
    story = (
        "import subprocess\nleft = subprocess.Popen(['sleep', '1002'], start_new_session=True)\n"
        f"print('left', left.pid, flush=True)\nif life == 0:\n    fail({LOST!r})"
    )
    ran = stage.easyr1(story=story)
    first, second = (int(line.split()[1]) for line in ran.stdout.splitlines())
    assert ran.returncode == 0
    assert gone(first)
    assert psutil.Process(second).status() != psutil.STATUS_ZOMBIE
    assert f"still run: {second}".encode() in ran.stderr
    os.kill(second, signal.SIGKILL)


def test_a_signal_that_was_ignored_stays_so(stage):
    """As under nohup, for the command too."""
    story = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    ignoring = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, "-m", "rayguard", "run", "--", sys.executable, "train.py"]
    assert stage.run(sys.executable, "-c", ignoring, *words, story=story).stdout == b"True\n"


def test_a_hundred_megabytes_pass_in_flat_memory(stage):
    """While they pass, next to nothing is held of them; the failure at their end is found."""
    story = (
        "for n in range(100): sys.stdout.buffer.write((b'x' * 1023 + b'\\n') * 1024)\n"
        f"sys.stdout.flush()\nos.write(2, b'over')\ntime.sleep(2)\nfail({CHUNKED!r})"
    )
    with Path(os.devnull).open("wb") as nowhere:
        process = stage.start(
            sys.executable, "train.py", story=story, stdout=nowhere, options=["--json", "told"]
        )
    with process.stderr:
        process.stderr.read(4)
        held = psutil.Process(process.pid).memory_info()
        process.stderr.read()
    process.wait(DEADLINE_S)
    assert held.rss < 100 << 20
    told = json.loads((stage.folder / "told").read_text())
    assert told["lives"][0]["kind"] == "scheduler_assertion"


def test_a_server_is_started_again_whenever_it_ends(stage):
    """And what that means for its weights is said."""
    ran = stage.run(
        stage.swift, "rollout", "--model", "m", story="os.kill(os.getpid(), 9 if life == 0 else 15)"
    )
    assert (ran.returncode, len(stage.lives())) == (143, 2)
    assert b"its trainer must push again" in ran.stderr
    assert b"told it to end" in ran.stderr


def test_a_signal_between_two_starts_ends_it_at_once(stage):
    """While a port is waited for, say."""
    held = f"fail({HEAD + 'OSError: [Errno 98] Address already in use'!r})"
    process = stage.start(sys.executable, "-m", "verl.trainer.main", story=held)
    lines_until(process.stderr, b"started again in 5 s")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143
    assert len(stage.lives()) == 1
    assert [one.outcome.value for one in stage.incidents()] == ["failed"]
