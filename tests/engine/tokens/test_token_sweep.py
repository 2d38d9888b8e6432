"""Removing the token logs of the dead, and of nobody else."""

import os
import subprocess
import time

from rayguard.engine.generated import Generated
from rayguard.engine.tokens.frames import Logged
from rayguard.engine.tokens.log import TokenLog, log_path, read_log, sweep
from rayguard.process import owned_files
from rayguard.process.identity import ProcessId

DEADLINE_S = 120


def dead_process():
    """Return what a process was that has ended."""
    child = subprocess.Popen(["sleep", "60"])
    it = ProcessId.of(child.pid)
    child.kill()
    child.wait(DEADLINE_S)
    return it


def leave(directory, writer_):
    path = log_path(directory, writer_)
    path.write_bytes(b"anything")
    return path


def test_the_log_of_a_dead_writer_goes_some_minutes_after_it_was_found(tmp_path):
    """Whoever continues its requests has the time; the age of the file says nothing about the death."""
    path = leave(tmp_path, dead_process())
    torn = path.with_name(path.name + ".new")
    torn.write_bytes(b"")
    for old in (path, torn):
        os.utime(old, (0, 0))
    assert sweep(tmp_path) == []
    assert path.read_bytes() == b"anything"
    assert sweep(tmp_path) == []
    for old in (path, torn):
        os.utime(old, (time.time() - 601,) * 2)
    assert sweep(tmp_path) == [path, torn]
    assert list(tmp_path.iterdir()) == []


def test_living_writers_keep_their_logs(tmp_path):
    """However old the file is."""
    log = TokenLog(log_path(tmp_path))
    unlocked = leave(tmp_path, ProcessId.of(os.getppid()))  # on a file system without locks
    for _ in range(3):
        os.utime(unlocked, (0, 0))
        os.utime(log.path, (0, 0))
        assert sweep(tmp_path, older_than_s=0) == []
    log.begin("a", "x")
    assert read_log(log.path) == {"a": Logged("x", Generated())}
    log.close()


def test_a_writer_whose_pid_means_nothing_here_is_known_by_its_lock(tmp_path, monkeypatch):
    """In another container on the same machine it has no process that we could see."""
    log = TokenLog(log_path(tmp_path))
    os.utime(log.path, (0, 0))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(ProcessId, "of", classmethod(lambda _, __: None))
        elsewhere.setattr(ProcessId, "alive", lambda _: False)
        for _ in range(2):
            assert sweep(tmp_path, older_than_s=0) == []
        log.close()
        path = leave(tmp_path, ProcessId(os.getpid(), 1))
        assert sweep(tmp_path, older_than_s=0) == []
        assert sweep(tmp_path, older_than_s=0) == [path]


def test_a_reused_pid_saves_the_log_of_its_new_owner_only(tmp_path, monkeypatch):
    """The start time tells the two apart."""
    me = ProcessId.me()
    mine = TokenLog(log_path(tmp_path))
    earlier = leave(tmp_path, ProcessId(me.pid, me.started - 1))
    assert sweep(tmp_path, older_than_s=0) == []
    assert sweep(tmp_path, older_than_s=0) == [earlier]
    assert mine.path.exists()
    mine.close()
    # the same file again, once this pid has passed on to a process that started later
    path = leave(tmp_path, me)
    monkeypatch.setattr(ProcessId, "of", classmethod(lambda _, pid: ProcessId(pid, me.started + 1)))
    monkeypatch.setattr(ProcessId, "alive", lambda it: ProcessId.of(it.pid) == it)
    sweep(tmp_path, older_than_s=0)
    assert sweep(tmp_path, older_than_s=0) == [path]


def test_what_is_not_a_log_of_a_dead_process_of_this_boot_is_left_alone(tmp_path, monkeypatch):
    """Other names, other kinds of file, other boots (or machines), other users."""
    dead = dead_process()
    mark = f"{dead.pid}-{dead.started}"
    ours = log_path(tmp_path, dead)
    foreign = [
        tmp_path / f"tokens-000000000000-{mark}.log",
        tmp_path / f"tokens-{mark}.log",
        tmp_path / f"{ours.name}.txt",
        tmp_path / f"x{ours.name}",
        tmp_path / "notes.log",
    ]
    for path in foreign:
        path.write_bytes(b"")
    target = tmp_path / "target"
    target.write_bytes(b"")
    ours.symlink_to(target)
    folder = log_path(tmp_path, ProcessId(dead.pid, dead.started + 1))
    folder.mkdir()
    before = sorted((path, path.lstat().st_mode) for path in tmp_path.iterdir())
    for _ in range(3):
        assert sweep(tmp_path, older_than_s=0) == []
    assert sorted((path, path.lstat().st_mode) for path in tmp_path.iterdir()) == before
    ours.unlink()
    leave(tmp_path, dead)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)  # the file of another user
    for _ in range(3):
        assert sweep(tmp_path, older_than_s=0) == []


def test_a_missing_directory_has_nothing_to_sweep(tmp_path):
    """And is not made."""
    assert sweep(tmp_path / "missing") == []
    assert list(tmp_path.iterdir()) == []


def test_without_a_boot_id_nothing_is_provable(tmp_path, monkeypatch):
    """Then logs stay where they are."""
    monkeypatch.setattr(owned_files, "boot", lambda: "unknown")
    leave(tmp_path, dead_process())
    for _ in range(3):
        assert sweep(tmp_path, older_than_s=0) == []


def test_the_path_names_the_writer(tmp_path):
    """So that a supervisor finds the log of an actor that it knows by pid and start time."""
    me = ProcessId.me()
    assert log_path(tmp_path) == log_path(tmp_path, me)
    assert log_path(tmp_path).name.endswith(f"-{me.pid}-{me.started}.log")
