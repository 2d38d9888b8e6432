"""How full file systems are; one that hangs must not hang us."""

import os
import threading
from types import SimpleNamespace

import pytest

from rayguard.memory.probes.files import FilesProbe, FileSystem

LOCAL = "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n"
REMOTE = LOCAL + "server:/share /mnt/with\\040space nfs4 rw 0 0\n"


@pytest.fixture
def mounts(tmp_path):
    file = tmp_path / "mounts"
    file.write_text(REMOTE)
    return file


def test_what_only_root_may_use_counts_as_used(monkeypatch, tmp_path):
    """Ray gives up on a disk by what it may use itself."""
    blocks = SimpleNamespace(f_blocks=100, f_bfree=40, f_bavail=30, f_frsize=4096, f_bsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: blocks)
    (found,) = FilesProbe([tmp_path]).read()
    assert (found.path, found.used, found.total) == (str(tmp_path), 70 * 4096, 100 * 4096)


def test_shared_memory_of_this_machine_can_be_read():
    """On any Linux."""
    (found,) = FilesProbe(["/dev/shm"]).read()
    assert 0 <= found.used <= found.total


def test_two_paths_on_one_file_system_are_one_reading_and_missing_ones_none(tmp_path):
    """The session and the spill directory are mostly on one disk."""
    (tmp_path / "a").mkdir()
    found = FilesProbe([tmp_path, tmp_path / "a", tmp_path / "missing"]).read()
    assert [one.path for one in found] == [str(tmp_path)]


class Server:
    """A file system that answers when it is told to."""

    def __init__(self):
        self.up, self.asked, self.threads = threading.Event(), 0, []

    def __call__(self, path):
        self.asked += 1
        self.threads.append(threading.current_thread())
        assert self.up.wait(30)
        return FileSystem(path=path, used=1, total=2, device=7)


def test_a_dead_network_mount_is_left_out_after_the_deadline_and_asked_once(mounts):
    """One thread may hang in the kernel, not one a second."""
    server = Server()
    probe = FilesProbe(["/mnt/with space/spill"], deadline_s=0.05, mounts=mounts, ask=server)
    assert (probe.read(), probe.read(), probe.read()) == ((), (), ())
    assert server.asked == 1
    assert probe.hanging() == ("/mnt/with space/spill",)
    server.up.set()
    for thread in server.threads:
        thread.join(30)
    assert [one.used for one in probe.read()] == [1]  # the late answer
    assert probe.hanging() == ()
    assert [one.used for one in probe.read()] == [1]
    assert server.asked == 2


def test_a_local_file_system_is_asked_directly(mounts):
    """A thread costs more than the question."""
    server = Server()
    server.up.set()
    probe = FilesProbe(["/tmp/ray", "/dev/shm"], mounts=mounts, ask=server)
    probe.read()
    assert server.threads == [threading.current_thread()] * 2


def test_one_hanging_mount_does_not_hide_the_others(mounts, tmp_path):
    """The disk is read while the share hangs."""
    probe = FilesProbe(
        ["/mnt/with space", str(tmp_path)], deadline_s=0.01, mounts=mounts, ask=_either(tmp_path)
    )
    assert [one.path for one in probe.read()] == [str(tmp_path)]


def _either(here):
    def ask(path):
        if path != str(here):
            raise OSError(116, "Stale file handle")
        return FileSystem(path=path, used=1, total=2, device=3)

    return ask


def test_without_a_list_of_mounts_nothing_is_held_for_remote(tmp_path):
    """/proc may be missing; the question is asked all the same."""
    probe = FilesProbe([tmp_path], mounts=tmp_path / "missing")
    assert len(probe.read()) == 1
