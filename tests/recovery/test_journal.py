"""The journal against everything that loses lines: other writers, rotation, SIGKILL, full disks."""

import dataclasses
import errno
import fcntl
import json
import logging
import multiprocessing
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.errors import ConfigError
from rayguard.recovery import journal as journal_module
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.journal import Journal, default_journal
from rayguard.recovery.tail import Tail
from rayguard.recovery.tally import TALLY
from tests.open_files import open_files

SPAWN = multiprocessing.get_context("spawn")
DEADLINE_S = 120  # a machine with ten jobs for each core still finishes


def incident(name="i1", **changes):
    values = {"id": name, "kind": "engine_dead", "scope": "engine", "cause": "killed", "detected_at": 1.0}
    return Incident(**{**values, **changes})


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "home")


@pytest.fixture
def errors():
    """Count the errors of the journal that a test makes."""
    before = TALLY.guard_errors["journal"]
    return lambda: TALLY.guard_errors["journal"] - before


def start(target, *arguments):
    process = SPAWN.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def finish(processes):
    for process in processes:
        process.join(DEADLINE_S)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def test_what_is_written_is_read(journal):
    """Every field survives, also a tuple, a line end and a broken character."""
    whole = incident(
        evidence=("Traceback:\n  boom", "\udcff ü"),
        settings=("eager",),
        detect_s=0.1,
        closed_at=3.0,
        outcome=Outcome.RECOVERED,
    )
    assert journal.write(whole)
    assert journal.read() == [dataclasses.replace(whole, evidence=("Traceback:\n  boom", "? ü"))]


@given(st.text(), st.text(), st.floats(0, 1e10), st.integers(0, 10**9))
def test_any_text_survives(tmp_path_factory, cause, evidence, at, tokens):
    """Messages of exceptions hold anything."""
    journal = Journal(tmp_path_factory.mktemp("journal"))
    whole = incident(cause=cause, evidence=(evidence,), detected_at=at, tokens_lost=tokens)
    assert journal.write(whole)
    assert journal.read_with_errors() == ([whole], 0)


def test_an_incident_is_read_once_in_its_last_state(journal):
    """Opened, closed: one incident; the oldest comes first."""
    journal.write(incident("late", detected_at=20.0))
    journal.write(incident("early", detected_at=10.0))
    journal.write(incident("early", detected_at=10.0, outcome=Outcome.RECOVERED, recover_s=2.0))
    assert [(one.id, one.outcome.value) for one in journal.read()] == [
        ("early", "recovered"),
        ("late", "open"),
    ]


def test_torn_and_foreign_lines_are_skipped_and_counted(journal):
    """One bad line costs itself and nothing else."""
    journal.write(incident("before"))
    with (journal.directory / "incidents.jsonl").open("ab") as file:
        file.write(b'[1]\n\n{"id": 3}\nhello\n{"kind": "engine_dead"}\n\xff\xfe\n')
        file.write(json.dumps({**incident("newer").to_json(), "outcome": "ascended"}).encode() + b"\n")
        file.write(json.dumps({**incident("with more").to_json(), "more": 1}).encode() + b"\n")
        file.write(b'{"id": "torn')
    journal.write(incident("after"))
    found, skipped = journal.read_with_errors()
    assert [one.id for one in found] == ["before", "with more", "after"]
    assert skipped == 7


def test_files_are_for_us_alone(journal):
    """A cause may quote a prompt."""
    journal.write(incident())
    assert {stat.S_IMODE(path.stat().st_mode) for path in journal.directory.iterdir()} == {0o600}
    assert stat.S_IMODE(journal.directory.stat().st_mode) == 0o700


def write_many(directory, writer, number, max_bytes, keep):
    journal = Journal(directory, max_bytes=max_bytes, keep=keep)
    for n in range(number):
        assert journal.write(incident(f"{writer}-{n}", evidence=("x" * random.Random(n).randrange(3_000),)))


def test_eight_processes_write_one_file(journal):
    """No line is lost or mixed with another."""
    finish([start(write_many, journal.directory, writer, 40, 1 << 30, 1) for writer in range(8)])
    found, skipped = journal.read_with_errors()
    assert {one.id for one in found} == {f"{writer}-{n}" for writer in range(8) for n in range(40)}
    assert skipped == 0


def test_rotation_loses_nothing_beside_writers_and_readers(journal):
    """Four writers rotate every few lines; readers see each line from the moment it was written on."""
    kept = 1_000  # more than can be filled: whatever is missing was lost
    writers = [start(write_many, journal.directory, writer, 60, 8_000, kept) for writer in range(4)]
    followed, stop = [], threading.Event()
    records = journal.follow(stop, poll_s=0.001)
    follower = threading.Thread(target=lambda: followed.extend(records))
    follower.start()
    seen, reads = set(), 0
    while any(writer.is_alive() for writer in writers):
        now, skipped = journal.read_with_errors()
        assert skipped <= 1, "at most the line that is being written"
        assert seen <= {one.id for one in now}, "a line that was there is gone"
        seen, reads = {one.id for one in now}, reads + 1
    finish(writers)
    stop.set()
    follower.join(DEADLINE_S)
    everything = {f"{writer}-{n}" for writer in range(4) for n in range(60)}
    assert {one.id for one in journal.read()} == everything
    assert sorted(one.id for one in followed) == sorted(everything), "followed: each exactly once"
    assert len(list(journal.directory.glob("incidents.*.jsonl"))) > 10
    assert reads > 3


def test_rotation_keeps_the_newest(tmp_path):
    """The disk is bounded: ``keep`` files and the current one."""
    journal = Journal(tmp_path, max_bytes=2_000, keep=2)
    for n in range(60):
        assert journal.write(incident(f"{n:02}", detected_at=float(n + 1)))
    names = sorted(path.name for path in tmp_path.glob("*.jsonl"))
    assert names == ["incidents.1.jsonl", "incidents.2.jsonl", "incidents.jsonl"]
    assert all(path.stat().st_size <= 2_000 for path in tmp_path.glob("*.jsonl"))
    read = [one.id for one in journal.read()]
    assert read == [f"{n:02}" for n in range(60 - len(read), 60)]
    assert len(read) > 3


def test_a_record_larger_than_a_file_is_written(tmp_path):
    """It gets a file of its own rather than being lost, and makes no endless row of empty ones."""
    journal = Journal(tmp_path, max_bytes=100, keep=3)
    assert journal.write(incident("a"))
    assert journal.write(incident("b"))
    assert [one.id for one in journal.read()] == ["a", "b"]


def test_an_interrupted_rotation_loses_nothing(tmp_path):
    """Killed between two renames: a gap in the numbers, which the next rotation closes."""
    journal = Journal(tmp_path, max_bytes=300, keep=3)
    for n in range(4):
        journal.write(incident(str(n), detected_at=float(n + 1)))
    assert sorted(path.name for path in tmp_path.glob("*.*.jsonl")) == [
        f"incidents.{n}.jsonl" for n in (1, 2, 3)
    ]
    (tmp_path / "incidents.3.jsonl").unlink()
    (tmp_path / "incidents.2.jsonl").rename(tmp_path / "incidents.3.jsonl")  # here it was killed
    journal.write(incident("4", detected_at=5.0))
    assert [one.id for one in journal.read()] == ["1", "2", "3", "4"]


def write_for_ever(directory, said):
    journal, n = Journal(directory, max_bytes=40_000, keep=1_000), 0
    with Path(said).open("ab", buffering=0) as done:
        while True:
            assert journal.write(incident(f"{os.getpid()}-{n}", evidence=("x" * (n % 7) * 4_000,)))
            done.write(f"{os.getpid()}-{n}\n".encode())
            n += 1


def test_sigkill_at_any_instant_loses_no_complete_line(journal, tmp_path):
    """Whatever ``write`` said True to is read, and the next process goes on."""
    chance, said = random.Random(7), tmp_path / "said"
    for _ in range(12):
        child = start(write_for_ever, journal.directory, said)
        wait_until(lambda pid=child.pid: said.exists() and f"{pid}-".encode() in said.read_bytes())
        threading.Event().wait(chance.uniform(0.0, 0.05))
        os.kill(child.pid, signal.SIGKILL)
        child.join(DEADLINE_S)
    promised = set(said.read_text().splitlines())
    found, skipped = journal.read_with_errors()
    assert promised <= {one.id for one in found}
    assert len(found) <= len(promised) + 12
    assert skipped <= 12
    assert journal.write(incident("afterwards"))
    assert "afterwards" in {one.id for one in journal.read()}


def wait_until(true, seconds=DEADLINE_S):
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        pause.wait(0.005)


def test_a_frozen_writer_holds_nobody_up(journal, monkeypatch):
    """Its lock is waited for with a deadline; after that the line is written all the same."""
    monkeypatch.setattr(journal_module, "_LOCK_DEADLINE_S", 0.2)
    journal.write(incident("before"))
    with (journal.directory / "incidents.jsonl").open("ab") as file:
        file.write(b'{"id": "torn by the frozen one')
    with (journal.directory / "incidents.lock").open("rb") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        began = time.monotonic()
        assert journal.write(incident("after"))
        assert time.monotonic() - began < 2.0
    assert [one.id for one in journal.read()] == ["before", "after"]


def full_disk(directory):
    journal = Journal(directory)
    assert journal.write(incident("before"))
    size = (Path(directory) / "incidents.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, size + 4_000))
    assert not journal.write(incident("torn"))
    assert not journal.write(incident("refused"))
    assert TALLY.guard_errors["journal"] == 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4_000, size + 4_000))
    assert journal.write(incident("after"))


def test_a_file_that_cannot_grow_costs_only_what_did_not_fit(journal):
    """The kernel cuts the write short, then refuses it; with room again, the next line is whole."""
    finish([start(full_disk, journal.directory)])
    found, skipped = journal.read_with_errors()
    assert ([one.id for one in found], skipped) == (["before", "after"], 1)


FULL_TMPFS = """
import sys
from pathlib import Path
from rayguard.recovery.incident import Incident
from rayguard.recovery.journal import Journal
journal = Journal(Path(sys.argv[1]) / "home")
def write(n):
    return journal.write(Incident(id=n, kind="disk_full", scope="node", cause="x" * 3000))
assert write("first")
with open(sys.argv[1] + "/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(b"x" * 4096)
    except OSError:
        pass
results = [write(str(n)) for n in range(5)]
assert not all(results) and not results[-1], results
(Path(sys.argv[1]) / "filler").unlink()
assert write("last")
read = {one.id for one in journal.read()}
assert {"first", "last"} <= read and read >= {str(n) for n in range(5) if results[n]}, read
"""


def test_a_full_disk_is_survived(tmp_path):
    """A real file system without a free block."""
    mount = f"mount -t tmpfs -o size=64k,mode=700 none {tmp_path} && exec {sys.executable} -c '{FULL_TMPFS}' {tmp_path}"
    flags = ["--mount"] if os.getuid() == 0 else ["--user", "--map-root-user", "--mount"]
    if subprocess.run(
        ["unshare", *flags, "sh", "-c", f"mount -t tmpfs none {tmp_path}"], capture_output=True, check=False
    ).returncode:
        pytest.skip("this machine lets us mount no tmpfs; RLIMIT_FSIZE is tested above")
    ran = subprocess.run(
        ["unshare", *flags, "sh", "-c", mount],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("cannot be written") == 1, "said once"


class Hostile:
    def __deepcopy__(self, memo):
        raise RuntimeError("do not copy me")


@pytest.mark.parametrize(
    "evidence",
    [(object(),), (float("nan"),), (Hostile(),), ({1: b"bytes"},)],
    ids=["object", "nan", "hostile", "bytes"],
)
def test_what_cannot_be_serialised_is_refused(journal, errors, evidence):
    """Half an incident is never written."""
    assert journal.write(incident("good"))
    assert journal.write(incident(evidence=evidence)) is False
    assert errors() == 1
    assert journal.read_with_errors() == ([incident("good")], 0)


def _file_in_the_way(home):
    home.parent.mkdir(exist_ok=True)
    home.write_text("")


def _link_in_the_way(home):
    home.mkdir(0o700)
    (home / "incidents.jsonl").symlink_to("/dev/full")


def _device(home):
    home.mkdir(0o700)
    os.mknod(home / "incidents.jsonl", stat.S_IFCHR | 0o600, os.makedev(1, 7))  # /dev/full


def _pipe(home):
    home.mkdir(0o700)
    os.mkfifo(home / "incidents.jsonl")


def _everybodys(home):
    home.mkdir()
    home.chmod(0o777)


@pytest.mark.parametrize("trap", [_file_in_the_way, _link_in_the_way, _device, _pipe, _everybodys])
def test_a_place_that_cannot_be_used_is_said_once_and_counted(tmp_path, errors, caplog, trap):
    """Never an exception, never a wait, never a write through somebody's trap."""
    if trap is _device and os.getuid() != 0:
        pytest.skip("only root can make a device")
    try:
        trap(tmp_path / "home")
    except PermissionError:
        pytest.skip("this machine lets us make no device")
    journal = Journal(tmp_path / "home")
    with caplog.at_level(logging.ERROR, logger="rayguard"):
        assert [journal.write(incident()) for _ in range(3)] == [False] * 3
    assert errors() == 3
    assert len(caplog.records) == 1
    assert str(journal.directory) in caplog.text


def test_a_read_only_place_is_survived(tmp_path, errors, monkeypatch):
    """Root may write anywhere, so the kernel's answer is given by hand."""
    real = os.open

    def read_only(path, flags, *rest, **more):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    assert Journal(tmp_path).write(incident()) is False
    assert errors() == 1


def test_a_removed_directory_comes_back(journal):
    """Somebody tidied up in the middle of the job."""
    journal.write(incident("gone"))
    for path in journal.directory.iterdir():
        path.unlink()
    journal.directory.rmdir()
    assert journal.read() == []
    assert journal.write(incident("new"))
    assert [one.id for one in journal.read()] == ["new"]


def test_reading_leaves_no_trace_and_no_descriptor(journal):
    """A reader may be another user, on a disk that is mounted read-only."""
    assert journal.read() == []
    assert not journal.directory.exists()
    journal.write(incident())
    files, before = sorted(journal.directory.iterdir()), open_files()
    for _ in range(3):
        journal.read()
    assert sorted(journal.directory.iterdir()) == files
    assert not open_files() - before


def test_follow_begins_now_and_yields_each_record(journal):
    """A live view sees the opening and the closing, and the last one before the end."""
    journal.write(incident("past"))
    stop = threading.Event()
    records = journal.follow(stop, poll_s=0.01)
    journal.write(incident("new"))
    assert next(records).outcome is Outcome.OPEN
    journal.write(incident("new", outcome=Outcome.RECOVERED))
    assert next(records).outcome is Outcome.RECOVERED
    journal.write(incident("last"))
    stop.set()
    assert [one.id for one in records] == ["last"]


def test_a_tail_waits_for_the_end_of_a_line(journal):
    """A record that is being written is no error, and is yielded when it is whole."""
    journal.write(incident("first"))
    line = (journal.directory / "incidents.jsonl").read_bytes().replace(b"first", b"second")
    with (
        Tail(journal.directory) as tail,
        (journal.directory / "incidents.jsonl").open("ab", buffering=0) as file,
    ):
        assert [one.id for one in tail.poll()] == ["first"]
        file.write(line[:20])
        assert tail.poll() == []
        file.write(line[20:])
        assert [one.id for one in tail.poll()] == ["second"]
        assert tail.errors == 0


@pytest.mark.parametrize("bad", [{"max_bytes": 0}, {"keep": 0}])
def test_a_journal_that_would_keep_nothing_is_refused(tmp_path, bad):
    """At construction, not at the first incident."""
    with pytest.raises(ConfigError):
        Journal(tmp_path, **bad)


def test_the_default_journal_follows_the_settings(monkeypatch, tmp_path):
    """One per process and home; changing the home is honoured."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "a"))
    first = default_journal()
    assert first is default_journal()
    assert first.directory == tmp_path / "a"
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "b"))
    assert default_journal().directory == tmp_path / "b"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_its_own_default_journal(monkeypatch, tmp_path):
    """What the parent has logged already is news from the child."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    parents = default_journal()
    child = os.fork()
    if child == 0:
        ours = default_journal()
        os._exit(0 if ours is not parents and ours.write(incident("from the child")) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [one.id for one in parents.read()] == ["from the child"]


def test_a_bad_setting_does_not_cost_the_journal(monkeypatch, tmp_path, caplog):
    """At a fault it is too late to complain: say it, count it, use the default place."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "ninety")
    journal_module._settings_unusable.cache_clear()
    before = TALLY.guard_errors["config"]
    assert default_journal().write(incident())
    assert default_journal().directory == tmp_path / "rayguard"
    assert TALLY.guard_errors["config"] == before + 1
    assert "RAYGUARD_METRICS_PORT" in caplog.text


def test_a_rotation_in_the_middle_of_a_look_hides_nothing(tmp_path):
    """Between finding the files and opening them, each moves on by one: the one that moved is not skipped."""
    journal = Journal(tmp_path, max_bytes=300, keep=5)
    journal.write(incident("a", detected_at=1.0))
    journal.write(incident("b", detected_at=2.0))

    class Disturbed(Tail):
        calm = False

        def _open(self, name):
            if not self.calm:
                self.calm = True
                assert journal.write(incident("c", detected_at=3.0))
            super()._open(name)

    with Disturbed(tmp_path) as tail:
        assert [one.id for one in tail.poll()] == ["a", "b", "c"]
    assert (tmp_path / "incidents.2.jsonl").exists(), "the disturbance was a rotation"
