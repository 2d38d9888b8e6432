"""Numbered records in a file: which of them a reader gets, whatever moment the writer died at."""

import os

import pytest

from rayguard.process.call_log import CallLog, read_calls
from tests.open_files import open_files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calls"


def test_a_reader_gets_those_between_two_numbers(path):
    """After the first and up to the last, in their order; an empty record is one."""
    log = CallLog(path)
    for number, record in ((1, b"one"), (2, b""), (3, b"three"), (4, b"four")):
        log.add(number, record)
    assert read_calls(path, 1, 3) == [b"", b"three"]
    assert read_calls(path, 0, 9) == [b"one", b"", b"three", b"four"]
    assert read_calls(path, 4, 9) == []


def test_what_is_cut_short_is_left_out(path):
    """At each byte that a death may have come after."""
    log = CallLog(path)
    log.add(1, b"one")
    whole = log.size
    log.add(2, b"two")
    data = path.read_bytes()
    for size in range(whole, len(data)):
        path.write_bytes(data[:size])
        assert read_calls(path, 0, 9) == [b"one"]


def test_cleared_it_holds_none_also_of_an_earlier_process(path):
    """And goes on."""
    CallLog(path).add(1, b"of the last life")
    log = CallLog(path)
    log.clear()
    assert read_calls(path, 0, 9) == []
    log.add(1, b"of this one")
    log.clear()
    assert log.size == 0
    log.add(2, b"next")
    assert read_calls(path, 0, 9) == [b"next"]


def test_where_it_finds_no_room_it_says_so_and_keeps_what_there_was(path, monkeypatch):
    """Half a record would hide those that come after it."""
    log, write = CallLog(path), os.write
    log.add(1, b"one")
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    with pytest.raises(OSError, match="no room"):
        log.add(2, b"two")
    monkeypatch.undo()
    log.add(3, b"three")
    assert read_calls(path, 0, 9) == [b"one", b"three"]


def test_no_file_holds_none_and_reading_leaves_none_open(path):
    """Nor does a link lead anywhere."""
    before = open_files()
    assert read_calls(path, 0, 9) == []
    path.symlink_to("/etc/passwd")
    assert read_calls(path, 0, 9) == []
    with pytest.raises(OSError, match="symbolic links"):
        CallLog(path).add(1, b"one")
    assert not open_files() - before
