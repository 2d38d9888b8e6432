"""The state of a role in memory, in files without names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayguard.frameworks.worker_groups import held_state
from rayguard.frameworks.worker_groups.held_state import HeldState


@pytest.fixture
def shm(monkeypatch, tmp_path):
    """A place of our own."""
    monkeypatch.setattr(held_state, "SHM", tmp_path)
    return tmp_path


def written(text):
    folder = held_state.new_folder()
    folder.mkdir()
    (folder / "model").write_text(text)
    (folder / "optim").write_text(text * 2)
    (folder / "config.json").write_text("{}")
    return folder


def test_what_is_held_has_no_name_and_can_be_shown_to_other_processes(shm):
    """They read it through its holder."""
    held = HeldState.of(written("abc"), ("model", "optim"))
    assert not list(shm.iterdir())
    assert held.size_bytes == 9
    where = shm / "again"
    held.show(where)
    read = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", str(where / "optim")]
    assert subprocess.run(read, check=True, capture_output=True, text=True).stdout == "abcabc\n"
    held.close()
    assert not (where / "model").exists()


def test_half_a_state_is_none(shm):
    """Nothing of it stays, no name and no open file."""
    folder, before = written("abc"), len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        HeldState.of(folder, ("model", "extra_state"))
    assert not list(shm.iterdir())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_forked_child_does_not_hold_what_its_parent_lets_go(shm):
    """The memory of a snapshot would stay for as long as a data loader."""
    held = HeldState.of(written("abc"), ("model",))
    child = os.fork()
    if child == 0:
        os._exit(0 if not held._files else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held._files, "its parent does"
    held.close()


def test_only_what_the_dead_left_is_swept(shm):
    """Not what a living process writes, nor what is not ours."""
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    started = held_state.ProcessId.of(ended.pid)
    ended.wait()
    mine, other = written("abc"), shm / "something-else"
    other.mkdir()
    left = shm / f"{held_state._prefix()}{held_state.owner_mark(started)}-0123abcd"
    left.mkdir()
    held_state.sweep()
    assert sorted(shm.iterdir()) == sorted([mine, other])


def test_free_memory_is_no_more_than_there_is():
    """What the kernel and the file system say, whichever is less."""
    free = held_state.free_bytes()
    stat = os.statvfs("/dev/shm")
    assert 0 < free <= stat.f_bavail * stat.f_frsize * 1.1
