"""Slots that others hold and read while their writer goes on: whole, or known not to be."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.process import mapped_file
from rayguard.process.snapshot_file import SnapshotFile, read_snapshot
from rayguard.process.snapshot_slots import MOST_SLOTS, hold, numbers_at, place_of, read_part


@pytest.fixture
def place(tmp_path):
    """Where the file lies."""
    return tmp_path / "snapshots" / "abc.snapshot"


@pytest.fixture
def writer(place):
    """A rank's."""
    return SnapshotFile(place, both=True, slots=MOST_SLOTS)


def state(number, size=10_000):
    """What a call leaves."""
    return bytes([number % 251]) * size


def test_where_there_is_no_file_there_is_nothing(place):
    """It may be gone with its gang at any time."""
    assert numbers_at(place) == frozenset()
    assert place_of(place, 0) is None
    hold(place, (1, None))
    assert not place.exists()


def test_a_held_snapshot_stays_until_others_are_held(place, writer):
    """Two at most; the newest and the one before it are there as ever."""
    for number in range(4):
        writer.write_as(number, [state(number)])
    assert numbers_at(place) == {2, 3}
    blocks = place.stat().st_blocks
    hold(place, (3, 2))
    for number in range(4, 8):
        writer.write_as(number, [state(number)])
        assert numbers_at(place) >= {2, 3, number, number - 1}
    hold(place, (7, 3))
    for number in range(8, 11):
        writer.write_as(number, [state(number)])
        assert numbers_at(place) >= {3, 7, number, number - 1}
    for number in (3, 7, 9, 10):
        found = place_of(place, number)
        assert read_part(place, found, 0, 20_000) == state(number)
        assert read_part(place, found, 9_000, 20_000) == state(number)[9_000:]
    assert place.stat().st_blocks <= 2 * blocks


def test_one_may_be_held_before_it_comes(place, writer):
    """Where calls are so quick that it would be gone when somebody asks for it."""
    writer.write_as(0, [state(0)])
    hold(place, (3, None))
    for number in range(1, 9):
        writer.write_as(number, [state(number)])
    assert 3 in numbers_at(place)
    assert read_part(place, place_of(place, 3), 0, 10_000) == state(3)


def test_what_was_written_over_is_not_read(place, writer):
    """Nor when the same number comes again, in the same slot."""
    for number in range(2):
        writer.write_as(number, [state(number)])
    found = place_of(place, 1)
    for number in (2, 3):
        writer.write_as(number, [state(number)])
    assert read_part(place, found, 0, 10_000) is None
    found = place_of(place, 3)
    for again in range(3):
        assert writer.back_to(2)
        writer.write_as(3, [state(100 + again)])
    assert read_part(place, found, 0, 10_000) is None
    assert read_snapshot(place, 3).data == state(102)


def test_a_new_file_has_what_was_held(place, writer):
    """The state has grown."""
    for number in range(3):
        writer.write_as(number, [state(number)])
    hold(place, (2, 1))
    writer.write_as(3, [state(3)])
    before = place_of(place, 2)
    for number in (4, 5):
        writer.write_as(number, [state(number, 50_000 * number)])
        assert numbers_at(place) >= {1, 2, number, number - 1}
    assert read_part(place, before, 0, 10_000) is None, "in another slot now"
    assert read_part(place, place_of(place, 2), 0, 10_000) == state(2)


def test_going_back_forgets_what_came_later_and_that_alone(place, writer):
    """A second attempt may go back further."""
    for number in range(3):
        writer.write_as(number, [state(number)])
    hold(place, (1, None))
    for number in (3, 4):
        writer.write_as(number, [state(number)])
    assert writer.back_to(4)
    assert writer.back_to(1)
    assert numbers_at(place) == {1}
    for number in range(2, 6):
        writer.write_as(number, [state(number)])
    writer.write_as(3, [state(30)])  # from a checkpoint
    assert max(numbers_at(place)) == 3
    assert read_snapshot(place).data == read_snapshot(place, 3).data == state(30)


def test_a_full_disk_costs_the_held_one_and_nothing_else(place, writer, monkeypatch):
    """The call goes on, as without copies; the copy is known not to be whole."""
    for number in range(2):
        writer.write_as(number, [state(number)])
    hold(place, (1, 0))
    held = [place_of(place, number) for number in (0, 1)]

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", full)
    for number in range(2, 6):
        writer.write_as(number, [state(number)])
        assert read_snapshot(place).data == state(number)
        assert {number, number - 1} <= numbers_at(place)
    assert [read_part(place, one, 0, 10_000) for one in held] == [None, None]


def test_a_reader_beside_a_quick_writer_never_sees_half_of_one(place, writer):
    """Nothing is held: most are gone by the time, and what is read is whole."""
    size, whole, over = 200_000, 0, threading.Event()
    writer.write_as(0, [state(0, size)])

    def write():
        number = 0
        while not over.is_set():
            number += 1
            writer.write_as(number, [state(number, size)])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3_000):
            newest = max(numbers_at(place), default=0)
            found = place_of(place, newest)
            parts = (
                []
                if found is None
                else [read_part(place, found, at, 50_000) for at in range(0, size, 50_000)]
            )
            if parts and None not in parts:
                assert b"".join(parts) == state(newest, size)
                whole += 1
            if whole >= 20:
                break
    finally:
        over.set()
        thread.join()
    assert whole


numbers = st.lists(
    st.one_of(
        st.just("write"),
        st.tuples(st.just("hold"), st.integers(-2, 3), st.one_of(st.none(), st.integers(-4, 0))),
        st.tuples(st.just("back"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(numbers)
def test_the_newest_the_one_before_and_those_held_are_always_there(tmp_path_factory, happened):
    """A model beside it: what was there when it was held, or came later."""
    path = tmp_path_factory.mktemp("model") / "one.snapshot"
    file, newest, made, states, held = SnapshotFile(path, both=True, slots=MOST_SLOTS), 0, 0, {0: 0}, set()
    file.write_as(0, [b"0"])
    for step in happened:
        if step == "write":
            made, newest = made + 1, newest + 1
            states = {number: one for number, one in states.items() if number < newest} | {newest: made}
            file.write_as(newest, [b"%d" % made])
        elif step[0] == "hold":
            wanted = [newest + step[1], None if step[2] is None else newest + step[2]]
            hold(path, tuple(None if one is None or one < 0 else one for one in wanted))
            held = {one for one in wanted if one is not None and (one > newest or one in numbers_at(path))}
        else:
            number = max(0, newest - step[1])
            if file.back_to(number):
                newest = number
                states = {one: state for one, state in states.items() if one <= newest}
                held = {one for one in held if one <= newest}
        there = numbers_at(path)
        assert max(there) == newest
        assert {one for one in held if one <= newest} <= there
        for number in there:
            assert read_snapshot(path, number).data == b"%d" % states[number]
    file.close()
