"""The newest whole snapshot: whatever happens to its writer or to the file, it is whole or it is an error."""

import contextlib
import errno
import json
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.process import mapped_file, snapshot_file
from rayguard.process.snapshot_file import Snapshot, SnapshotFile, read_snapshot
from tests.open_files import open_files

KILLS = 150
MOST = snapshot_file._MOST_RUNNING


@pytest.fixture
def path(tmp_path):
    return tmp_path / "snapshots" / "abc.snapshot"


@pytest.fixture
def file(path):
    return SnapshotFile(path)


def read(path):
    """Return what a reader finds: it must be there."""
    found = read_snapshot(path)
    assert found is not None
    return found


# -- what is written is read


def test_where_nothing_was_written_there_is_none(path, file):
    """The file comes with the first snapshot, not with its writer."""
    assert read_snapshot(path) is None
    file.ended(file.begun("task"))
    file.remove()
    assert not path.exists()


def test_the_newest_one_is_read(path, file):
    """All parts, one after the other."""
    for n in range(5):
        file.write([b"head", memoryview(bytes([n]) * 100), b"", b"tail"])
        assert read(path) == Snapshot(b"head" + bytes([n]) * 100 + b"tail", 0, frozenset())


@pytest.mark.parametrize("growing", [1, 3_000])
def test_the_one_before_the_newest_is_read_by_its_number(path, growing):
    """Also when the newest needed a bigger file; what is older is gone."""
    file = SnapshotFile(path, both=True)
    for number in range(6):
        file.write_as(number, [bytes([number]) * (10 + growing * number)])
        assert [one for one in range(7) if read_snapshot(path, one)] == [
            *range(max(0, number - 1), number + 1)
        ]
        for kept in range(max(0, number - 1), number + 1):
            found = read_snapshot(path, kept)
            assert found is not None
            assert found.data == bytes([kept]) * (10 + growing * kept)
    assert read(path).ended == 5


def test_a_writer_goes_back_to_a_number(path):
    """The other one is forgotten, and is the next to be written over."""
    file = SnapshotFile(path, both=True)
    assert not file.back_to(0)
    for number in range(4):
        file.write_as(number, [b"%d" % number])
    assert not file.back_to(1), "that one is gone"
    assert file.back_to(2)
    assert read(path).data == b"2"
    assert read_snapshot(path, 3) is None
    file.write_as(3, [b"again"])
    assert [read_snapshot(path, one).data for one in (2, 3)] == [b"2", b"again"]


def test_a_slot_that_is_being_written_has_no_number(path, monkeypatch):
    """A death in the midst of a snapshot leaves the one before it, and no number for the half one."""
    file = SnapshotFile(path, both=True)
    for number in range(2):
        file.write_as(number, [bytes(100)])

    class Dies:
        """Ends the writer after the first part."""

        def __iter__(self):
            yield b"first"
            raise KeyboardInterrupt

    monkeypatch.setattr(snapshot_file, "sum", lambda _: 10, raising=False)
    with pytest.raises(KeyboardInterrupt):
        file.write_as(2, Dies())
    assert read(path).ended == 1
    assert [one for one in range(3) if read_snapshot(path, one)] == [1]


def test_parts_of_any_kind_of_memory(path, file):
    """Arrays' memory is not of bytes, and not flat."""
    numbers = memoryview(bytearray(range(48))).cast("B", (4, 12))
    words = memoryview(bytearray(range(16))).cast("Q")
    file.write([numbers, words])
    assert read(path).data == bytes(range(48)) + bytes(range(16))


def test_an_empty_one_is_one(path, file):
    """No state is a state, too."""
    file.write([])
    assert read(path) == Snapshot(b"", 0, frozenset())
    file.write([b"x"])
    assert read(path).data == b"x"
    file.write([])
    assert read(path).data == b""


@given(sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=8))
def test_it_grows_and_shrinks(sizes, tmp_path_factory):
    """A bigger state has a file of its own; nothing is lost on the way, calls that run among it."""
    path = tmp_path_factory.mktemp("grow") / "one.snapshot"
    file = SnapshotFile(path)
    place = file.begun("a" * 48)
    for n, size in enumerate(sizes):
        file.ended(file.begun("short"))
        file.write([bytes([n]) * size])
        assert read(path) == Snapshot(bytes([n]) * size, 0, frozenset({"a" * 48}))
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    file.ended(place)
    undone = frozenset({"a" * 48})
    assert read(path) == Snapshot(bytes([len(sizes) - 1]) * sizes[-1], 1, frozenset(), undone)
    file.remove()
    assert not list(path.parent.iterdir())
    file.close()


def test_its_memory_is_bounded(path, file):
    """Two slots, each with a little room: 2.5 times the state and a page, however often it is written."""
    for _ in range(10):
        file.write([bytes(1_000_000)])
    assert path.stat().st_size <= 2 * 1.25 * 1_000_000 + 4 * 4096
    inode = path.stat().st_ino
    file.write([bytes(1_200_000)])
    assert path.stat().st_ino == inode, "a state that grows a little needs no new file"


def test_growth_leaves_no_descriptor_behind(path, file):
    """A file that was outgrown is closed."""
    file.write([bytes(10)])
    before = open_files()
    for n in range(1, 12):
        file.write([bytes(10_000 * n * n)])
    assert not open_files() - before


def test_a_new_writer_replaces_what_was_left(path, file):
    """The next life has written nothing yet: it finds the last one's, until its own first."""
    file.write([b"old"])
    file.begun("cut-off")
    new = SnapshotFile(path)
    assert read(path) == Snapshot(b"old", 0, frozenset({"cut-off"}))
    new.write([b"new"])
    assert read(path) == Snapshot(b"new", 0, frozenset())
    file.remove()  # of the old one, whose place another has taken
    assert read(path).data == b"new"


# -- calls


def test_calls_since_the_snapshot_are_counted(path, file):
    """They are what is lost, by name and number."""
    file.write([b"one"])
    for n in range(3):
        place, undone = file.begun(f"task{n}"), frozenset(f"task{m}" for m in range(n))
        assert read(path) == Snapshot(b"one", n, frozenset({f"task{n}"}), undone)
        file.ended(place)
        assert read(path) == Snapshot(b"one", n + 1, frozenset(), undone | {f"task{n}"})
    file.write([b"two"])
    assert read(path) == Snapshot(b"two", 0, frozenset())


def test_of_many_lost_calls_the_last_are_known_by_name(path, file):
    """Ray repeats those whose answer was not delivered yet; those that run have their places all the same."""
    file.write([b"one"])
    runs = file.begun("runs")
    for n in range(3 * MOST):
        file.ended(file.begun(f"task{n:03}"))
    last = frozenset(f"task{n:03}" for n in range(2 * MOST + 1, 3 * MOST))
    assert read(path) == Snapshot(b"one", 3 * MOST, frozenset({"runs"}), last)
    file.ended(runs)
    assert read(path).undone == last | {"runs"}


def test_a_call_whose_effect_is_kept_leaves_no_name(path, file):
    """Also where others had ended before it, and were lost until now."""
    file.write([b"one"])
    file.ended(file.begun("before"))
    place = file.begun("keeps")
    file.write([b"two"], ending=1)
    assert read(path) == Snapshot(b"two", 0, frozenset({"keeps"}))
    file.ended(place)
    assert read(path) == Snapshot(b"two", 0, frozenset())


def test_calls_are_known_that_began_before_the_first_snapshot(path, file):
    """Or before the file had to grow."""
    first, second = file.begun("first"), file.begun("second")
    file.ended(first)
    file.write([b"one"])
    assert read(path) == Snapshot(b"one", 0, frozenset({"second"}))
    file.ended(second)
    assert read(path) == Snapshot(b"one", 1, frozenset(), frozenset({"second"}))


def test_too_many_running_calls_are_counted_all_the_same(path, file):
    """Those for which there is no place are not known by name; no place is given twice, none is lost."""
    file.write([b"one"])
    places = [file.begun(f"task{n:03}") for n in range(MOST + 10)]
    assert sorted(places) == [-1] * 10 + list(range(MOST))
    assert read(path).running == {f"task{n:03}" for n in range(MOST)}
    for place in places:
        file.ended(place)
    names = frozenset(f"task{n:03}" for n in range(MOST))
    assert read(path) == Snapshot(b"one", MOST + 10, frozenset(), names)
    assert sorted(file.begun(f"again{n}") for n in range(MOST)) == list(range(MOST))


def test_a_call_without_a_name_is_counted(path, file):
    """Outside of a task there is no id."""
    file.write([b"one"])
    file.ended(file.begun(""))
    assert read(path) == Snapshot(b"one", 1, frozenset())


calls = st.lists(st.one_of(st.just("begin"), st.just("write"), st.integers(0, 100)), max_size=60)


@given(calls)
def test_the_file_knows_at_any_time_what_a_death_would_cut_off(tmp_path_factory, steps):
    """A model beside it: the state, the calls that ended since, those that run."""
    path = tmp_path_factory.mktemp("model") / "one.snapshot"
    file, running, undone, kept, begun = SnapshotFile(path), {}, [], None, 0
    for step in steps:
        if step == "begin":
            begun += 1
            running[file.begun(f"task{begun}")] = f"task{begun}"
        elif step == "write":
            kept, undone = f"state{begun}".encode() * begun * 100, []
            file.write([kept])
        elif running:
            place = sorted(running)[step % len(running)]
            undone.append(running.pop(place))
            file.ended(place)
        assert read_snapshot(path) == (
            None
            if kept is None
            else Snapshot(kept, len(undone), frozenset(running.values()), frozenset(undone))
        )
    file.close()


# -- what is damaged


@settings(max_examples=200)
@given(st.data())
def test_a_file_cut_anywhere_is_an_error_or_a_whole_snapshot(tmp_path_factory, data):
    """Never a part of one; a cut behind what is current takes nothing."""
    path = tmp_path_factory.mktemp("cut") / "one.snapshot"
    file = SnapshotFile(path)
    states = [os.urandom(data.draw(st.integers(0, 6_000))) for _ in range(data.draw(st.integers(1, 3)))]
    for state in states:
        file.write([state])
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(ValueError):
        assert read(path) == Snapshot(states[-1], 0, frozenset())


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 4096, b"\xff" * 4096, os.urandom(100_000), struct.pack("<Q", 1) + b"\0" * 8184],
    ids=["empty", "zeros", "ones", "noise", "another version"],
)
def test_what_is_no_snapshot_of_ours_is_an_error(path, content):
    """It is unpickled afterwards."""
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=path.name):
        read_snapshot(path)


def test_a_size_beyond_its_slot_is_an_error(path, file):
    """A word that was damaged: the other slot is no part of this state."""
    file.write([b"one" * 100])
    file.write([b"two" * 100])
    file.write([b"three" * 100])  # in the first slot again, the second follows it
    raw = bytearray(path.read_bytes())
    for size in (5_000, 1 << 40, (1 << 64) - 1):
        raw[8 * 8 : 9 * 8] = raw[10 * 8 : 11 * 8] = struct.pack("<Q", size)  # of either slot
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=path.name):
            read_snapshot(path)


def test_a_link_in_its_place_is_not_followed(path, file):
    """What is loaded is unpickled."""
    file.write([b"one"])
    other = path.with_name("other")
    path.replace(other)
    path.symlink_to(other)
    with contextlib.suppress(OSError, ValueError):
        assert read_snapshot(path) is None


def test_others_cannot_read_it(path, file):
    """It is the user's weights."""
    file.write([b"one"])
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


# -- no room


def full(monkeypatch, error=errno.ENOSPC):
    def allocate(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", allocate)


def test_a_full_disk_leaves_the_old_one(path, file, monkeypatch):
    """It is told to who writes; what was kept stays, with the calls since; later there is room again."""
    file.write([b"old"])
    place = file.begun("task")
    with monkeypatch.context() as patch:
        full(patch)
        with pytest.raises(OSError, match="No space"):
            file.write([bytes(100_000)])
        assert read(path) == Snapshot(b"old", 0, frozenset({"task"}))
        file.ended(place)
        assert read(path) == Snapshot(b"old", 1, frozenset(), frozenset({"task"}))
        file.write([b"fits"])  # no new blocks are needed
        assert read(path) == Snapshot(b"fits", 0, frozenset())
        assert [one.name for one in path.parent.iterdir()] == [path.name]
    file.write([bytes(100_000)])
    assert read(path) == Snapshot(bytes(100_000), 0, frozenset())


def test_a_disk_that_is_full_from_the_start(path, file, monkeypatch):
    """There is none, and nothing is left behind; the counting goes on."""
    with monkeypatch.context() as patch:
        full(patch)
        with pytest.raises(OSError, match="No space"):
            file.write([b"one"])
        file.ended(file.begun("task"))
        assert not list(path.parent.iterdir())
        assert read_snapshot(path) is None
    file.write([b"one"])
    assert read(path) == Snapshot(b"one", 0, frozenset())


def test_a_part_that_cannot_be_read_leaves_the_old_one(path, file):
    """A view that was released: the slot that is written is not the current one."""
    file.write([b"old"])
    released = memoryview(bytearray(10))
    released.release()
    with pytest.raises(ValueError, match="released"):
        file.write([b"new", released])
    assert read(path).data == b"old"
    file.write([b"new"])
    assert read(path).data == b"new"


# -- killed


KILLER = """
import json, mmap, os, random, signal, sys, time
from pathlib import Path
from rayguard.process import snapshot_file
from rayguard.process.snapshot_file import SnapshotFile, read_snapshot
from rayguard.process.snapshot_slots import CURRENT, SIZE_OF

folder, kills, broken = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "broken"
if broken:  # what counts is said before it is there
    real = snapshot_file._fill

    def fill(file, words, parts, size, ending):
        slot = 1 if words[CURRENT] == 2 else 2
        words[SIZE_OF[slot]], words[CURRENT] = size, slot
        time.sleep(0.0005)
        words[CURRENT] = 3 - slot
        real(file, words, parts, size, ending)

    snapshot_file._fill = fill
told, rng, found = mmap.mmap(-1, 8), random.Random(7), {"read": 0, "torn": 0, "older": 0, "wrong": 0}
number = memoryview(told).cast("Q")


def write(path, seed):
    rng, file, n = random.Random(seed), SnapshotFile(path), 0
    while True:
        n += 1
        place = file.begun(f"{n:048}")
        size = rng.choice([0, 10, 5_000, 200_000, 6_000_000])
        part = bytearray([n % 251]) * size
        file.write([n.to_bytes(8, "little"), memoryview(part)[: size // 3], memoryview(part)[size // 3 :]], ending=1)
        file.ended(place)
        number[0] = n
        if n % 3 == 0:
            file.ended(file.begun("lost"))


for kill in range(kills):
    path = folder / f"{kill}.snapshot"
    number[0] = 0
    child = os.fork()
    if not child:
        write(path, kill)
    time.sleep(rng.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        snapshot = read_snapshot(path)
    except ValueError:
        found["torn"] += 1
        continue
    if snapshot is None:
        found["older"] += number[0] > 0
        continue
    found["read"] += 1
    n, body = int.from_bytes(snapshot.data[:8], "little"), snapshot.data[8:]
    found["torn"] += body != bytes([n % 251]) * len(body)
    found["older"] += n < number[0]
    found["wrong"] += snapshot.lost > 1 or not snapshot.running <= {f"{n:048}", f"{n + 1:048}", "lost"}
    for left in folder.iterdir():
        left.unlink()
print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", ["whole", "broken"])
def test_a_writer_killed_at_any_instant_leaves_a_whole_snapshot(tmp_path, kind):
    """By SIGKILL, while it writes, grows, or counts: never a torn one, never older than the last it told of.

    One that says what counts before it is there is caught: the test of the test.
    """
    command = [sys.executable, "-c", KILLER, str(tmp_path), str(KILLS), kind]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    found = json.loads(run.stdout)
    assert found["read"] >= KILLS // 2, "the kills came too early to show anything"
    if kind == "broken":
        assert found["torn"] > 0
    else:
        assert found == {"read": found["read"], "torn": 0, "older": 0, "wrong": 0}
