"""Which snapshots go, and which stay, without Ray: what is proved to be of no use, and nothing else."""

import os
import threading
import time

import pytest

from rayguard.actors.life import snapshot_files
from rayguard.actors.life.incarnation import Incarnation
from rayguard.actors.life.snapshot_files import path_of, remove_of, sweep
from rayguard.process.snapshot_file import SnapshotFile, read_snapshot
from rayguard.ray_internals import gcs_tables, worker
from rayguard.ray_internals.rows import ActorRow, JobRow

HERE, THERE = "session_here", "session_there"
OURS, OVER = "01000000", "02000000"


class Ray:
    """What Ray knows: the state of each actor, and the jobs that run."""

    def __init__(self):
        self.states, self.running, self.asked = {}, {OURS}, []

    def actor_row(self, actor_id):
        self.asked.append(actor_id)
        state = self.states.get(actor_id)
        return None if state is None else ActorRow(actor_id=actor_id, state=state)

    def jobs(self):
        return [JobRow(job_id=job, running=job in self.running) for job in (OURS, OVER)]


@pytest.fixture(autouse=True)
def knows(monkeypatch, tmp_path):
    """A cluster of the test's own, and its home."""
    ray = Ray()
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setattr(snapshot_files, "session_name", lambda: HERE)
    monkeypatch.setattr(gcs_tables, "actor_row", ray.actor_row)
    monkeypatch.setattr(gcs_tables, "jobs", ray.jobs)
    return ray


def left(actor="a", job=OURS, session=HERE, ending="snapshot", home=None):
    """Leave a file as a dead process does; return its path."""
    folder = snapshot_files.folder() if home is None else home / "snapshots"
    folder.mkdir(mode=0o700, exist_ok=True, parents=True)
    path = folder / f"{actor * 24}{job}-{session}.{ending}"
    path.write_bytes(b"state")
    return path


def test_where_it_lies_says_whose_it_is():
    """The actor with its job, the cluster, and whether it ends with the job."""
    life = Incarnation(actor_id="a" * 24 + OURS)
    assert path_of(life) == left()
    assert path_of(Incarnation(actor_id=life.actor_id, outlives_job=True)) == left(ending="detached")


def test_a_jobs_go_with_it_but_for_detached_actors_and_other_jobs_and_clusters():
    """What another driver, or the same job of another cluster has, is in use."""
    gone = [left(), left("b"), left(ending="snapshot.new")]
    stay = [left(ending="detached"), left(job=OVER), left(session=THERE), left("c", session=f"{HERE}2")]
    remove_of(OURS, HERE, {})
    assert [path.exists() for path in gone] == [False] * 3
    assert [path.exists() for path in stay] == [True] * 4
    remove_of(OURS, "", {})
    remove_of(OURS, HERE, {})


@pytest.mark.parametrize("env", ["rayguard", "env_vars"])
def test_a_jobs_go_from_the_home_that_its_workers_were_given(tmp_path, env):
    """The plugin's key, or a variable of the job: the driver's own may be another."""
    other = tmp_path / "other"
    path = left(home=other)
    said = {"rayguard": {"home": str(other)}, "env_vars": {"RAYGUARD_HOME": str(other)}}
    remove_of(OURS, HERE, {env: said[env]})
    assert not path.exists()


@pytest.mark.parametrize("off", [None, False, True, {}, {"home": None}])
def test_a_configuration_that_says_no_home_is_no_hindrance(off):
    """``False``, ``True`` and an empty mapping are configurations, too."""
    path = left()
    remove_of(OURS, HERE, {"rayguard": off, "env_vars": None})
    assert not path.exists()


@pytest.mark.parametrize("ending", ["snapshot", "detached", "snapshot.new"])
@pytest.mark.parametrize(
    ("state", "job", "goes"),
    [
        ("DEAD", OURS, {"snapshot", "detached", "snapshot.new"}),
        ("DEAD", OVER, {"snapshot", "detached", "snapshot.new"}),
        ("ALIVE", OURS, set()),
        ("RESTARTING", OVER, set()),
        ("PENDING_CREATION", OURS, set()),
        (None, OURS, set()),
        (None, OVER, {"snapshot", "snapshot.new"}),
    ],
)
def test_what_ray_knows_decides(knows, state, job, goes, ending):
    """Dead for good, or forgotten with a job that is over; a detached actor outlives its job."""
    path = left("b", job, ending=ending)
    knows.states[path.name[:32]] = state
    sweep()
    assert path.exists() is (ending not in goes)


def test_of_another_cluster_goes_what_nobody_has_open_for_a_day(knows):
    """From the moment on when it was found so: a file that is mapped does not look used."""
    path, unknown = left(session=THERE, job=OVER), left("b", session="")
    os.utime(path, (0, 0))
    sweep()
    assert path.exists(), "found now"
    yesterday = time.time() - 86_401
    os.utime(path, (yesterday, yesterday))
    sweep()
    assert not path.exists()
    assert unknown.exists()
    assert knows.asked == []


def test_of_another_cluster_stays_what_is_written():
    """Its writer holds the lock for as long as it lives."""
    path = left(session=THERE)
    path.unlink()
    written = SnapshotFile(path)
    written.write([b"state"])
    for _ in range(2):
        sweep()
        yesterday = time.time() - 86_401
        os.utime(path, (yesterday, yesterday))
    assert read_snapshot(path).data == b"state"


def test_foreign_names_stay_and_are_asked_about_nowhere(knows):
    """A name that we do not give is none of ours."""
    folder = left().parent
    strange = [folder / name for name in ("notes.txt", "b-x.snapshot", f"{'b' * 32}.snapshot")]
    for path in strange:
        path.write_bytes(b"")
    sweep()
    assert all(path.exists() for path in strange)
    assert knows.asked == ["a" * 24 + OURS]


def test_a_sweep_is_bounded(knows):
    """However many lie there, 64 are asked about; another sweep looks at others."""
    for n in range(100):
        left(f"{n:02x}"[:1], job=f"{n:08x}")
    sweep()
    assert len(knows.asked) == 64


def test_a_sweep_runs_aside_and_needs_no_folder():
    """An actor has just begun, and waits for nothing."""
    sweep()
    path = left(job=OVER)
    snapshot_files.sweep_aside()
    deadline = time.monotonic() + 30.0
    while path.exists():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_what_was_removed_is_not_made_anew_by_who_grows():
    """A driver leaves in the middle of a first step, which makes an optimizer's state."""
    path = left()
    kept = SnapshotFile(path)
    kept.write([b"small"])
    remove_of(OURS, HERE, {})
    kept.write([b"large" * 10_000])
    kept.write([b"small"])
    assert list(path.parent.iterdir()) == []


# -- the end of a job


class Driver:
    """Ray as a driver has it: connected until ``disconnect`` is called."""

    SCRIPT_MODE = 0

    def __init__(self, mode):
        self.mode, self.connected, self.runtime_env = mode, True, {"env_vars": {}}

    def get_runtime_context(self):
        return self

    def get_job_id(self):
        return OURS

    def disconnect(self, *, exiting):
        self.connected = False


@pytest.mark.parametrize("mode", [0, 1])
def test_a_driver_removes_them_once_it_has_left_its_job(monkeypatch, mode):
    """A worker never does; and what another one's last words raise keeps nobody from theirs."""
    ray, path = Driver(mode), left()

    def fail():
        assert path.exists(), "not before the job's end"
        raise OSError("a full disk")

    for module in (worker, snapshot_files):
        monkeypatch.setattr(module, "connected_ray", lambda: ray if ray.connected else None)
    monkeypatch.setattr(worker._worker, "found", lambda: {"worker": ray})
    monkeypatch.setattr(worker, "_before_leaving", dict.fromkeys((fail, snapshot_files._of_this_job, fail)))
    leave = worker._leaving(ray.disconnect)
    leave(exiting=False)
    assert path.exists() is (mode == 1)
    path.touch()
    leave(exiting=True)
    assert path.exists(), "there was no job to leave"
