"""A node's numbers: true while processes come and die, whoever is killed in between, and cheap."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from rayguard.metrics.instruments.instrument import Instrument, Merge, MetricType
from rayguard.metrics.instruments.node import JOB_OVER
from rayguard.metrics.node import departed as departed_module
from rayguard.metrics.node import merged_numbers
from rayguard.metrics.node.abandoned import KEEP_S, SIGN_S
from rayguard.metrics.node.departed import KEEP_JOB_S, file_of
from rayguard.metrics.node.merged_numbers import NodeNumbers
from rayguard.metrics.node.numbers_file import NumbersPage, directory_of
from rayguard.metrics.node.tables import encode
from rayguard.metrics.sources import readings, sources
from rayguard.process.cleanup.verdict import ProcessLife
from rayguard.process.identity import ProcessId
from rayguard.process.pid_namespace import world
from rayguard.recovery.status import Who
from rayguard.recovery.tally import TALLY, Durations
from tests.open_files import open_files

DEADLINE_S = 60
CALLS = Instrument(name="calls_total", type=MetricType.COUNTER, help="X.", read=list, labels=("kind",))
USED = Instrument(name="used_bytes", type=MetricType.GAUGE, help="X.", read=list)
FORECAST = Instrument(name="left_seconds", type=MetricType.GAUGE, help="X.", read=list, merge=Merge.MIN)
TOOK = Instrument(name="took_seconds", type=MetricType.HISTOGRAM, help="X.", read=list)
KNOWN = {one.name: one for one in (CALLS, USED, FORECAST, TOOK)}


class Clock:
    now = time.time()

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    clock = Clock()
    clock.now = time.time()
    return clock


@pytest.fixture
def node(tmp_path, clock):
    return NodeNumbers(tmp_path, instruments=KNOWN, clock=clock)


@pytest.fixture
def errors():
    before = TALLY.guard_errors["numbers"]
    return lambda: TALLY.guard_errors["numbers"] - before


def leave(home, process, calls=1, *, job="01000000", actor_class="Rollout", **changes):
    """Write the file of a process; a plain write, so that it keeps its inode."""
    took = Durations((1.0,), [calls, 0], 0.5 * calls)
    read = [
        (CALLS, [(("crash",), calls)]),
        (USED, [((), 7)]),
        (FORECAST, [((), calls)]),
        (TOOK, [((), took)]),
    ]
    page = {
        "version": 1,
        "pid": process.pid,
        "started": process.started,
        "world": world(),
        "who": {"actor_class": actor_class, "job_id": job},
        "at": time.time(),
        "families": encode(read),
        **changes,
    }
    directory_of(home).mkdir(mode=0o700, exist_ok=True, parents=True)
    path = directory_of(home) / f"{process.pid}-{process.started}.json"
    path.write_text(json.dumps(page))
    return path


def dead(n=0):
    """Return a process that is no more: the pid lives, and started at another time."""
    me = ProcessId.me()
    return ProcessId(me.pid, me.started - 1 - n)


def value(node, name="calls_total", **labels):
    labels = {"kind": "crash"} | labels if name == "calls_total" else labels
    found = [
        sample.value
        for family in node.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


def test_the_living_are_shown_with_their_job_and_class(tmp_path, node):
    """And with nothing else: no pid, no actor."""
    leave(tmp_path, ProcessId.me(), 5)
    node.refresh()
    samples = [sample for family in node.collect() for sample in family.samples]
    assert {frozenset(sample.labels) - {"kind", "le"} for sample in samples} == {
        frozenset({"ray_job", "actor_class"})
    }
    assert value(node, ray_job="01000000", actor_class="Rollout") == 5
    assert value(node, "used_bytes") == 7
    assert value(node, "took_seconds_count") == 5


def test_a_processs_own_file_is_read(tmp_path, monkeypatch):
    """Writer and reader agree, with the instruments that there are."""
    monkeypatch.setitem(TALLY.calls, "Rollout", 9)
    known = {one.name: one for one, _ in readings(sources())}
    node = NodeNumbers(tmp_path, instruments=known)
    assert NumbersPage(tmp_path, Who(actor_class="Rollout", job_id="01000000")).publish_now()
    node.refresh()
    assert value_of(node, "rayguard_calls_total", target="Rollout", actor_class="Rollout") == 9
    assert value_of(node, "rayguard_info", ray_job="01000000") == 1


def value_of(node, name, **labels):
    (found,) = [
        sample.value
        for family in node.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return found


def test_what_the_dead_counted_stays_and_what_they_used_does_not(tmp_path, node):
    """Their file goes, and so do their gauges."""
    leave(tmp_path, ProcessId.me(), 5)
    path = leave(tmp_path, dead(), 3)
    for _ in range(3):
        node.refresh()
        assert value(node) == 8
        assert value(node, "took_seconds_sum") == 4.0
        assert value(node, "used_bytes") == 7
        assert value(node, "left_seconds") == 5
        assert not path.exists()
    assert (directory_of(tmp_path) / file_of(world())).stat().st_mode & 0o777 == 0o600


def test_they_stay_when_the_agent_is_another_one(tmp_path, node, clock):
    """From the disk; and again, after the next deaths."""
    for n in range(4):
        leave(tmp_path, dead(n), 10)
        NodeNumbers(tmp_path, instruments=KNOWN, clock=clock).refresh()
    node.refresh()
    assert value(node) == 40
    assert len(list(directory_of(tmp_path).glob("*-*.json"))) == 1, "only departed is left"


def test_a_killed_process_loses_nothing_that_it_had_written(tmp_path):
    """A real one, killed for real: from its last file to departed, and no counter falls on the way."""
    known = {one.name: one for one, _ in readings(sources())}
    node = NodeNumbers(tmp_path, instruments=known)
    code = (
        "import sys\nfrom rayguard.metrics.node.numbers_file import NumbersPage\nfrom rayguard.recovery.status import Who\n"
        "from rayguard.recovery.tally import TALLY\npage = NumbersPage(sys.argv[1], Who(actor_class='Rollout'))\n"
        "for n in range(10**9):\n TALLY.calls['X'] += 1\n page.publish_now()"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    seen, deadline = [], time.monotonic() + DEADLINE_S

    def look():
        node.refresh()
        seen.append(
            sum(s.value for f in node.collect() for s in f.samples if s.name == "rayguard_calls_total")
        )

    try:
        while len(set(seen)) < 20:
            assert time.monotonic() < deadline
            look()
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait(DEADLINE_S)
    (path,) = directory_of(tmp_path).glob(f"{writer.pid}-*.json")
    families = {family["name"]: family for family in json.loads(path.read_text())["families"]}
    last = families["rayguard_calls_total"]["samples"][0][1]
    look()
    look()
    assert seen == sorted(seen)
    assert seen[-1] == last
    assert not path.exists()


@pytest.mark.parametrize("step", ["before the sum is written", "after it, before the file is deleted"])
def test_an_agent_killed_while_it_folds_counts_nobody_twice(tmp_path, clock, monkeypatch, step):
    """Nor does it forget anybody. The next agent ends what this one began."""
    leave(tmp_path, ProcessId.me(), 5)
    path = leave(tmp_path, dead(), 3)

    class Killed(BaseException):
        pass

    def kill(*_, **__):
        raise Killed

    first = NodeNumbers(tmp_path, instruments=KNOWN, clock=clock)
    with monkeypatch.context() as patched:
        if step.startswith("before"):
            patched.setattr(merged_numbers, "replace_file", kill)
        else:
            patched.setattr(merged_numbers.os, "unlink", kill)
        with pytest.raises(Killed):
            first.refresh()
    assert value(first) == 8
    assert path.exists()
    for _ in range(3):
        after = NodeNumbers(tmp_path, instruments=KNOWN, clock=clock)
        after.refresh()
        assert value(after) == 8
    assert not path.exists()
    leave(tmp_path, dead(1), 2)
    after.refresh()
    said = json.loads((directory_of(tmp_path) / file_of(world())).read_text())
    assert len(said["folded"]) == 1, "names are forgotten with their files"
    assert value(after) == 10


def test_agents_killed_at_random_count_everything_once(tmp_path):
    """Real kills, one after another, while processes die: the sum is what they left."""
    code = (
        "import sys\nfrom test_node_numbers import KNOWN, NodeNumbers\nnode = NodeNumbers(sys.argv[1], instruments=KNOWN)\n"
        "print('up', flush=True)\nwhile True: node.refresh()"
    )
    here, total = Path(__file__).parent, 0
    for n in range(3):
        agent = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(here)},
            stdout=subprocess.PIPE,
        )
        try:
            assert agent.stdout.readline() == b"up\n"
            for m in range(20):
                finished = leave_whole(tmp_path, dead(20 * n + m), 1)
                total += finished
        finally:
            agent.send_signal(signal.SIGKILL)
            agent.wait(DEADLINE_S)
            agent.stdout.close()
    node = NodeNumbers(tmp_path, instruments=KNOWN)
    for _ in range(2):
        node.refresh()
        assert value(node) == total == 60
    assert not [path for path in directory_of(tmp_path).iterdir() if path.name[0].isdigit()]


def leave_whole(home, process, calls):
    """Leave a file in one step, as processes do."""
    directory_of(home).mkdir(mode=0o700, exist_ok=True, parents=True)
    aside = home / "aside"
    aside.mkdir(exist_ok=True)
    written = leave(aside, process, calls)
    written.rename(directory_of(home) / written.name)
    return calls


def test_two_agents_at_once_fold_once_and_show_the_same(tmp_path, clock):
    """An old one that is not quite gone: real threads, each with its own lock."""
    agents = [NodeNumbers(tmp_path, instruments=KNOWN, clock=time.time) for _ in range(2)]
    stop, shown = threading.Event(), {0: [], 1: []}
    directory_of(tmp_path).mkdir(mode=0o700)
    leave_whole(tmp_path, ProcessId.me(), 1000)

    def run(which):
        while not stop.is_set():
            agents[which].refresh()
            shown[which].append(value(agents[which]))

    threads = [threading.Thread(target=run, args=(which,)) for which in shown]
    for thread in threads:
        thread.start()
    try:
        for n in range(60):
            leave_whole(tmp_path, dead(n), 1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    for which, agent in enumerate(agents):
        agent.refresh()
        agent.refresh()
        assert value(agent) == 1060
        assert shown[which] == sorted(shown[which])


def test_an_agent_that_cannot_have_the_lock_still_shows_and_folds_nothing(tmp_path, node, clock):
    """Somebody holds it: who died is counted from its file until then."""
    leave(tmp_path, ProcessId.me(), 5)
    path = leave(tmp_path, dead(), 3)
    folder = os.open(directory_of(tmp_path), os.O_RDONLY)
    try:
        with merged_numbers._sole(folder, file_of(world())) as sole:
            assert sole is not None
            node.refresh()
            assert value(node) == 8
            assert value(node, "used_bytes") == 7
            assert path.exists()
    finally:
        os.close(folder)
    node.refresh()
    assert value(node) == 8
    assert not path.exists()


def test_a_full_disk_keeps_the_files_of_the_dead(tmp_path, node, monkeypatch, errors):
    """Their numbers are shown from there until there is room."""
    path = leave(tmp_path, dead(), 3)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(merged_numbers, "replace_file", full)
        node.refresh()
        node.refresh()
    assert value(node) == 3
    assert path.exists()
    assert errors()
    node.refresh()
    assert value(node) == 3
    assert not path.exists()


def test_a_change_within_one_tick_of_the_files_clock_is_seen(tmp_path, node):
    """The same inode, size and time, and other numbers."""
    path = leave(tmp_path, ProcessId.me(), 5)
    node.refresh()
    before = path.stat()
    leave(tmp_path, ProcessId.me(), 6, at=json.loads(path.read_text())["at"])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )
    node.refresh()
    assert value(node) == 6


def test_only_what_changed_is_read(tmp_path, node, clock, monkeypatch):
    """Where files have settled, a refresh of an idle node reads none, and shows what it showed."""
    for n in range(5):
        leave(tmp_path, ProcessId(os.getpid(), n), n)
    monkeypatch.setattr(merged_numbers, "life_of", lambda *_: ProcessLife.ALIVE)
    clock.now += 60
    node.refresh()
    read, content = [], merged_numbers._content

    def noted(folder, name, limit):
        if not name.startswith("departed"):
            read.append(name)
        return content(folder, name, limit)

    monkeypatch.setattr(merged_numbers, "_content", noted)
    generation = node.generation
    node.refresh()
    assert not read
    assert node.generation == generation
    clock.now += 60
    leave(tmp_path, ProcessId(os.getpid(), 3), 100)
    node.refresh()
    assert [name.split("-")[1] for name in read] == ["3.json"]
    assert node.generation == generation + 1
    assert value(node) == 0 + 1 + 2 + 100 + 4


def test_another_container_or_boot_is_left_alone(tmp_path, node):
    """Its pid means nothing here: neither shown nor removed."""
    path = leave(tmp_path, dead(), 3, world="another one")
    node.refresh()
    assert value(node) is None
    assert path.exists()


def age(path, seconds):
    at = time.time() - seconds
    os.utime(path, (at, at))


def abandoned(home, where, silent_s):
    """Leave what the agent of another world left, that gave its last sign so long ago."""
    folder = directory_of(home)
    page = leave(home, dead(100), 3, world=where)
    left = [page, folder / file_of(where), folder / f".{file_of(where).removesuffix('.json')}.lock"]
    for path in left[1:]:
        path.touch()
    for path in left[:2]:
        age(path, 2 * KEEP_S)
    age(left[2], silent_s)
    return left


def look_twice(home, node, times=2):
    """Let two hours go by."""
    lock = directory_of(home) / f".{file_of(world()).removesuffix('.json')}.lock"
    node.refresh()
    for _ in range(times):
        age(lock, SIGN_S + 1)
        node.refresh()


def test_worlds_that_nobody_has_looked_after_for_a_week_go(tmp_path, node):
    """Of earlier boots; in a home that stays, they would be more with every one."""
    left = abandoned(tmp_path, "an earlier boot", KEEP_S + 60)
    halves = [directory_of(tmp_path) / name for name in (".77-1.tmp", "78-1.json")]
    for path in halves:
        path.write_text("{")
        age(path, KEEP_S + 60)
    mine = leave(tmp_path, ProcessId.me(), 5)
    age(mine, KEEP_S + 60)
    look_twice(tmp_path, node, times=1)
    assert all(path.exists() for path in (*left, *halves)), "the clock may have jumped"
    look_twice(tmp_path, node)
    assert not any(path.exists() for path in (*left, *halves))
    assert value(node) == 5


def test_worlds_that_somebody_looks_after_stay(tmp_path, node):
    """Another node's, in a home that nodes share: however idle its processes are."""
    left = abandoned(tmp_path, "another node", SIGN_S)
    later = directory_of(tmp_path) / "79-1.json"
    later.write_text('{"version": 99}')
    folder = directory_of(tmp_path) / "80-1.json"
    folder.mkdir()
    strange = directory_of(tmp_path) / "notes.txt"
    strange.touch()
    for path in (later, folder, strange):
        age(path, 2 * KEEP_S)
    look_twice(tmp_path, node)
    assert all(path.exists() for path in (*left, later, folder, strange))


def test_whom_the_kernel_hides_counts_as_alive(tmp_path, node, monkeypatch):
    """Unknown is not dead."""
    path = leave(tmp_path, dead(), 3)
    monkeypatch.setattr(merged_numbers, "life_of", lambda *_: ProcessLife.UNKNOWN)
    node.refresh()
    assert value(node) == 3
    assert value(node, "used_bytes") == 7
    assert path.exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        '{"version": 99}',
        '{"version": 1}',
        '{"version": 1, "world": "W", "who": {}}',
        "\0\xff",
    ],
)
def test_what_cannot_be_read_is_left_out_and_counted_once(tmp_path, node, errors, content):
    """Torn, of a later version, or no numbers at all; the others are shown."""
    leave(tmp_path, ProcessId.me(), 5)
    bad = directory_of(tmp_path) / f"{dead().pid}-{dead().started}.json"
    bad.write_text(content.replace("W", world()), encoding="latin-1")
    for _ in range(3):
        node.refresh()
    assert value(node) == 5
    assert errors() == 1
    assert bad.exists()


def test_a_file_that_cannot_be_read_for_a_moment_keeps_its_numbers(tmp_path, node, errors):
    """Its counters would fall, and be taken for a restart."""
    path = leave(tmp_path, ProcessId.me(), 5)
    node.refresh()
    path.write_text("{")
    node.refresh()
    assert value(node) == 5
    assert errors() == 1
    leave(tmp_path, ProcessId.me(), 6)
    node.refresh()
    assert value(node) == 6


def test_links_pipes_and_strange_names_are_passed_over(tmp_path, node):
    """Nothing that could block, or point elsewhere."""
    leave(tmp_path, ProcessId.me(), 5)
    folder, elsewhere = directory_of(tmp_path), tmp_path / "elsewhere.json"
    elsewhere.write_text("{}")
    (folder / "77-1.json").symlink_to(elsewhere)
    os.mkfifo(folder / "78-1.json")
    (folder / "79-1.json").mkdir()
    for name in ("80.json", ".81-1.json", "82-1.json.tmp", "x-1.json", "notes.txt"):
        (folder / name).write_text("{}")
    node.refresh()
    before = open_files()
    node.refresh()
    assert not open_files() - before
    assert value(node) == 5
    assert elsewhere.exists()
    assert (folder / "notes.txt").exists()


def test_a_sum_that_cannot_be_read_for_a_moment_is_not_begun_anew(tmp_path, node, clock, monkeypatch, errors):
    """Out of descriptors: what is shown stays, and what was counted is not written over."""
    leave(tmp_path, dead(), 3)
    node.refresh()
    path, content = leave(tmp_path, dead(1), 4), merged_numbers._content

    def no_descriptor(folder, name, limit):
        if name == file_of(world()):
            raise OSError(24, "Too many open files")
        return content(folder, name, limit)

    with monkeypatch.context() as patched:
        patched.setattr(merged_numbers, "_content", no_descriptor)
        node.refresh()
    assert value(node) == 3
    assert path.exists()
    assert errors() == 1
    node.refresh()
    assert value(node) == 7


@pytest.mark.parametrize("content", ["[]", "{}", "[1]", '{"version": 1, "folded": 7}'])
def test_a_broken_sum_of_the_dead_is_begun_anew(tmp_path, node, errors, content):
    """To Prometheus a restart of the counters; it is said and counted."""
    leave(tmp_path, dead(), 3)
    (directory_of(tmp_path) / file_of(world())).write_text(content)
    node.refresh()
    assert value(node) == 3
    assert errors()
    node.refresh()
    assert value(node) == 3


def test_a_sum_of_a_later_version_is_left_as_it_is(tmp_path, node):
    """A newer agent is about to take over: nothing is folded under its feet."""
    path = leave(tmp_path, dead(), 3)
    later = directory_of(tmp_path) / file_of(world())
    later.write_text('{"version": 99}')
    node.refresh()
    assert value(node) == 3
    assert later.read_text() == '{"version": 99}'
    assert path.exists()


def test_jobs_that_ended_a_day_ago_vanish_whole(tmp_path, node, clock):
    """All their series at once, so that no sum falls; one that has a living process stays."""
    leave(tmp_path, ProcessId.me(), 5, job="02000000")
    leave(tmp_path, dead(), 3, job="01000000")
    leave(tmp_path, dead(1), 4, job="02000000")
    node.refresh()
    clock.now += KEEP_JOB_S - 60
    node.refresh()
    assert (value(node, ray_job="01000000"), value(node, ray_job="02000000")) == (3, 9)
    clock.now += 120
    node.refresh()
    node.refresh()
    assert (value(node, ray_job="01000000"), value(node, ray_job="02000000")) == (None, 9)
    again = NodeNumbers(tmp_path, instruments=KNOWN, clock=clock)
    again.refresh()
    assert (value(again, ray_job="01000000"), value(again, ray_job="02000000")) == (None, 9)


def test_that_a_job_is_over_keeps_nothing_of_it(tmp_path, clock):
    """An agent says so of each job with numbers here: of what it says that of, it must not follow that."""
    over = Instrument(
        name=JOB_OVER, type=MetricType.GAUGE, help="X.", read=list, labels=("ray_job",), merge=Merge.MAX
    )
    node = NodeNumbers(tmp_path, instruments={**KNOWN, JOB_OVER: over}, clock=clock)
    leave(tmp_path, dead(), 3, job="01000000")
    said = encode([(over, [(("01000000",), 1.0)])])
    leave(tmp_path, ProcessId.me(), job="", actor_class="NodeAgent", families=said)
    node.refresh()
    assert node.jobs() == {"01000000"}
    assert value(node, JOB_OVER, ray_job="01000000", actor_class="NodeAgent") == 1
    clock.now += KEEP_JOB_S + 1
    node.refresh()
    node.refresh()
    assert node.jobs() == set()


def test_a_node_with_too_many_classes_has_a_bounded_page_and_file(tmp_path, node):
    """The rest is one series; when they die, too."""
    for n in range(250):
        leave(tmp_path, dead(n), 1, actor_class=f"Class{n}")
    for _ in range(3):
        node.refresh()
        samples = [sample for family in node.collect() for sample in family.samples]
        calls = [sample for sample in samples if sample.name == "calls_total"]
        assert len(calls) == 201
        assert sum(sample.value for sample in calls) == 250
    said = json.loads((directory_of(tmp_path) / file_of(world())).read_text())
    assert {len(family["samples"]) for family in said["families"]} == {201}


def test_a_home_of_another_is_said_and_counted(tmp_path, node, errors, monkeypatch):
    """Nothing is read from there, and nothing raised."""
    directory_of(tmp_path).mkdir(mode=0o777)
    directory_of(tmp_path).chmod(0o777)
    node.refresh()
    assert errors() == 1
    assert list(node.collect()) == []


def crowd(home, count, monkeypatch):
    """Return a node with this many living processes of three classes, and what they show in truth."""
    families = encode(readings(sources()))
    for n in range(count):
        leave(home, ProcessId(os.getpid(), n), actor_class=f"Class{n % 3}", families=families)
    monkeypatch.setattr(merged_numbers, "life_of", lambda *_: ProcessLife.ALIVE)
    return NodeNumbers(home, instruments={one.name: one for one, _ in readings(sources())})


def cost(work, times=5):
    spent = []
    for _ in range(times):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)


def test_a_thousand_processes_are_scraped_as_cheaply_as_ten(tmp_path, monkeypatch):
    """As many series, made when something changed; a refresh costs each process the same."""
    few, many = (crowd(tmp_path / str(n), n, monkeypatch) for n in (10, 1000))
    refreshed_few, refreshed_many = cost(few.refresh, 20), cost(many.refresh, 3)
    assert refreshed_many / 1000 < 3 * refreshed_few / 10
    lines_few, lines_many = (generate_latest(node).count(b"\n") for node in (few, many))
    assert lines_few == lines_many > 100
    assert cost(lambda: generate_latest(many)) < 3 * cost(lambda: generate_latest(few))


def test_departed_is_a_value_that_comes_back_from_its_file():
    """With everything that it must remember."""
    one = departed_module.Departed(
        {"calls_total": {("crash", "01000000", "Rollout"): 3.0}}, frozenset({"7-1.json"}), {"01000000": 5.0}
    )
    assert departed_module.parsed(one.to_json(world(), KNOWN), KNOWN) == one
