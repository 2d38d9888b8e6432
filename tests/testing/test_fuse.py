"""The fuse: lit by one process, burns in exactly one other."""

import os
import subprocess
import sys
import time

from rayguard.testing.fuse import CONFIG_KEY, Fuse, fused


def test_an_unlit_fuse_does_not_burn(tmp_path):
    """Nothing happens to engines whose fuse nobody lit."""
    fuse = Fuse(tmp_path / "fuse")
    assert fuse.calls_left() is None
    assert not fuse.burn()
    assert fuse.burnt() is None


def test_a_lit_fuse_burns_once_and_leaves_proof(tmp_path):
    """The ashes say when and in which process."""
    fuse = Fuse(tmp_path / "fuse")
    fuse.light(after=3)
    assert fuse.calls_left() == 3
    before = time.time()
    assert fuse.burn()
    assert not fuse.burn()
    at, pid = fuse.burnt()
    assert before <= at <= time.time()
    assert pid == os.getpid()


def test_a_fuse_burns_in_one_of_many_processes(tmp_path):
    """However many processes race for it, one of them wins."""
    fuse = Fuse(tmp_path / "fuse")
    fuse.light()
    code = (
        "import sys, pathlib; from rayguard.testing.fuse import Fuse; sys.stdin.readline();"
        "print(Fuse(pathlib.Path(sys.argv[1])).burn())"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(fuse.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert sorted(said) == ["False"] * 5 + ["True"]
    assert fuse.burnt()[1] == racers[said.index("True")].pid


def test_a_fuse_lit_again_forgets_the_old_ashes(tmp_path):
    """Old proof must not stand for a new fault."""
    fuse = Fuse(tmp_path / "fuse")
    fuse.light()
    fuse.burn()
    fuse.light()
    assert fuse.burnt() is None
    assert fuse.burn()


def test_the_engine_arguments_name_the_fuse(tmp_path):
    """fused() is all that an engine needs."""
    args = fused(tmp_path / "fuse")
    assert args["additional_config"] == {CONFIG_KEY: str(tmp_path / "fuse")}
    assert args["scheduler_cls"] == "rayguard.testing.scheduler.FusedScheduler"
