"""What a keeper does with the states of its node and of others: without a cluster, its calls made at once."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import ray

from rayguard.errors import StateLostError
from rayguard.process.snapshot_file import SnapshotFile
from rayguard.process.snapshot_slots import MOST_SLOTS
from rayguard.trainers.gang.kept import copy_keeper, copy_place
from rayguard.trainers.gang.kept.copy_choice import CopyTag
from rayguard.trainers.gang.kept.copy_keeper import CopyEnd, CopyKeeper
from rayguard.trainers.gang.kept.copy_place import CopyPlace
from tests.open_files import open_files

SIZE, PART = 10_500, 1_000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch, tmp_path):
    """Parts of 1 KB, in a home of this test's; what is asked of an actor is there at once."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    for module in (copy_keeper, copy_place):
        monkeypatch.setattr(module, "PART_BYTES", PART)
    monkeypatch.setattr(copy_keeper, "path_of_rank", lambda gang, layout, rank: tmp_path / gang)
    monkeypatch.setattr(ray, "get", lambda asked, timeout: asked)


def at_once(method, before=lambda: None):
    """A method of an actor handle."""

    def remote(*args):
        before()
        return method(*args)

    found = SimpleNamespace(remote=remote)
    found.options = lambda **_: found
    return found


def handle(keeper, before=lambda: None):
    """What stands for a keeper on another node."""
    return SimpleNamespace(read=at_once(keeper.read, before), part=at_once(keeper.part))


@pytest.fixture
def rank(tmp_path):
    """The file of a rank, in which calls leave their states."""
    file = SnapshotFile(tmp_path / "gang", both=True, slots=MOST_SLOTS)

    def call(number, state=None):
        file.write_as(number, [state or bytes([number]) * SIZE])

    for number in range(3):
        call(number)
    return call


@pytest.fixture
def near():
    """The keeper on the rank's node."""
    return CopyKeeper("gang")


@pytest.fixture
def far():
    """The one on another node."""
    found = CopyKeeper("gang")
    yield found
    for file in (*found._spare, *(one.file for one in found._copies)):
        file.close()


def tag(number, generation=0, rank=4, layout=0):
    """A copy's."""
    return CopyTag(layout, rank, generation, number)


def copy(near, far, number, keep=None, before=lambda: None, **of):
    """Have a state copied, as the gang's owner does."""
    place = near.hold(0, [4], number, keep)[4]
    return far.copy(tag(number, **of), place, handle(near, before), keep)


def read(far, number, **of):
    """What a rank that takes the state up reads."""
    return CopyPlace(tag(number, **of), SIZE, "far", handle(far)).read()


def test_a_copy_is_what_the_rank_had(rank, near, far, tmp_path):
    """After later calls, too; and nothing of it lies where somebody could find it."""
    assert copy(near, far, 2) is CopyEnd.WHOLE
    for number in range(3, 9):
        rank(number)
    assert read(far, 2) == bytes([2]) * SIZE
    assert far.standing(0, []).copies == ((tag(2), SIZE),)
    assert near.standing(0, [4]).numbers[4] >= {2, 7, 8}
    assert {one.name for one in tmp_path.rglob("*") if one.is_file()} == {"gang"}


def test_a_state_that_is_written_over_makes_no_copy(rank, near, far):
    """Whatever part of it was read by then; the copy of before is still there."""
    assert copy(near, far, 2) is CopyEnd.WHOLE
    rank(3)
    for after in range(11):
        parts = iter(range(100))

        def overwrite(parts=parts, after=after):
            if next(parts) == after:
                near.hold(0, [4], 99, None)
                for number in range(4, 8):
                    rank(number)

        place = near.hold(0, [4], 3, 2)[4]
        assert far.copy(tag(3), place, handle(near, overwrite), 2) is CopyEnd.GONE
        assert far.standing(0, []).copies == ((tag(2), SIZE),)
        rank(2)
        rank(3)
    assert read(far, 2) == bytes([2]) * SIZE


def test_a_damaged_copy_is_never_used(rank, near, far, monkeypatch):
    """A byte that changed on the way makes none; one that changed in the file is an error."""
    whole = near.read
    monkeypatch.setattr(near, "read", lambda *args: (whole(*args)[0][:-1] + b"x", whole(*args)[1]))
    assert copy(near, far, 2) is CopyEnd.GONE
    monkeypatch.setattr(near, "read", whole)
    assert copy(near, far, 2) is CopyEnd.WHOLE
    (held,) = far._copies
    os.pwrite(held.file.fileno(), b"x", SIZE // 2)
    with pytest.raises(
        StateLostError, match=r"copy on node far of the state of rank 4 after 2 calls is damaged"
    ):
        read(far, 2)
    os.ftruncate(held.file.fileno(), SIZE - 1)
    with pytest.raises(StateLostError, match="damaged"):
        read(far, 2)
    with pytest.raises(StateLostError, match="cannot be read"):
        read(far, 1)


def test_what_all_have_stays_until_all_have_a_newer_one(rank, near, far):
    """And no more than that: files are bounded, however long it goes on."""
    before = open_files()
    assert copy(near, far, 2) is CopyEnd.WHOLE
    for number in range(3, 30):
        rank(number)
        assert copy(near, far, number, keep=number - 1) is CopyEnd.WHOLE
        assert {one.number for one, _ in far.standing(0, []).copies} == {number - 1, number}
        assert len(open_files() - before) <= 3
    for generation in range(1, 9):  # each gone back to the same call
        assert copy(near, far, 29, keep=29, generation=generation) is CopyEnd.WHOLE
        both = {generation - 1, generation}
        assert {one.generation for one, _ in far.standing(0, []).copies} == both
        assert {read(far, 29, generation=one) for one in both} == {bytes([29]) * SIZE}
    assert len(open_files() - before) <= 3
    rank(30)
    assert copy(near, far, 30, keep=29, rank=5) is CopyEnd.WHOLE, "of another rank"
    assert {one.number for one, _ in far.standing(0, []).copies} == {29, 30}
    assert copy(near, far, 30, layout=1) is CopyEnd.WHOLE
    assert [one.layout for one, _ in far.standing(0, []).copies] == [1]


def test_a_source_that_does_not_answer_is_told(rank, near, far, monkeypatch):
    """The owner ends it; what was read so far goes."""
    before = open_files()

    def silent(asked, timeout):
        raise ray.exceptions.GetTimeoutError("no answer")

    monkeypatch.setattr(ray, "get", silent)
    assert copy(near, far, 2) is CopyEnd.SILENT
    assert far.standing(0, []).copies == ()
    assert not open_files() - before


def test_a_full_disk_is_told(rank, near, far, monkeypatch):
    """To the owner, which takes another node if there is one."""

    def full(*_):
        raise OSError(28, "No space left on device")

    place = near.hold(0, [4], 2, None)
    monkeypatch.setattr(copy_keeper.os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        far.copy(tag(2), place[4], handle(near), None)
    assert far.standing(0, []).copies == ()
