"""Native growth: which mapping of which process, by what the kernel says."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rayguard.memory.growth.native import NativeLooks, sort_of

MIB = 1 << 20
CHILD = """
import mmap, os, sys
kept = []
while sys.stdin.readline():
    fd = os.memfd_create("pool")
    os.ftruncate(fd, 4 << 20)
    kept.append((fd, mmap.mmap(fd, 4 << 20)))
    kept[-1][1].write(b"x" * (4 << 20))
    print("done", flush=True)
"""


def test_a_childs_mapping_is_named():
    """An engine's process: nothing but the kernel tells."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        looks = NativeLooks(child.pid)
        for step in range(4):
            print(file=child.stdin, flush=True)
            assert child.stdout.readline() == "done\n"
            looks.look(step)
        found = looks.found()
    finally:
        child.communicate(timeout=20)
    (mapped,) = found.mappings
    assert mapped.name.startswith("/memfd:pool")
    assert mapped.bytes_per_step == pytest.approx(4 * MIB, rel=0.2)
    assert found.malloc_used == found.python == 0


def test_the_dead_are_noted():
    """They may die in the middle of a hunt."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(20)
    looks = NativeLooks(child.pid)
    looks.look(0)
    looks.look(1)
    assert looks.found().mappings == ()
    assert str(child.pid) in looks.note


def test_segments_with_new_names_are_one_sort():
    """Each step makes a file; together they grow."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        looks = NativeLooks(os.getpid(), segments=True, shm=directory)
        for step in range(3):
            (directory / f"psm_{step:02x}ab{step}f").write_bytes(b"x" * 4 * MIB)
            looks.look(step)
        found = {one.name: one.bytes_per_step for one in looks.found().mappings}
    assert found[f"files {directory}/psm_*"] == pytest.approx(4 * MIB, rel=0.2)


@pytest.mark.parametrize(
    ("name", "shared", "told"),
    [
        ("", False, "anonymous memory"),
        ("[heap]", False, "the C heap ([heap])"),
        ("/dev/zero (deleted)", True, "shared anonymous memory"),
        ("/dev/shm/plasmaX81 (deleted)", True, "Ray's object store (views of its objects)"),
        ("/dev/shm/torch_1234_99", True, "/dev/shm/torch_*_*"),
        ("/memfd:pool (deleted)", True, "/memfd:pool (deleted)"),
        ("/usr/lib/libc-2.31.so", False, "/usr/lib/libc-2.31.so"),
    ],
)
def test_mappings_of_a_sort_have_one_name(name, shared, told):
    """What is made up in a name is left out, where it is made up."""
    assert sort_of(name, shared=shared) == told


def test_one_look_says_nothing():
    """There is no growth without two."""
    looks = NativeLooks(os.getpid())
    looks.look(0)
    assert looks.found() is None
