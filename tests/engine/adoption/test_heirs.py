"""Which engine an heir claims, where the owner of a pool has died: each one another, and none of anybody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from rayguard.engine.adoption import actor_fate, heirs
from rayguard.engine.adoption.lease import FOLDER, EngineLease, leases
from rayguard.engine.context import OfPool, Surroundings
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.ray_internals.rows import ActorRow

OWNER, POOL = "a1b2", "a1b2-0"


@pytest.fixture
def process():
    """Start processes that stand for engines and their owners."""
    started = []

    def start(*, dead=False):
        started.append(subprocess.Popen(["sleep", "600"]))
        found = ProcessId.of(started[-1].pid)
        assert found is not None
        if dead:
            started[-1].kill()
            started[-1].wait()
        return found

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def left(process, tmp_path):
    """Leave an engine."""

    def leave(actor_id, *, alive=False, **more):
        values = {"pool": POOL, "pool_life": 0, "devices": "", **more}
        lease = EngineLease(
            core=process(),
            owner=process(dead=not alive),
            actor_id=actor_id,
            arguments="",
            applied=(),
            input_address="",
            output_address="",
            ready=b"",
            keep_s=30.0,
            **values,
        )
        lease.write(tmp_path)
        return lease

    return leave


def heir(actor_id):
    return Surroundings(actor_id=actor_id, pool=OfPool(name=POOL, life=1))


def as_another(monkeypatch, process):
    """Go on as another process, which lives."""
    me = process()
    monkeypatch.setattr(heirs, "_me", lambda: me)
    return me


def test_each_heir_of_a_pool_has_another_engine(left, tmp_path, monkeypatch, process):
    """The actors that its owner's next life makes are not the same ones."""
    known = {left(f"old-{n}").core for n in range(2)}
    found = []
    for n in range(3):
        me = as_another(monkeypatch, process)
        claimed = heirs.claimed(tmp_path, heir(f"new-{n}"))
        assert claimed is None or claimed.wanted_by == me
        again = heirs.inherited(tmp_path, heir(f"new-{n}"), ())
        assert again == claimed, "it is the same one later"
        found.append(claimed)
    assert {one.core for one in found[:2]} == known
    assert found[2] is None, "there are no more"


@pytest.mark.parametrize(
    "other",
    [
        {"pool": ""},
        {"pool": "a1b2-1"},
        {"pool": "cc-0"},
        {"pool_life": 1},
        {"devices": "CUDA_VISIBLE_DEVICES=1"},
        {"alive": True},
    ],
    ids=str,
)
def test_an_engine_of_anybody_else_is_left_alone(left, tmp_path, monkeypatch, other):
    """Of another pool, of this life, on another device, with an owner that lives."""
    monkeypatch.setattr(heirs, "_DYING_S", 0.1)
    one = left("old", **other)
    assert heirs.claimed(tmp_path, heir("new")) is None
    assert heirs.inherited(tmp_path, heir("new"), ()) is None
    assert one.core.alive()
    assert [found.core for found in leases(tmp_path)] == [one.core]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_an_engine_of_another_user_is_neither_used_nor_ended(left, tmp_path):
    """Where both were told to keep their files in one place: even root does not touch what is not its own."""
    one = left("me")
    os.chown(tmp_path / FOLDER, 65534, 65534)
    assert heirs.inherited(tmp_path, heir("me"), ()) is None
    assert one.core.alive()
    assert (tmp_path / FOLDER).stat().st_uid == 65534
    assert [found.core for found in leases(tmp_path)] == [one.core]


def test_an_engine_whose_heir_died_is_free_again(left, tmp_path, monkeypatch, process):
    """It died while it adopted."""
    one = left("old")
    replace(one, wanted_by=process(dead=True)).write(tmp_path)
    me = as_another(monkeypatch, process)
    claimed = heirs.claimed(tmp_path, heir("new"))
    assert claimed is not None
    assert (claimed.core, claimed.wanted_by) == (one.core, me)


def test_its_own_actors_next_life_comes_first(left, tmp_path):
    """An actor that Ray starts again has its own engine, whatever the pool's others have left."""
    left("old")
    mine = left("me", pool_life=1)
    claimed = heirs.claimed(tmp_path, heir("me"))
    assert claimed is not None
    assert claimed.core == mine.core


def test_a_pool_that_closes_lets_go_of_what_nobody_went_on_with(left, tmp_path):
    """Fewer actors than before, say."""
    gone, others, used = left("old"), left("old", pool="cc-0"), left("new", alive=True)
    heirs.let_go(tmp_path, POOL)
    heirs.let_go(tmp_path, "")
    assert {one.core for one in leases(tmp_path)} == {others.core, used.core}
    assert gone.core.alive(), "it ends itself"


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        (None, "DEAD"),
        (ActorRow(actor_id=OWNER, state="RESTARTING", lives=1), "RESTARTING"),
        (ActorRow(actor_id=OWNER, state="ALIVE", lives=1), "ALIVE"),
        (ActorRow(actor_id=OWNER, state="ALIVE", lives=0), "DEAD"),  # it has dismissed the actor itself
        (ActorRow(actor_id=OWNER, state="DEAD", lives=1), "DEAD"),
    ],
)
def test_an_engine_waits_for_the_next_life_of_its_pools_owner(owner, told):
    """Not for that of an owner that goes on living, nor of one that is over."""
    assert actor_fate.said(ActorRow(actor_id="old", state="DEAD"), owner, 0) == told


ENDING = """
import sys
from types import SimpleNamespace
from rayguard.engine.adoption.own_leases import OwnLeases
from rayguard.engine.context import OfPool, Surroundings
from rayguard.home import home
from rayguard.process.identity import ProcessId, owner_of

core, owner, node = owner_of(sys.argv[1]), owner_of(sys.argv[2]), sys.argv[3]
of = OfPool(name="a1b2-0", life=0, node=node, owner=owner)
own = OwnLeases(30.0, Surroundings(actor_id="me", node="here", pool=of))
facts = SimpleNamespace(core=core, arguments="", input_address="", output_address="", ready=b"")
own.hand_in(SimpleNamespace(adoptable=lambda: facts), (), "")
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("dead", "node", "stays"), [(True, "here", True), (False, "here", False), (True, "elsewhere", False)]
)
def test_an_actor_that_exits_leaves_its_engine_where_its_pools_owner_has_died(
    process, tmp_path, monkeypatch, dead, node, stays
):
    """Ray asks it to exit, or kills it, as chance will have it."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    marks = [owner_mark(process()), owner_mark(process(dead=dead))]
    ended = subprocess.run([sys.executable, "-c", ENDING, *marks, node], check=False, timeout=100)
    assert ended.returncode == (1 if stays else 3)
    assert len(list(leases(tmp_path))) == int(stays)


def test_an_heir_waits_for_the_life_before_it_that_is_ending(left, tmp_path):
    """Ray begins the next life as soon as the last one has closed its connections."""
    mine = left("me", alive=True)
    killer = threading.Timer(0.4, os.kill, (mine.owner.pid, signal.SIGKILL))
    killer.start()
    claimed = heirs.claimed(tmp_path, heir("me"))
    killer.join()
    assert claimed is not None
    assert claimed.core == mine.core


def test_an_engine_of_another_cluster_is_neither_used_nor_ended(left, tmp_path, monkeypatch):
    """Two of Ray's may share a machine, its devices, and a home."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    one = left("old", gcs_address="127.0.0.1:1", devices="CUDA_VISIBLE_DEVICES=0", pool="")
    theirs = Surroundings(actor_id="new", gcs_address="127.0.0.1:2")
    assert heirs.inherited(tmp_path, theirs, ()) is None
    assert one.core.alive()
    assert heirs.inherited(tmp_path, replace(theirs, gcs_address=one.gcs_address), ()) is None
    assert not one.core.alive(), "here it is this one's"
