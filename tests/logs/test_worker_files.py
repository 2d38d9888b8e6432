"""A driver's text that says only that a worker died: the worker's own file is read, where it lies here."""

import os

import pytest
from typer.testing import CliRunner

from rayguard.cli.app import app

DRIVER = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 91, in <module>
    ray.get([w.step.remote() for w in workers])
ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, ray::Rollout.__init__() (pid={pid}, ip={ip}, actor_id=61c0)
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
WORKER = """\
:job_id:01000000
:actor_name:Rollout
ValueError: To serve at least one request with the models's max seq len (32768), (3.50 GiB KV cache is needed, which is larger than the available KV cache memory (1.10 GiB).
"""
PID = 434344


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A Ray session of this machine, with the file of one worker."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    logs = tmp_path / "ray" / "session_2026-11-30_10-00-00_000000_1" / "logs"
    logs.mkdir(parents=True)
    (logs / f"worker-{'ab' * 28}-01000000-{PID}.err").write_text(WORKER)
    return logs


def told(tmp_path, *, pid=PID, ip="127.0.0.1"):
    """Return what is said of a driver's text, and the notes."""
    log = tmp_path / "driver.log"
    log.write_text(DRIVER.format(pid=pid, ip=ip))
    ran = CliRunner().invoke(app, ["diagnose", str(log)])
    assert ran.exit_code == 0
    return ran.stdout, ran.stderr


def test_the_workers_own_file_has_the_cause(session, tmp_path):
    """It is read, quoted with its name, and said to have been read."""
    shown, notes = told(tmp_path)
    assert "kv_cache_too_small" in shown
    assert f"{PID}.err:3" in shown
    assert "read too" in notes


@pytest.mark.parametrize("other", [{"pid": PID + 1}, {"ip": "198.51.100.7"}])
def test_another_processes_file_is_not_read(session, tmp_path, other):
    """Of another pid, or of another machine: its file is named."""
    shown, notes = told(tmp_path, **other)
    assert "engine_init_failed" in shown
    assert f"worker-*-{other.get('pid', PID)}.err" in shown
    assert "read too" not in notes


def test_the_file_of_another_actor_is_not_read(session, tmp_path):
    """A pid is used again by a later session."""
    (file,) = session.iterdir()
    file.write_text(WORKER.replace("Rollout", "Reward"))
    assert "engine_init_failed" in told(tmp_path)[0]


def test_a_file_that_says_no_more_changes_nothing(session, tmp_path):
    """The text's own verdict stays."""
    (file,) = session.iterdir()
    file.write_text(":actor_name:Rollout\nall is well\n")
    shown, notes = told(tmp_path)
    assert "engine_init_failed" in shown
    assert "no more" in notes


def test_the_newest_session_counts(session, tmp_path):
    """A later one that has the pid."""
    later = session.parents[1] / "session_2026-11-30_12-00-00_000000_2" / "logs"
    later.mkdir(parents=True)
    (later / f"worker-{'cd' * 28}-01000000-{PID}.err").write_text(
        ":actor_name:Rollout\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    os.utime(later, (1, 1))
    assert "cuda_oom" in told(tmp_path)[0]
