"""The status page: whole, fresh, of this process only, and tidied up only when its process is provably dead."""

import json
import multiprocessing
import os
import signal
import stat
import threading
import time

import pytest

from rayguard.process.identity import ProcessId
from rayguard.recovery import published
from rayguard.recovery.incident import Incident
from rayguard.recovery.status import KEEP_DEAD_S, StatusPage, Who, read_pages
from rayguard.recovery.tally import TALLY, EngineTally, Tally

SPAWN = multiprocessing.get_context("spawn")
DEADLINE_S = 60
WHO = Who(actor_class="Rollout", actor_id="a1", job_id="01", incarnation=2)


class ManualClock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def tally():
    tally = Tally()
    engine = tally.engine("rollout")
    engine.epoch, engine.rung, engine.restarts = 2, 1, 2
    engine.settings, engine.serving, engine.weight_version = ("chunked_prefill_off",), True, "7"
    engine.requests_running, engine.tokens_generated = 3, 400
    tally.opened(Incident(id="i9", kind="engine_dead", scope="engine", cause="x"))
    tally.metrics_url = "http://127.0.0.1:1/metrics"
    return tally


@pytest.fixture
def page(tmp_path, tally, clock):
    return StatusPage(tmp_path, WHO, tally=tally, clock=clock)


def test_a_page_says_everything(tmp_path, page):
    """What a person asks first, without connecting to anything."""
    assert page.publish()
    (read,) = read_pages(tmp_path)
    assert (read.pid, read.who, read.alive) == (os.getpid(), WHO, True)
    assert read.engines == (
        EngineTally(
            name="rollout",
            epoch=2,
            rung=1,
            settings=("chunked_prefill_off",),
            serving=True,
            weight_version="7",
            requests_running=3,
            tokens_generated=400,
            restarts=2,
        ),
    )
    assert (read.last_incident, read.metrics_url) == ("i9", "http://127.0.0.1:1/metrics")
    assert abs(read.at - time.time()) < 60


def test_a_page_is_for_us_alone_and_leaves_nothing_else(tmp_path, page):
    """One file, 0600, in a directory 0700."""
    assert page.publish()
    (path,) = (tmp_path / "status").iterdir()
    me = ProcessId.me()
    assert path.name == f"{me.pid}-{me.started}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "status").stat().st_mode) == 0o700


def tokens(home):
    return read_pages(home)[0].engines[0].tokens_generated


def test_it_is_written_on_change_and_at_most_once_a_second(tmp_path, page, tally, clock):
    """A process that generates thousands of tokens a second still writes once."""
    assert page.publish()
    tally.engine("rollout").tokens_generated = 500
    clock.now += 0.9
    assert not page.publish(), "not due, so the disk is behind"
    assert tokens(tmp_path) == 400
    clock.now += 0.2
    assert page.publish()
    assert tokens(tmp_path) == 500


def test_nothing_new_writes_nothing(tmp_path, page, clock):
    """An idle process leaves the disk alone."""
    page.publish()
    (path,) = (tmp_path / "status").iterdir()
    before = path.stat().st_ino, path.stat().st_mtime_ns
    clock.now += 100
    assert page.publish()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_closing_leaves_the_last_state(tmp_path, page, tally):
    """Also when the last write was a moment ago."""
    page.publish()
    tally.engine("rollout").serving = False
    page.close()
    assert not read_pages(tmp_path)[0].engines[0].serving


def test_its_thread_publishes_and_ends(tmp_path, tally):
    """``start`` is all that a process without a loop has to call."""
    page = StatusPage(tmp_path, WHO, tally=tally, every_s=0.02)
    others = [t.name for t in threading.enumerate()].count("rayguard-status")
    page.start()
    page.start()
    try:
        wait_until(lambda: read_pages(tmp_path) and tokens(tmp_path) == 400)
        tally.engine("rollout").tokens_generated = 500
        wait_until(lambda: tokens(tmp_path) == 500)
        assert [t.name for t in threading.enumerate()].count("rayguard-status") == others + 1
    finally:
        page.close()
    assert [t.name for t in threading.enumerate()].count("rayguard-status") == others


def wait_until(true):
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        pause.wait(0.005)


def rewrite(home, ready):
    tally = Tally()
    page = StatusPage(home, WHO, tally=tally, every_s=0.0)
    for n in range(1_000_000):
        tally.engine("rollout").weight_version = "x" * (n % 50_000)
        tally.engine("rollout").tokens_generated = n
        assert page.publish()
        ready.set()


def test_a_reader_never_sees_half_a_page_and_learns_of_a_death(tmp_path):
    """Replaced in one step; SIGKILL in the middle leaves the last page, and the reader says: ended."""
    ready = SPAWN.Event()
    writer = SPAWN.Process(target=rewrite, args=(tmp_path, ready), daemon=True)
    writer.start()
    assert ready.wait(DEADLINE_S)
    for _ in range(200):
        (page,) = read_pages(tmp_path)
        assert page.alive is True
        assert len(page.engines[0].weight_version) == page.engines[0].tokens_generated % 50_000
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(DEADLINE_S)
    (page,) = read_pages(tmp_path)
    assert (page.pid, page.alive) == (writer.pid, False)


def test_pages_that_are_none_are_skipped(tmp_path, page):
    """Foreign files, links, pipes, pages under another name."""
    page.publish()
    directory = tmp_path / "status"
    (path,) = directory.iterdir()
    (directory / "1-1.json").write_text("{")
    (directory / "2-2.json").write_text(path.read_text())
    (directory / "3-3.json").symlink_to(path)
    os.mkfifo(directory / "4-4.json")
    (directory / "5-5.json").mkdir()
    (directory / "notes.txt").write_text("mine")
    assert [one.pid for one in read_pages(tmp_path)] == [os.getpid()]
    assert len(list(directory.iterdir())) == 7, "and nothing of it is removed"


def test_no_pages_no_trace(tmp_path):
    """Asking makes nothing."""
    assert read_pages(tmp_path / "nothing") == []
    assert not (tmp_path / "nothing").exists()


def leave(home, page, **changes):
    data = {**page.to_json(), **changes}
    path = home / "status" / f"{data['pid']}-{data['started']}.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def dead():
    """Return the identity of a process that has ended, and has been reaped."""
    process = SPAWN.Process(target=int)
    process.start()
    identity = ProcessId.of(process.pid)
    process.join(DEADLINE_S)
    return {"pid": identity.pid, "started": identity.started}


@pytest.mark.parametrize(
    ("age_s", "elsewhere", "stays"),
    [
        (KEEP_DEAD_S + 60, False, False),
        (KEEP_DEAD_S - 60, False, True),  # the last state is wanted after the job
        (KEEP_DEAD_S + 60, True, True),  # another machine's pid, on a shared disk: nobody here can tell
    ],
)
def test_only_the_provably_dead_are_left_out(tmp_path, page, dead, age_s, elsewhere, stays):
    """Same boot, same pid namespace, gone, and old."""
    page.publish()
    (ours,) = read_pages(tmp_path)
    world = "another boot" if elsewhere else ours.world
    leave(tmp_path, ours, **dead, world=world, at=time.time() - age_s)
    found = {one.pid: one.alive for one in read_pages(tmp_path)}
    assert found == {os.getpid(): True} | ({dead["pid"]: None if elsewhere else False} if stays else {})


def test_a_reused_pid_is_another_process(tmp_path, page):
    """The same pid with another start time has ended, however alive the pid is."""
    page.publish()
    (ours,) = read_pages(tmp_path)
    leave(tmp_path, ours, started=ours.started - 1, at=time.time() - 10)
    assert {one.started: one.alive for one in read_pages(tmp_path)} == {
        ours.started: True,
        ours.started - 1: False,
    }


def test_an_old_page_of_a_living_process_stays(tmp_path, page):
    """Nothing changed for days: that is no death."""
    page.publish()
    (ours,) = read_pages(tmp_path)
    path = leave(tmp_path, ours, at=time.time() - 10 * KEEP_DEAD_S)
    assert [one.alive for one in read_pages(tmp_path)] == [True]
    assert path.exists()


@pytest.mark.parametrize("broken", ["file in the way", "weight version"])
def test_what_goes_wrong_is_said_and_counted_once(tmp_path, page, tally, clock, caplog, broken):
    """A page is never worth an exception; when it works again, it is written."""
    before = TALLY.guard_errors["status"]
    if broken == "weight version":
        tally.engine("rollout").weight_version = object()
    else:
        (tmp_path / "status").write_text("")
    for _ in range(3):
        clock.now += 2
        assert not page.publish()
    assert TALLY.guard_errors["status"] == before + 1
    assert len(caplog.records) == 1
    if broken == "weight version":
        tally.engine("rollout").weight_version = "8"
    else:
        (tmp_path / "status").unlink()
    clock.now += 2
    assert page.publish()
    assert read_pages(tmp_path)


def test_a_hanging_disk_does_not_hang_the_caller(page, monkeypatch):
    """Another thread is stuck in a write: the caller goes on after its deadline."""
    monkeypatch.setattr(published, "_BUSY_DEADLINE_S", 0.05)
    with page._lock:
        assert not page.publish()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_page_alone(tmp_path, page, clock):
    """It is another process, with a page of its own or none."""
    page.publish()
    child = os.fork()
    if child == 0:
        clock.now += 10
        os._exit(1 if page.publish() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read_pages(tmp_path)[0].engines


def test_a_page_says_whether_its_process_is_watched_or_guarded(tmp_path):
    """A worker is watched from its start, and guarded once a guarded class lives in it."""
    page = StatusPage(tmp_path, Who(actor_class="A", watched=True))
    assert page.publish_now()
    assert read_pages(tmp_path)[0].who.watched
    page.guarded()
    assert page.publish_now()
    assert not read_pages(tmp_path)[0].who.watched
