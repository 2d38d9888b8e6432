"""A gang's state on a disk: whole or not there; the newest that is complete is found, older ones go."""

from __future__ import annotations

import pytest

from rayguard.errors import StateLostError
from rayguard.process import state_bytes
from rayguard.trainers.gang.checkpoint import complete, newest, read_parts, write_part


def write(place, number, ranks):
    """One checkpoint, not complete yet."""
    for rank in ranks:
        write_part(str(place), number, rank, state_bytes.to_parts({"number": number, "rank": rank}))


def test_there_may_be_none(tmp_path):
    """Also no folder."""
    assert newest(str(tmp_path / "nowhere")) is None


def test_the_newest_complete_one_is_found(tmp_path):
    """One whose ranks have not all answered is passed over, and so is a file of somebody else's."""
    for number in (50, 100, 1_000_000_000):
        write(tmp_path, number, range(3))
    complete(str(tmp_path), 50, 3)
    complete(str(tmp_path), 100, 3)
    (tmp_path / "call-notes").mkdir()
    found = newest(str(tmp_path))
    assert (found.number, found.size) == (100, 3)
    assert read_parts(found, [2, 0]) == [{"number": 100, "rank": 2}, {"number": 100, "rank": 0}]


def test_the_last_two_are_kept(tmp_path):
    """And what never became complete goes with the older ones."""
    for number in range(1, 6):
        write(tmp_path, number, range(2))
        if number != 2:
            complete(str(tmp_path), number, 2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["call-000000004", "call-000000005"]


def test_a_damaged_one_is_an_error_and_a_partial_one_none(tmp_path):
    """Never another state than was kept."""
    write(tmp_path, 3, range(2))
    complete(str(tmp_path), 3, 2)
    part = tmp_path / "call-000000003" / "rank-1.state"
    part.write_bytes(part.read_bytes()[:-3])
    with pytest.raises(StateLostError, match="call-000000003"):
        read_parts(newest(str(tmp_path)), [1])
    part.unlink()
    assert newest(str(tmp_path)) is None
