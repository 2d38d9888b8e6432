"""What is reaped, and above all what is not: nothing that is not provably ours and dead."""

import dataclasses
import errno
import fcntl
import os
import signal
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.process import identity
from rayguard.process.cleanup import orphans, reaper, shm
from rayguard.process.cleanup.verdict import (
    Fate,
    FileFacts,
    ProcessFacts,
    ProcessLife,
    Shape,
    Sort,
    judge_file,
    judge_process,
    made_up,
)
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.process.pid_namespace import life_of, world
from tests.process.lookalikes import CORE, zoo

SHAPE = Shape(device=1, inode=2, changed_ns=3, user=4)
BORN = Shape(device=1, inode=2, changed_ns=3, user=4, born_ns=2, mode=5, size=6)
ORPHAN = ProcessFacts(
    ours=True,
    in_our_namespace=True,
    title=CORE,
    claimed=True,
    inherited=True,
    under_stranger=False,
    owner=ProcessLife.DEAD,
    since_owner=True,
)
REMAINS = FileFacts(
    sort=Sort.SEGMENT,
    name="psm_0b0e5ad5",
    noted=SHAPE,
    found=SHAPE,
    right_kind=True,
    links=1,
    our_user=4,
    owner=ProcessLife.DEAD,
    users=ProcessLife.DEAD,
)
PROCESS_FLAWS = [
    {"ours": False},
    {"in_our_namespace": False},
    {"claimed": False, "inherited": False},
    {"claimed": False, "title": "python train.py"},
    {"claimed": False, "under_stranger": True},
    {"owner": ProcessLife.ALIVE},
    {"owner": ProcessLife.UNKNOWN},
    {"since_owner": False},
    {"itself": True},
]
FILE_FLAWS = [
    {"found": None},
    {"name": "model.safetensors"},
    {"name": "psm_0b0e5ad5x"},
    {"sort": Sort.FILE},
    {"right_kind": False},
    {"links": 2},
    {"our_user": 5},
    {"owner": ProcessLife.ALIVE},
    {"owner": ProcessLife.UNKNOWN},
    {"users": ProcessLife.ALIVE},
    {"users": ProcessLife.UNKNOWN},
    *(
        {"found": dataclasses.replace(SHAPE, **{name: 9})}
        for name in ("device", "inode", "changed_ns", "user")
    ),
    *(
        {"noted": BORN, "found": dataclasses.replace(BORN, **{name: value})}
        for name, value in (
            ("device", 9),
            ("inode", 9),
            ("user", 9),
            ("born_ns", 9),
            ("mode", 9),
            ("size", 9),
        )
    ),
    {"noted": BORN, "found": dataclasses.replace(BORN, changed_ns=2)},
    {
        "sort": Sort.SOCKET,
        "name": str(uuid.UUID(int=7)),
        "noted": BORN,
        "found": dataclasses.replace(BORN, changed_ns=9),
    },
]


@pytest.fixture(scope="module")
def animals():
    """A few of each look-alike, and of what must go."""
    with zoo() as made:
        made.flawed_files(2)
        made.flawed_processes(1)
        made.own_files(2)
        made.own_processes(1)
        made.write_notes()
        yield made


@pytest.fixture
def cage():
    with zoo() as made:
        yield made


def test_what_is_ours_and_dead_is_reaped():
    """The cases from which each flaw below departs."""
    assert judge_process(ORPHAN)[0] is Fate.REAP
    assert judge_process(dataclasses.replace(ORPHAN, claimed=False))[0] is Fate.REAP
    assert judge_process(dataclasses.replace(ORPHAN, title="python", under_stranger=True))[0] is Fate.REAP
    assert judge_file(REMAINS, held=False)[0] is Fate.REAP
    used = dataclasses.replace(REMAINS, noted=BORN, found=dataclasses.replace(BORN, changed_ns=9))
    assert judge_file(used, held=False)[0] is Fate.REAP
    alive = dataclasses.replace(REMAINS, owner=ProcessLife.ALIVE, asked_by_owner=True)
    assert judge_file(alive, held=False)[0] is Fate.REAP


@pytest.mark.parametrize("flaw", PROCESS_FLAWS, ids=str)
def test_one_flaw_saves_a_process(flaw):
    """Each alone, with a reason."""
    fate, why = judge_process(dataclasses.replace(ORPHAN, **flaw))
    assert fate is Fate.LEFT
    assert why


@pytest.mark.parametrize("flaw", FILE_FLAWS, ids=str)
def test_one_flaw_saves_a_file(flaw):
    """Each alone, with a reason, whatever the kernel says about holders."""
    fate, why = judge_file(dataclasses.replace(REMAINS, **flaw), held=False)
    assert fate is Fate.LEFT
    assert why


@given(st.lists(st.sampled_from(FILE_FLAWS), max_size=4), st.sampled_from([None, True, False]), st.booleans())
def test_nothing_makes_a_flaw_good(flaws, held, by_owner):
    """However facts are put together: one that speaks against it is enough."""
    facts = dataclasses.replace(REMAINS, asked_by_owner=by_owner)
    for flaw in flaws:
        facts = dataclasses.replace(facts, **flaw)
    spared = [flaw for flaw in flaws if not (by_owner and "owner" in flaw)]
    fate, _ = judge_file(facts, held=held)
    assert fate is (Fate.LEFT if spared or (flaws and not by_owner) or held is not False else Fate.REAP)


def test_holders_are_named():
    """A person wants to know who."""
    assert judge_file(REMAINS, held=True, holders=(12, 13)) == (Fate.LEFT, "held by pid 12, 13")
    assert "cannot see" in judge_file(REMAINS, held=True)[1]
    assert "does not tell" in judge_file(REMAINS, held=None)[1]


@pytest.mark.parametrize(
    ("sort", "name", "ours"),
    [
        (Sort.SEGMENT, "psm_0b0e5ad5", True),
        (Sort.SEGMENT, "sem.mp-09dhrb3x", True),
        (Sort.SEGMENT, "nccl-Ab3dE9", True),
        (Sort.SEGMENT, "torch_12_3456_0", True),
        (Sort.SEGMENT, "psm_weights", False),
        (Sort.SEGMENT, "plasmaHfsJ11", False),
        (Sort.SEGMENT, "../psm_0b0e5ad5", False),
        (Sort.SOCKET, "90e0522f-a0bf-4218-880f-47cefd8e0d55", True),
        (Sort.SOCKET, "plasma_store", False),
        (Sort.RENDEZVOUS, "vllm_dist_241a3f6c2f424c009befefd97602caf2", True),
        (Sort.RENDEZVOUS, "vllm_dist_", False),
        (Sort.PROCESS, "psm_0b0e5ad5", False),
    ],
)
def test_only_names_that_libraries_make_up(sort, name, ours):
    """What a user named is the user's."""
    assert made_up(sort, name) is ours


def test_look_alikes_stay_and_leftovers_go(animals):
    """Real files and real processes, one flaw each; the bench offers a thousand of them."""
    offered = [one for one in reaper.find(animals.home) if animals.mine(one.shown.name)]
    stale = animals.stale(2)
    done = reaper.reap(offered)
    assert [one.kind for one in animals.alikes if not one.there()] == []
    assert [one.kind for one in animals.ours if one.there()] == []
    assert {one.name for one in done if one.fate is Fate.REAPED} >= {
        one.name for one in animals.ours if one.name.startswith("/")
    }
    assert all(one.why for one in done)
    for marked, innocent in stale:
        assert orphans.end_orphan(marked, time.monotonic() + 5)[0] is Fate.LEFT
        assert innocent.alive()


def test_finding_changes_nothing(cage):
    """What ``--dry-run`` does."""
    cage.own_files(1)
    cage.own_processes(1)
    cage.write_notes()
    first = [one.shown for one in reaper.find(cage.home) if cage.mine(one.shown.name)]
    assert {one.fate for one in first} == {Fate.REAP}
    assert len(first) == len(cage.ours)
    assert all(one.there() for one in cage.ours)


def test_a_file_that_changes_between_the_look_and_the_act_stays(cage):
    """The second look decides."""
    path = cage.segment()
    cage.own_file("a segment", path)
    cage.write_notes()
    found = [one for one in reaper.find(cage.home) if cage.mine(one.shown.name)]
    assert [one.shown.fate for one in found] == [Fate.REAP]
    with path.open("rb"):
        assert reaper.reap(found)[0].fate is Fate.LEFT
    path.unlink()
    path.write_bytes(b"another")
    assert reaper.reap(found)[0].fate is Fate.LEFT
    assert path.read_bytes() == b"another"
    path.unlink()
    assert reaper.reap(found)[0].fate is Fate.LEFT


def test_without_the_kernels_word_nothing_goes(cage, monkeypatch):
    """On a file system that grants no leases."""
    cage.own_file("a segment", cage.segment())
    cage.write_notes()

    def no_leases(fd, command, argument=0):
        raise OSError(errno.EINVAL, "no leases here")

    monkeypatch.setattr(fcntl, "fcntl", no_leases)
    (only,) = [one for one in reaper.find(cage.home) if cage.mine(one.shown.name)]
    assert (only.shown.fate, "does not tell" in only.shown.why) == (Fate.LEFT, True)


def test_the_proof_leaves_no_lease_and_no_signal_behind(tmp_path):
    """Who opens the file afterwards is not held up, and we are told nothing."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    told = []
    before = signal.signal(signal.SIGURG, lambda *_: told.append(1))
    try:
        file = os.open(path, os.O_RDONLY)
        assert shm.held(file) is False
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        os.close(file)
    finally:
        signal.signal(signal.SIGURG, before)
    assert told == []


def test_a_hidden_owner_is_not_dead(monkeypatch):
    """/proc can hide other users' processes, and cannot be read without descriptors."""
    me = ProcessId.me()
    assert life_of(me, world()) is ProcessLife.ALIVE
    assert life_of(ProcessId(me.pid, me.started - 1), world()) is ProcessLife.DEAD
    assert life_of(me, "another boot") is ProcessLife.UNKNOWN
    assert life_of(me, "") is ProcessLife.UNKNOWN
    assert life_of(None, world()) is ProcessLife.UNKNOWN
    monkeypatch.setattr(identity, "_stat", lambda pid: None)
    assert life_of(me, world()) is ProcessLife.UNKNOWN
    assert life_of(ProcessId(2**22 + 1, 5), world()) is ProcessLife.DEAD


def test_what_cannot_be_read_is_no_candidate(cage, monkeypatch):
    """Another user's processes, and our own that are protected."""
    child = cage.process(CORE, owner_mark(cage.dead))

    def refused(own):
        raise PermissionError(errno.EACCES, "no", str(own))

    monkeypatch.setattr(orphans, "_claim_of", refused)
    assert orphans.find() == []
    assert child.poll() is None
