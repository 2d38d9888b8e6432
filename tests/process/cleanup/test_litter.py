"""What dead processes left in rayguard's own home: removed late, and nothing of the living."""

import dataclasses
import json
import os
import time

from rayguard.process import owned_files
from rayguard.process.cleanup import belongings, own_files, reaper, shm
from rayguard.process.cleanup.verdict import Fate
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.process.pid_namespace import world
from tests.process.lookalikes import dead_process


def test_token_logs_and_recordings_go_some_time_after_their_writers(tmp_path):
    """As ``owned_files`` promises: who asks why it died still finds them."""
    for name, kind, ending, keep_s in own_files.SWEPT:
        folder = tmp_path / name
        folder.mkdir()
        path = owned_files.path_of(folder, kind, ending, dead_process())
        path.write_bytes(b"last words")
        living = owned_files.path_of(folder, kind, ending)
        living.write_bytes(b"more to come")
        assert own_files.sweep(tmp_path, only_look=True) == []
        assert path.stat().st_mode & 0o777 != 0o400
        assert own_files.sweep(tmp_path) == []
        assert own_files.sweep(tmp_path) == []
        os.utime(path, (time.time() - keep_s - 1,) * 2)
        (found,) = own_files.sweep(tmp_path, only_look=True)
        assert found.fate is Fate.REAP
        assert path.exists()
        (found,) = own_files.sweep(tmp_path)
        assert (found.fate, found.name) == (Fate.REAPED, str(path))
        assert not path.exists()
        assert living.exists()


def page(home, process, where, age_s=90_000):
    (home / "status").mkdir(exist_ok=True)
    path = home / "status" / f"{owner_mark(process)}.json"
    path.write_text(json.dumps({"world": where}))
    return path


def test_pages_of_the_dead_go_after_a_day(tmp_path, monkeypatch):
    """Not those of other boots and containers, nor of the living."""
    here = world().rpartition(" ")[0]
    dead = dead_process()
    gone = page(tmp_path, dead, here)
    page(tmp_path, ProcessId(dead.pid, dead.started + 1), "another boot pid:[1]")
    page(tmp_path, ProcessId.me(), here)
    page(tmp_path, ProcessId(dead.pid, dead.started + 2), "")
    assert own_files.find(tmp_path) == []
    now = time.time()
    monkeypatch.setattr(own_files.time, "time", lambda: now + 90_000)
    assert [one.path for one in own_files.find(tmp_path)] == [gone]
    assert own_files.remove(own_files.find(tmp_path)[0])[0] is Fate.REAPED
    assert not gone.exists()


def test_the_state_of_a_recycled_actor_waits_for_its_next_life(tmp_path, monkeypatch):
    """It goes when its boot is over and nobody has come for days."""
    folder = tmp_path / "kept"
    folder.mkdir()
    state = folder / f"{'ab' * 16}.state"
    half = folder / f"{'ab' * 16}-abcd_123.writing"
    other = folder / "notes.txt"
    for path in (state, half, other):
        path.write_bytes(b"weights")
    found = {one.path: one.shown.fate for one in own_files.find(tmp_path)}
    assert found == {state: Fate.LEFT}
    now = time.time()
    monkeypatch.setattr(own_files.time, "time", lambda: now + 10 * 86_400)
    found = {one.path: one.shown.fate for one in own_files.find(tmp_path)}
    assert found[half] is Fate.REAP
    assert found[state] is Fate.REAP  # by this clock the machine was started after it was written
    monkeypatch.setattr(own_files.time, "clock_gettime", lambda clock: 20 * 86_400.0)
    found = {one.path: one for one in own_files.find(tmp_path)}
    assert found[state].shown.fate is Fate.LEFT
    assert (
        reaper.reap([reaper.FoundLeftover(found[state].shown, lambda _: own_files.remove(found[state]))])[
            0
        ].fate
        is Fate.LEFT
    )
    assert state.exists()
    with half.open("ab"):
        assert own_files.remove(found[half])[0] is Fate.LEFT
    again = half.with_name("again")
    half.rename(again)
    half.write_bytes(b"of another writer")
    assert own_files.remove(found[half])[0] is Fate.LEFT
    again.rename(half)
    assert own_files.remove(dataclasses.replace(found[half], shape=shm.shape(half.lstat())))[0] is Fate.REAPED
    assert other.exists()


def test_a_home_that_is_not_there_has_no_litter(tmp_path):
    """The first start on a machine."""
    assert own_files.find(tmp_path / "none") == []
    assert belongings.notes(tmp_path / "none") == []
