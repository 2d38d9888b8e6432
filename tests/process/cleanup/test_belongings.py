"""What an engine uses, noted while it lives; freed by its owner when it is dead."""

import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from rayguard.process.cleanup import belongings, orphans, reaper, shm
from rayguard.process.cleanup.verdict import Fate, Sort
from rayguard.process.identity import ProcessId, owner_mark
from tests.process.lookalikes import DEADLINE_S, dead_process, zoo


@pytest.fixture
def cage():
    with zoo() as made:
        yield made


ENGINE = """
import socket, sys, time
from multiprocessing import get_context, resource_tracker
from multiprocessing.shared_memory import SharedMemory
resource_tracker.register = lambda *_: None  # vLLM's engine has its owner's, which lives on
given = SharedMemory(sys.argv[1])
own = SharedMemory(create=True, size=4096)
lock = get_context("spawn").Lock()
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[2])
server.listen()
ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(own.name, *(port.getsockname()[1] for port in ports), flush=True)
time.sleep(600)
"""


@pytest.fixture
def engine(cage, tmp_path, monkeypatch):
    """A process with a segment, a lock, a socket and ports, which also maps a segment of ours."""
    monkeypatch.setattr(belongings.tempfile, "tempdir", str(tmp_path))
    users = cage.segment()
    monkeypatch.setattr(resource_tracker, "register", lambda *_: None)  # it would unlink what we only attach
    held = SharedMemory(users.name)
    address = cage.room / str(uuid.uuid4())
    child = subprocess.Popen([sys.executable, "-c", ENGINE, users.name, str(address)], stdout=subprocess.PIPE)
    name, *ports = child.stdout.readline().decode().split()
    made = type("Engine", (), {})()
    made.child, made.process, made.users, made.socket = child, ProcessId.of(child.pid), users, address
    made.segment, made.ports = shm.SHM / name, [int(port) for port in ports]
    belongings.note([made.process], cage.home)
    yield made
    child.kill()
    child.wait(DEADLINE_S)
    child.stdout.close()
    held.close()
    for one in belongings.note([], cage.home):  # what a test did not free
        Path(one.path).unlink()


def store(path, ports):
    """Write what gloo's workers leave in a FileStore."""
    path.write_bytes(
        b"".join(b"key\x02\x00" + p.to_bytes(2, "big") + b"\x7f\0\0\1" + bytes(8) for p in ports)
    )
    return path


def test_what_an_engine_uses_is_noted(engine, cage, tmp_path):
    """Its segments, semaphores and sockets, and where its workers met; nothing that it was given."""
    own = store(tmp_path / f"vllm_dist_{uuid.uuid4().hex}", engine.ports)
    store(
        tmp_path / f"vllm_dist_{uuid.uuid4().hex}", [*engine.ports, 1]
    )  # of workers one of which is not ours
    store(tmp_path / f"vllm_dist_{uuid.uuid4().hex}", [])
    noted = belongings.note([engine.process], cage.home)
    its = [one for one in noted if owner_mark(engine.process) in one.users]  # not the sockets of this test
    by_sort = {sort: {one.path for one in its if one.sort is sort} for sort in Sort}
    semaphores = {path for path in by_sort[Sort.SEGMENT] if "/sem.mp-" in path}
    assert len(semaphores) == 1
    assert by_sort[Sort.SEGMENT] - semaphores == {str(engine.segment)}
    assert by_sort[Sort.SOCKET] == {str(engine.socket)}
    assert by_sort[Sort.RENDEZVOUS] == {str(own)}
    assert belongings.read(belongings.path_of(cage.home)).belongings == noted
    assert belongings.path_of(cage.home).stat().st_mode & 0o777 == 0o600


def test_a_second_note_adds_and_forgets(engine, cage):
    """An engine is built again and again in one process."""
    engine.segment.unlink()
    paths = {one.path for one in belongings.note([], cage.home)}
    assert str(engine.segment) not in paths
    assert str(engine.socket) in paths


def test_the_owner_frees_what_a_killed_engine_left(engine, cage):
    """At once, and not when the owner itself ends; before its end, and for strangers, all of it stays."""
    others = [one.shown for one in reaper.find(cage.home) if one.shown.name == str(engine.segment)]
    assert [one.why for one in others] == ["a process that used it lives"]
    engine.child.kill()
    engine.child.wait(DEADLINE_S)
    others = [one.shown for one in reaper.find(cage.home) if one.shown.name == str(engine.segment)]
    assert [one.why for one in others] == ["its owner lives"]
    assert engine.segment.exists()
    done = reaper.free_after([engine.process], cage.home)
    assert {one.fate for one in done} == {Fate.REAPED}
    assert not engine.segment.exists()
    assert not engine.socket.exists()
    assert engine.users.exists()


def test_an_heir_frees_what_an_engine_left_that_it_had_no_use_for(cage):
    """Of a dead owner's: what a living process of that engine still uses stays, as does a living owner's."""
    used, unused = cage.segment(), cage.segment()
    cage.own_file("a segment", unused)
    cage.write_notes()
    assert reaper.free_after([dead_process()], cage.home, left_by=ProcessId.me()) == []
    done = reaper.free_after([dead_process()], cage.home, left_by=cage.dead)
    assert [one.fate for one in done] == [Fate.REAPED]
    assert used.exists()
    assert not unused.exists()


def test_the_owner_leaves_what_another_engine_of_it_uses(engine, cage):
    """A standby beside a killed engine, say."""
    assert reaper.free_after([dead_process()], cage.home) == []
    assert {one.fate for one in reaper.free_after([engine.process], cage.home)} == {Fate.LEFT}
    assert engine.segment.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"owner": "1-2"}', b'{"owner": 5, "world": "", "belongings": 3}']
)
def test_a_torn_note_says_nothing(cage, content):
    """Nor does one of another owner under this name."""
    cage.own_file("a segment", cage.segment())
    cage.write_notes()
    path = belongings.path_of(cage.home, cage.dead)
    whole = path.read_bytes()
    path.write_bytes(content)
    assert belongings.notes(cage.home) == []
    path.write_bytes(whole.replace(owner_mark(cage.dead).encode(), b"7-7", 1))
    assert belongings.notes(cage.home) == []
    path.write_bytes(whole)
    assert len(belongings.notes(cage.home)) == 1


def test_what_took_too_long_to_die_is_freed_with_the_next_engine(engine, cage):
    """Its worker may unmap gigabytes for seconds."""
    engine.child.kill()
    engine.child.wait(DEADLINE_S)
    done = reaper.free_after([dead_process()], cage.home)
    assert {one.fate for one in done} == {Fate.REAPED}
    assert not engine.segment.exists()


THREADED = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_until_its_last_thread(cage):
    """It shows as a zombie, while what it maps is not free yet."""
    child = subprocess.Popen([sys.executable, "-c", THREADED], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        process = ProcessId.of(child.pid)
        deadline = time.monotonic() + DEADLINE_S
        while process.alive():
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        threading.Timer(0.2, child.kill).start()
        orphans.wait_until_dead(process, time.monotonic() + DEADLINE_S)
        assert child.poll() is not None
    finally:
        child.kill()
        child.wait(DEADLINE_S)
        child.stdout.close()


@pytest.mark.parametrize("who", ["the process that used it", "another one of the engine"])
def test_an_engine_without_an_owner_takes_its_names_along(engine, cage, who):
    """As Python's tracker would, which Ray ends with the owner: by the note of a dead owner alone, and its own.

    Also for a worker that only it used the memory with: it is killed with its core, before it can.
    """
    note = belongings.read(belongings.path_of(cage.home))
    me, its = owner_mark(ProcessId.me()), owner_mark(engine.process)
    mine = [
        replace(one, users=tuple(me if user == its else user for user in one.users))
        for one in note.belongings
    ]
    belongings.write(cage.home, replace(note, owner=cage.dead))
    belongings.unlink_own(cage.dead, cage.home)  # nothing in this note is of an engine that we are part of
    assert engine.segment.exists()
    if who.startswith("another"):
        mine = [one for one in mine if one.sort is not Sort.SEGMENT] + [
            one for one in note.belongings if one.sort is Sort.SEGMENT
        ]
    belongings.write(cage.home, replace(note, owner=cage.dead, belongings=tuple(mine)))
    belongings.unlink_own(cage.used_by, cage.home)  # there is no such note
    assert engine.segment.exists()
    belongings.unlink_own(cage.dead, cage.home)
    assert not engine.segment.exists()
    assert engine.users.exists()
    assert engine.socket.exists()
