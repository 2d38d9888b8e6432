"""Gangs over two real Ray nodes, of which one is lost with all that it kept: the losses are those without that."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

import rayguard
from tests.trainers.gang.gang_trainers import small_trainer
from tests.trainers.gang.node_loss import HEAD_CPUS, OTHER_CPUS, RANKS, GangNodes, copied, keeper_pid, until
from tests.unlisted_cluster import unlisted_cluster
from tests.worker_start import FORKED

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
STEPS = 5


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A cluster with one node, each node with a home of its own: no disk is shared."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv(FORKED, "torch,torch._dynamo,torch.distributed.fsdp,rayguard.trainers.gang.rank_host")
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
        )
        cluster = unlisted_cluster()
        found = GangNodes(cluster, tmp_path_factory.mktemp("nodes"))
        rays = tempfile.mkdtemp(prefix="rays-", dir="/tmp")  # short: Ray's sockets lie in there
        try:
            found.add(num_cpus=HEAD_CPUS, include_dashboard=False, temp_dir=rays)
            patch.setenv("RAYGUARD_HOME", str(found.homes[found.head]))
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield found
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(rays, ignore_errors=True)


@pytest.fixture
def nodes(head):
    """Two nodes; gangs that are made on them are closed, and leave nothing."""
    if len(head.nodes) < 2:
        head.add(num_cpus=OTHER_CPUS)
    yield head
    head.close()


@pytest.fixture(scope="module")
def curve(head):
    """The losses of a gang that nothing happens to, on one node."""
    with rayguard.TrainerGang(small_trainer(), ranks=RANKS, options={"num_cpus": 1}) as calm:
        losses = [calm.call("step", number) for number in range(STEPS)]
        assert calm._seats.copies._thread is None, "on one node nothing is started"
        assert calm.status().copies_behind is None
        return losses


@pytest.mark.parametrize("within", [False, True], ids=["between calls", "within a call"])
def test_a_lost_node_costs_no_call(curve, nodes, within, tmp_path, caplog):
    """Its rank begins anew on the other node from the copy there; then there is no other, until one comes."""
    gang, other, mark = nodes.gang(), nodes.other, tmp_path / "mark"
    (rank,) = [host.rank for host in gang._seats.taken() if host.node == other]
    losses = [gang.call("step", number) for number in range(2)]
    copied(gang)

    def lose():
        until(mark.exists)
        copied(gang)
        nodes.lose(other)

    if within:
        thread = threading.Thread(target=lose)
        thread.start()
        losses.append(gang.call("step", 2, fault=("sleep", rank), mark=str(mark)))
        thread.join()
    else:
        nodes.lose(other)
        losses.append(gang.call("step", 2))
    losses.append(gang.call("step", 3))
    assert gang.status().copies_behind is None, "there is no other node"
    nodes.add(num_cpus=OTHER_CPUS)
    copied(gang)
    losses.append(gang.call("step", 4))
    copied(gang)
    assert losses == curve
    status = gang.status()
    assert (status.recoveries, status.calls) == (1, STEPS)
    (incident,) = [
        one for one in nodes.incidents(nodes.head) if one.target == "Small" and one.outcome == "recovered"
    ][-1:]
    assert any("after 2 calls has come from the copies" in one for one in incident.notes)
    assert set(nodes.homes) == {node for node, _ in gang._seats.copies._keepers._by_node.items()}


def test_what_is_told_where_the_copies_lag_or_there_are_none(curve, nodes, tmp_path, monkeypatch):
    """The gang goes back as far as it must, and says by number which calls are to be made again."""
    lags, saved, other = (
        nodes.gang(),
        nodes.gang(copies=0, checkpoint=tmp_path, checkpoint_every=2),
        nodes.other,
    )
    assert saved._seats.copies._thread is None
    losses = [[gang.call("step", number) for number in range(2)] for gang in (lags, saved)]
    copied(lags)
    monkeypatch.setattr(lags._seats.copies, "_round", lambda _: False)
    for gang, theirs in ((lags, losses[0]), (saved, losses[1])):
        theirs += [gang.call("step", number) for number in (2, 3, 4)[: 2 if gang is lags else 1]]
    assert lags.status().copies_behind == 2
    assert losses == [curve[:4], curve[:3]]
    nodes.lose(other)
    with pytest.raises(
        rayguard.StateLostError, match=r"to the copies of its states after 2 calls: make calls 3 to 4 again"
    ):
        lags.call("step", 4)
    with pytest.raises(
        rayguard.StateLostError, match=r"to its checkpoint after 2 calls: make calls 3 to 3 again"
    ):
        saved.call("step", 3)
    for gang in (lags, saved):
        assert gang.status().calls == 2
        assert [gang.call("step", number) for number in (2, 3, 4)] == curve[2:]
    told = [one for one in nodes.incidents(nodes.head) if one.outcome == "state_lost"]
    assert any("make calls 3 to 4 again" in note for one in told for note in one.notes)
    assert any("make calls 3 to 3 again" in note for one in told for note in one.notes)


def test_a_gang_that_shrinks_has_the_state_of_the_lost_rank(nodes):
    """There is no room for another one: the others share what its copy has."""
    gang = nodes.gang(min_ranks=2)
    gang.call("step", 0)
    whole = gang.call("digest")[0]
    copied(gang)
    with nodes.taken(nodes.head, HEAD_CPUS - 2):
        nodes.lose(nodes.other)
        gang._hosts._start_s = 20.0
        assert gang.call("digest") == [whole, whole]
    assert gang.status().calls == 3


@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP])
def test_a_gang_does_not_notice_that_a_receiver_goes(curve, nodes, strike):
    """Nor that it stands still; another one takes over, and the copies are those of the last call again."""
    gang = nodes.gang()
    losses = [gang.call("step", 0)]
    copied(gang)
    pid = keeper_pid(gang, nodes.other)
    os.kill(pid, strike)
    losses += [gang.call("step", number) for number in range(1, STEPS)]
    assert losses == curve
    until(lambda: gang.status().copies_behind == 0 and keeper_pid(gang, nodes.other) not in (None, pid))
    assert gang.status().recoveries == 0
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_copies_are_made_of_quick_calls_too(nodes):
    """Their states are gone before somebody could ask for them: they are held before they come."""
    gang, copied_calls, over = nodes.gang(), set(), time.monotonic() + 150
    while len(copied_calls) < 5 and time.monotonic() < over:
        gang.call("where")
        status = gang.status()
        if status.copies_behind is not None:
            copied_calls.add(status.calls - status.copies_behind)
    assert len(copied_calls) == 5
    copied(gang)
    assert gang.status().recoveries == 0


def deleted(pid):
    """Return the files without a name that a process has open."""
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was for a moment
            found += [one] if "deleted" in str(one.readlink()) else []
    return found


def test_a_hundred_generations_leave_nothing(nodes):
    """No thread, no keeper and no file more than the first; and the copies are of the last."""
    gang = nodes.gang(restarts=rayguard.RestartBudget(max_restarts=1_000, within_s=3_600.0))

    def fail(times):
        for _ in range(times):
            with pytest.raises(KeyError):
                gang.call("step", 0, fault=("raise", 1))
        copied(gang)
        keepers = [psutil.Process(keeper_pid(gang, node)) for node in nodes.homes]
        files = [len(deleted(one.pid)) for one in keepers]
        return [one.pid for one in keepers], threading.active_count(), files

    shared = {one.name for one in Path("/dev/shm").iterdir() if one.name.startswith("rayguard")}
    before = fail(3)
    after = fail(97)
    assert after[0] == before[0], "the same keepers"
    assert after[1] <= before[1]
    assert max(after[2]) <= 3 * RANKS, "of each rank two copies at most, and one file to be used again"
    assert gang.status().generation == 100
    gang.close()
    assert {one.name for one in Path("/dev/shm").iterdir() if one.name.startswith("rayguard")} <= shared
    assert not [one for one in threading.enumerate() if one.name == "rayguard-copies"]
    until(lambda: not any(map(psutil.pid_exists, after[0])))
