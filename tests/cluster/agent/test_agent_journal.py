"""Following a node's journal by cursor: nothing is lost, whatever happens in between."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.cluster.agent import journal_feed
from rayguard.cluster.agent.journal_feed import KnownIncidents, records_after
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.journal import Journal


def incident(number, **values):
    return Incident(id=f"i{number:06}", kind="actor_died", scope="process", cause="c", pid=number, **values)


def all_of(home, cursor=""):
    found = []
    while True:
        cursor, more = records_after(home, cursor)
        if not more:
            return cursor, [one["id"] for one in found]
        found += more


def test_each_record_comes_once_across_rotations(tmp_path):
    """Who asks often enough gets them in order."""
    journal, cursor, got = Journal(tmp_path, max_bytes=2_000, keep=3), "", []
    for number in range(40):
        journal.write(incident(number))
        if number % 3 == 0:
            cursor, ids = all_of(tmp_path, cursor)
            got += ids
    got += all_of(tmp_path, cursor)[1]
    assert got == [f"i{number:06}" for number in range(40)]


def test_who_comes_too_late_gets_all_there_is(tmp_path):
    """Its file was rotated away: records come again rather than never."""
    journal = Journal(tmp_path, max_bytes=1_000, keep=1)
    journal.write(incident(0))
    cursor, _ = records_after(tmp_path, "")
    for number in range(1, 20):
        journal.write(incident(number))
    assert all_of(tmp_path, cursor)[1][-1] == "i000019"
    assert all_of(tmp_path, "of another journal:12")[1] == all_of(tmp_path)[1]
    assert all_of(tmp_path, "nonsense")[1] == all_of(tmp_path)[1]


def test_a_file_is_named_by_its_first_line_however_long_that_is(tmp_path):
    """A printed traceback of a hundred frames is no reason to leave a file out."""
    journal = Journal(tmp_path)
    journal.write(incident(1, notes=("x" * (2 * journal_feed._FIRST_BYTES),)))
    cursor, ids = all_of(tmp_path)
    journal.write(incident(2))
    assert ids == ["i000001"]
    assert all_of(tmp_path, cursor)[1] == ["i000002"]


def test_a_torn_line_waits_for_its_end_and_a_foreign_one_is_left_out(tmp_path):
    """And no journal at all is an empty one."""
    assert records_after(tmp_path / "none", "") == ("", [])
    Journal(tmp_path).write(incident(1))
    file = tmp_path / "incidents.jsonl"
    cursor, _ = all_of(tmp_path)
    with file.open("a") as stream:
        stream.write('["not ours"]\n{"id": "half')
    cursor, found = records_after(tmp_path, cursor)
    assert found == []
    with file.open("a") as stream:
        stream.write(' a line"}\n')
    Journal(tmp_path).write(incident(2))
    assert all_of(tmp_path, cursor)[1] == ["i000002"]


@given(asks=st.lists(st.integers(1, 30), min_size=1, max_size=8))
@settings(max_examples=20)
def test_an_answer_is_bounded_and_the_next_one_goes_on(tmp_path_factory, asks):
    """Whatever the bound is."""
    home = tmp_path_factory.mktemp("home")
    journal, before = Journal(home), journal_feed.MAX_RECORDS
    try:
        cursor, got, written = "", [], 0
        for most in asks:
            journal_feed.MAX_RECORDS = most
            for _ in range(3):
                journal.write(incident(written))
                written += 1
            cursor, found = records_after(home, cursor)
            assert len(found) <= most
            got += [one["id"] for one in found]
        got += all_of(home, cursor)[1]
        assert got == [f"i{number:06}" for number in range(written)]
    finally:
        journal_feed.MAX_RECORDS = before


def test_the_newest_state_of_each_incident_is_known_by_its_pid(tmp_path):
    """As for who asks whether a death was told."""
    journal, known = Journal(tmp_path), KnownIncidents(tmp_path)
    journal.write(incident(7, signature="agent.stopped"))
    known.refresh()
    assert [one.outcome for one in known.of(7)] == [Outcome.OPEN]
    journal.write(incident(7, signature="agent.stopped", outcome=Outcome.RECOVERED))
    journal.write(incident(8))
    known.refresh()
    assert [one.outcome for one in known.of(7)] == [Outcome.RECOVERED]
    assert [one.pid for one in known.signed("agent.")] == [7]
    assert known.of(9) == []
    known.close()
