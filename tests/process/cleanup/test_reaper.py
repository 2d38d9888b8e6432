"""All of it in one pass, and beside a starting actor."""

import contextlib
import signal
import socket
import threading
import uuid

import pytest

from rayguard.process.cleanup import belongings, orphans, reaper, shm
from rayguard.process.cleanup.verdict import Fate
from rayguard.process.identity import owner_mark
from tests.process.lookalikes import CLAIMS, DEADLINE_S, zoo


@pytest.fixture
def cage():
    with zoo() as made:
        yield made


@pytest.fixture
def only_mine(monkeypatch, cage):
    """On a machine with other people's processes a test reaps its own alone."""
    everything = orphans.find
    monkeypatch.setattr(
        orphans, "find", lambda: [one for one in everything() if cage.mine(orphans.as_leftover(one).name)]
    )


def test_what_an_orphan_holds_goes_with_it(cage, only_mine):
    """Its segment is free only once it is dead; the note of its owner goes last."""
    path = cage.segment()
    code = (
        "import mmap, os, sys\nfd = os.open(sys.argv.pop(), os.O_RDWR)\nmapped = mmap.mmap(fd, 0)\n" + CLAIMS
    )
    child = cage.python(code, owner_mark(cage.dead), str(path))
    cage.own_process("a claim", child)
    cage.own_file("a segment", path, users=(cage.identity(child),))
    cage.write_notes()
    reaper.reap_home(cage.home)
    assert [one.kind for one in cage.ours if one.there()] == []
    assert child.wait(DEADLINE_S) == -signal.SIGKILL
    reaper.reap_home(cage.home)
    assert list((cage.home / belongings.KIND).iterdir()) == []


def test_at_start_it_reaps_beside_the_user(cage, only_mine):
    """In a thread of its own, and says what it did."""
    cage.own_files(1)
    cage.own_processes(1)
    cage.write_notes()
    told, failed = [], []
    thread = reaper.reap_at_start(cage.home, told.append, failed.append, deadline_s=DEADLINE_S)
    thread.join(DEADLINE_S)
    assert failed == []
    assert len(told) == 1
    assert [one.kind for one in cage.ours if one.there()] == []
    assert {one.fate for one in told[0]} == {Fate.REAPED}


def test_at_start_a_slow_look_leaves_nothing_behind(cage, only_mine, monkeypatch):
    """On a busy machine it takes longer than what a caller would wait for; nobody waits here, or comes later."""
    looks, pause = orphans.find, threading.Event()
    monkeypatch.setattr(orphans, "find", lambda: pause.wait(1.0) or looks())
    cage.own_files(1)
    cage.write_notes()
    reaper.reap_at_start(cage.home, [].append, [].append).join(DEADLINE_S)
    assert [one.kind for one in cage.ours if one.there()] == []


def test_at_start_nothing_is_raised(cage, only_mine, monkeypatch):
    """Neither what goes wrong inside, nor what the caller's functions raise."""
    failed = []

    def broken(*_):
        raise RuntimeError("broken")

    reaper.reap_at_start(cage.home, broken, failed.append).join(DEADLINE_S)
    monkeypatch.setattr(orphans, "find", broken)
    reaper.reap_at_start(cage.home, lambda _: None, failed.append).join(DEADLINE_S)
    reaper.reap_at_start(cage.home, broken, broken).join(DEADLINE_S)
    assert [str(error) for error in failed] == ["broken", "broken"]


def test_past_its_deadline_it_ends_nothing(cage, only_mine):
    """Bounded, whatever there is to do."""
    cage.own_files(2)
    cage.write_notes()
    done = reaper.reap_home(cage.home, deadline_s=0.0)
    assert {one.fate for one in done} == {Fate.FAILED}
    assert all(one.there() for one in cage.ours)


def test_a_wedged_socket_is_not_disturbed(cage):
    """A server whose queue is full is alive, and sees nothing of the question."""
    path = cage.room / str(uuid.uuid4())
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as clients:
        server.bind(str(path))
        server.listen(0)
        for _ in range(2):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        assert shm.listened_to(str(path)) is True
    assert shm.listened_to(str(path)) is False
    assert shm.listened_to(str(path) + "-none") is None
