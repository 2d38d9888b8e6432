"""The numbers file of a process: there in time, private, its own, and cheap."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rayguard.actors.life import publishing
from rayguard.actors.life.incarnation import Incarnation
from rayguard.metrics import sources
from rayguard.metrics.exporter import TallyCollector
from rayguard.metrics.instruments.instrument import Instrument, MetricType
from rayguard.metrics.node.numbers_file import NumbersPage, directory_of
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.process.pid_namespace import world
from rayguard.recovery import published
from rayguard.recovery.status import Who
from rayguard.recovery.tally import TALLY

DEADLINE_S = 60
WHO = Who(actor_class="Rollout", actor_id="a1", job_id="01000000")
SHOWN = (
    Instrument(
        name="rayguard_job_stories_open",
        type=MetricType.GAUGE,
        help="X.",
        labels=("kind",),
        read=lambda said: [(("crash",), said)],
    ),
)


def read(home, pid=None):
    (path,) = directory_of(home).glob(f"{pid or os.getpid()}-*.json")
    return json.loads(path.read_text())


def sample(page, name):
    (family,) = [one for one in page["families"] if one["name"] == name]
    return family["samples"]


def wait_until(true):
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        pause.wait(0.01)


@pytest.fixture
def page(tmp_path):
    return NumbersPage(tmp_path, WHO, every_s=0.0)


@pytest.fixture
def added():
    value = {"now": 1.0}
    sources.show("test", SHOWN, lambda: value["now"])
    yield value
    sources.hide("test")


def test_it_says_who_and_what(tmp_path, page, monkeypatch):
    """All that the process's own endpoint would show, and whose it is."""
    monkeypatch.setitem(TALLY.calls, "Rollout", 9)
    assert page.publish()
    said, me = read(tmp_path), ProcessId.me()
    assert (said["pid"], said["started"], said["world"]) == (me.pid, me.started, world())
    assert said["who"] == {
        "actor_class": "Rollout",
        "actor_id": "a1",
        "job_id": "01000000",
        "incarnation": 0,
        "watched": False,
    }
    assert [{"target": "Rollout"}, 9] in sample(said, "rayguard_calls_total")
    assert {"bounds", "counts", "sum"} == set(sample(said, "rayguard_detection_seconds")[0][1])
    assert {one["name"] for one in said["families"]} == {
        family.name + "_total" * (family.type == "counter") for family in TallyCollector().describe()
    }
    assert (directory_of(tmp_path) / f"{owner_mark(me)}.json").stat().st_mode & 0o777 == 0o600
    assert directory_of(tmp_path).stat().st_mode & 0o777 == 0o700


def test_what_is_added_is_in_the_file_and_at_the_endpoint(tmp_path, page, added):
    """One registration; taken back, it is gone from both."""

    def at_the_endpoint():
        return [family for family in TallyCollector().collect() if family.name == SHOWN[0].name]

    page.publish()
    assert sample(read(tmp_path), SHOWN[0].name) == [[{"kind": "crash"}, 1.0]]
    assert at_the_endpoint()[0].samples[0].value == 1.0
    sources.hide("test")
    page.publish()
    assert SHOWN[0].name not in str(read(tmp_path))
    assert not at_the_endpoint()


def test_a_source_that_fails_costs_the_others_nothing(tmp_path, page, caplog):
    """It is logged and counted; what the process counted itself is written."""
    sources.show("test", SHOWN, lambda: 1 / 0)
    before = TALLY.guard_errors["metrics"]
    try:
        page.publish()
    finally:
        sources.hide("test")
    assert TALLY.guard_errors["metrics"] > before
    assert sample(read(tmp_path), "rayguard_info")
    assert "ZeroDivisionError" in caplog.text


def test_it_is_written_when_something_changed(tmp_path, page, added):
    """Nothing new leaves the disk alone; another owner is news."""
    path = directory_of(tmp_path) / f"{owner_mark(ProcessId.me())}.json"

    def written():
        assert page.publish()
        return path.stat().st_ino, path.stat().st_mtime_ns

    first = written()
    assert written() == first
    added["now"] = 2.0
    second = written()
    assert second != first
    page.who = Who(actor_class="Trainer", job_id="01000000")
    assert written() != second
    assert read(tmp_path)["who"]["actor_class"] == "Trainer"


PROCESS = """
import os, sys, signal, threading
from rayguard.actors.life import publishing
from rayguard.actors.life.incarnation import Incarnation
from rayguard.recovery.tally import TALLY
publishing.show_numbers(Incarnation(job_id="01000000"), "Rollout")
TALLY.calls["late"] += 3
{end}
"""


def process(home, end):
    return subprocess.run(
        [sys.executable, "-c", PROCESS.format(end=end)],
        env={**os.environ, "RAYGUARD_HOME": str(home)},
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "end", ["", "sys.exit(3)", "raise ValueError", "presence.leave_numbers(); os._exit(1)"]
)
def test_the_last_numbers_are_left_at_the_end(tmp_path, end):
    """Counted a moment before: at an end that runs handlers, and at one that was told of."""
    process(tmp_path, end)
    (path,) = directory_of(tmp_path).glob("*-*.json")
    assert [{"target": "late"}, 3] in sample(json.loads(path.read_text()), "rayguard_calls_total")


def test_its_thread_writes_and_ends(tmp_path, added):
    """Every few seconds, and once more when it is closed."""
    before = set(threading.enumerate())  # a pool of another test has one of its own
    page = NumbersPage(tmp_path, WHO, every_s=0.02)
    page.start()
    try:
        wait_until(lambda: list(directory_of(tmp_path).glob("*-*.json")))
        added["now"] = 5.0
        wait_until(lambda: sample(read(tmp_path), SHOWN[0].name) == [[{"kind": "crash"}, 5.0]])
    finally:
        page.close()
    assert "rayguard-numbers" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_a_reader_sees_whole_files_only_also_after_sigkill(tmp_path):
    """Replaced in one step, as often as it is killed in the middle of it."""
    endless = "page = presence._numbers\nfor n in range(10**9):\n TALLY.calls[str(n % 500)] += 1\n page.publish_now()"
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", PROCESS.format(end=endless)],
            env={**os.environ, "RAYGUARD_HOME": str(tmp_path)},
        )
        try:
            pattern = f"{writer.pid}-*.json"
            wait_until(lambda pattern=pattern: list(directory_of(tmp_path).glob(pattern)))
            for _ in range(100):
                assert read(tmp_path, writer.pid)["pid"] == writer.pid
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait(DEADLINE_S)
        assert read(tmp_path, writer.pid)["families"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_numbers_alone(tmp_path, page, added):
    """And shows nothing that its parent added."""
    page.publish()
    before = read(tmp_path)
    child = os.fork()
    if child == 0:
        gone = not sources._added
        os._exit(1 if page.publish_now() or not gone else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(tmp_path) == before


def test_a_full_disk_is_one_error(tmp_path, page, added, monkeypatch, caplog):
    """Counted once while it lasts, said once; written when there is room again."""
    before = TALLY.guard_errors["numbers"]

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(published, "replace_file", full)
        for n in range(5):
            added["now"] = n
            assert not page.publish()
    assert TALLY.guard_errors["numbers"] == before + 1
    assert len(caplog.records) == 1
    assert page.publish()
    assert sample(read(tmp_path), SHOWN[0].name) == [[{"kind": "crash"}, 4]]


def test_a_link_in_its_way_is_not_followed(tmp_path, page):
    """Set by whom ever: it would choose the file that we write."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory_of(tmp_path).mkdir(mode=0o700)
    (directory_of(tmp_path) / f".{owner_mark(ProcessId.me())}.tmp").symlink_to(victim)
    assert not page.publish()
    assert victim.read_text() == "precious"


@pytest.fixture
def shown(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setattr(publishing, "_numbers", None)
    yield
    publishing._numbers.close()


def test_presence_shows_numbers_when_asked_and_says_anew_whose_they_are(tmp_path, shown):
    """A worker has them before it knows its actor."""
    publishing.show_numbers(Incarnation(job_id="01000000"), "")
    first = publishing._numbers
    publishing.show_numbers(Incarnation(job_id="01000000", actor_id="a1", number=2), "Rollout")
    assert publishing._numbers is first
    publishing.leave_numbers()
    assert read(tmp_path)["who"] == {
        "actor_class": "Rollout",
        "actor_id": "a1",
        "job_id": "01000000",
        "incarnation": 2,
        "watched": False,
    }


def test_a_worker_that_shows_numbers_loads_no_settings_and_no_prometheus(tmp_path):
    """Both take a third of a second."""
    ran = process(tmp_path, "print({'pydantic', 'prometheus_client'} & set(sys.modules))")
    assert ran.stdout == "set()\n"


def test_numbers_that_nobody_reads_are_not_written(tmp_path):
    """A pool's driver leaves nothing on a node without an agent, and its numbers once one comes."""
    page = NumbersPage(tmp_path, WHO, every_s=0.0, if_read=True)
    assert not page.publish_now()
    assert not directory_of(tmp_path).exists()
    (tmp_path / "agents").mkdir()
    assert page.publish_now()
    assert read(tmp_path)["who"]["actor_class"] == "Rollout"
