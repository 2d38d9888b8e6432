"""Gangs on a real Ray: whatever becomes of a rank, the losses are those without it, to the bit."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

import rayguard
from rayguard.errors import ConfigError, GangCallError, GaveUpError
from rayguard.recovery.journal import default_journal
from tests.cluster.node_pair import until
from tests.trainers.gang.gang_trainers import small_trainer

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
RANKS, STEPS = 3, 5
CPU = {"num_cpus": 0.1}


def kept():
    """What gangs keep on this node."""
    return sorted(one.name for one in (Path(os.environ["RAYGUARD_HOME"]) / "snapshots").glob("*"))


@pytest.fixture(scope="module", params=["fsdp", "ddp"])
def strategy(request):
    """How the model lies over the ranks."""
    return request.param


# What does not depend on it is tried with one.
SHARDED = pytest.mark.parametrize("strategy", ["fsdp"], indirect=True)


@pytest.fixture(scope="module")
def gang(ray, strategy):
    """One gang for the tests that leave it whole; it keeps nothing when it is closed."""
    found = rayguard.TrainerGang(
        small_trainer(),
        ranks=RANKS,
        spares=1,
        kwargs={"strategy": strategy},
        options=CPU,
        policy=rayguard.GangPolicy(leave_s=10.0),
    )
    with found:
        yield found
    assert not kept(), "a gang that is closed keeps nothing"


@pytest.fixture(scope="module")
def curve(ray, strategy):
    """The losses of a gang that nothing happens to, and its weights at the end."""
    with rayguard.TrainerGang(
        small_trainer(), ranks=RANKS, kwargs={"strategy": strategy}, options=CPU
    ) as calm:
        losses = [calm.call("step", number) for number in range(STEPS)]
        return losses, calm.call("digest")


def test_the_losses_are_the_same_to_the_bit(gang, curve, tmp_path):
    """Each step with another fault: a rank is killed in it, the first one too, stopped, elsewhere."""
    faults = [None, ("kill", 1), ("kill", 0), ("stop", 2), ("odd", 1)]
    losses = []
    for number, fault in enumerate(faults):
        mark = tmp_path / str(number)
        deadline_s = 12.0 if fault == ("odd", 1) else None
        losses.append(gang.call("step", number, fault=fault, mark=str(mark), deadline_s=deadline_s))
        assert fault is None or mark.exists(), "the fault has fired"
    assert losses == curve[0]
    assert gang.call("digest") == curve[1]
    status = gang.status()
    assert (status.recoveries, status.calls) == (len(faults) - 1, STEPS + 1)
    assert list(status.causes[:2]) == ["rank 1 died", "rank 0 died"]
    assert "rank 2 of 3 is stopped" in status.causes[2]
    assert "rank 1 of 3" in status.causes[3]


@SHARDED
def test_an_error_of_a_ranks_own_is_the_callers(gang):
    """The others, which wait in a collective, are taken out; all are as they were before the call."""
    before = gang.call("digest")
    with pytest.raises(KeyError, match="without a label") as caught:
        gang.call("step", 9, fault=("raise", 1))
    assert rayguard.incident_of(caught.value) is not None
    assert gang.call("digest") == before


@SHARDED
@pytest.mark.parametrize("kind", ["sleep", "loop", "gil"])
def test_a_rank_that_hangs_is_named_and_replaced(gang, kind, tmp_path):
    """Whether Python can still run in it or not."""
    mark = tmp_path / kind
    gang.call("step", 8)  # the first one of all may take longer than the deadline
    answers = gang.call("step", 9, fault=(kind, 1), mark=str(mark), deadline_s=4.0)
    assert mark.exists()
    assert len(answers) == RANKS
    said = gang.status().causes[-1]
    assert "rank 1 of 3" in said, said


@SHARDED
def test_a_rank_that_died_after_its_answer_is_told_too(gang, tmp_path):
    """Nobody asks it any more in that call: it is found as the others begin anew."""
    mark, pids = tmp_path / "mark", [pid for pid, *_ in gang.call("where")]

    def kill():
        until(mark.exists)
        threading.Event().wait(1.0)  # rank 0 has answered
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: not psutil.pid_exists(pids[0]))
        os.kill(pids[1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    answers = gang.call("where", fault=("sleep", 1), mark=str(mark))
    killer.join()
    assert not {pid for pid, *_ in answers} & set(pids[:2])
    told = default_journal().read()[-1]
    assert "rank 1 died" in told.cause
    assert [one[:12] for one in told.consequences if "dead" in one] in (
        ["rank 1: dead", "rank 0: dead"],
        ["rank 0: dead", "rank 1: dead"],
    )


@SHARDED
def test_what_fails_each_time_ends_with_its_causes(gang):
    """It may be the call's own doing; the gang is as it was, and goes on."""
    before = gang.call("digest")
    with pytest.raises(GangCallError, match="failed 3 times") as caught:
        gang.call("step", 9, fault=("kill", 2))
    assert len(caught.value.causes) == 3
    assert gang.call("digest") == before


@SHARDED
def test_weights_outlive_the_rank_that_gave_them(ray, gang):
    """Rollouts get them from the gang's owner, also while it recovers."""
    source = gang.weights()
    assert ray.get(source()) is None
    version = gang.publish_weights()
    pid = gang.call("where")[0][0]
    os.kill(pid, signal.SIGKILL)
    found, reference = ray.get(source())
    assert found == version
    weights = ray.get(reference)
    whole = gang.call("digest")[0]
    assert [one.flatten().tolist() for one in weights.values()] == whole
    assert list(weights) == ["0.weight", "0.bias", "3.weight", "3.bias"]


@SHARDED
def test_an_interrupted_call_is_undone(gang):
    """The driver's Ctrl-C comes in the midst of a step: the next call begins from the one before."""
    before = gang.call("digest")
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests side by side ignore it
    try:
        threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            gang.call("step", 9, fault=("sleep", 1))
    finally:
        signal.signal(signal.SIGINT, usual)
    assert gang.call("digest") == before


# -- other sizes


def chunks(size):
    """A batch of 17 rows over so many ranks."""
    import torch

    rows = {"x": torch.randn(17, 6, generator=torch.Generator().manual_seed(1))}
    return rayguard.split_batch(rows, world=size, micro=2)


def test_it_shrinks_and_grows_with_its_state(ray, strategy):
    """A batch is shared anew by itself, and the weights go where they would have gone."""
    import torch

    def trained(change):
        with rayguard.TrainerGang(
            small_trainer(),
            ranks=RANKS,
            kwargs={"strategy": strategy},
            options=CPU,
            policy=rayguard.GangPolicy(min_ranks=2, leave_s=60.0),  # who is slow to leave is not lost too
        ) as one:
            sizes = []
            for number in range(4):
                change(one, number)
                sizes.append(len(one.call("learn", each=chunks(RANKS))))
            return sizes, torch.cat([torch.tensor(part) for part in one.call("digest")[0]])

    def shrink(one, number):
        if number == 1:
            one._hosts._start_s = 0.01  # no new rank comes up in time
            os.kill(one.call("where")[1][0], signal.SIGKILL)
        if number == 3:
            one._hosts._start_s = 300.0
            one.resize(4)

    whole, weights = trained(lambda *_: None)
    assert whole == [3, 3, 3, 3]
    sizes, found = trained(shrink)
    assert sizes == [3, 2, 2, 4]
    assert torch.allclose(found, weights, atol=1e-6), (found - weights).abs().max()


# -- on a disk


@SHARDED
def test_a_new_gang_begins_from_the_newest_checkpoint(ray, strategy, tmp_path, caplog):
    """With another number of ranks, too; and one whose state went with its node goes back to it, loudly."""
    policy = rayguard.GangPolicy(checkpoint=tmp_path, checkpoint_every=2)
    kwargs = {"strategy": strategy}
    with rayguard.TrainerGang(small_trainer(), ranks=3, kwargs=kwargs, options=CPU, policy=policy) as one:
        steps = [one.call("step", number)[0][1] for number in range(2)]
        digest = one.call("digest")[0]
        pid = one.call("where")[1][0]
        one.call("digest")
        (lost,) = (Path(os.environ["RAYGUARD_HOME"]) / "snapshots").glob(f"{one._seats.gang}00000001*")
        lost.unlink()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(rayguard.StateLostError, match="after 4 calls: make calls 5 to 5 again"):
            one.call("step", 2)
        assert one.call("digest")[0] == digest
        assert one.call("step", 2)[0][1] == len(steps) + 1
    assert sorted(found.name for found in tmp_path.iterdir()) == ["call-000000004", "call-000000006"]
    with rayguard.TrainerGang(small_trainer(), ranks=2, kwargs=kwargs, options=CPU, policy=policy) as two:
        assert two.status().calls == 6
        assert two.call("step", 3)[0][1] == 4


# -- what cannot be


def test_a_setup_that_raises_on_one_rank(ray):
    """Its error is the caller's; nothing is left running, and no place is taken."""
    before, free = kept(), ray.available_resources()["CPU"]
    with pytest.raises(ValueError, match="no data on rank 1"):
        rayguard.TrainerGang(small_trainer(), ranks=2, kwargs={"fail_setup": 1}, options=CPU)
    assert kept() == before
    until, pause = time.monotonic() + 30, threading.Event()
    while ray.available_resources().get("CPU", 0.0) < free and time.monotonic() < until:
        pause.wait(0.1)
    assert ray.available_resources()["CPU"] >= free, (
        "more where an earlier gang's places were still coming back"
    )


def test_no_room(ray):
    """Says what is wanted and what there is."""
    with pytest.raises(rayguard.RecoveryTimeoutError, match=r"no room for 4 ranks and spares.*2 CPU"):
        rayguard.TrainerGang(small_trainer(), ranks=3, spares=1, policy=rayguard.GangPolicy(start_s=0.5))


def test_plain_ddp_is_refused_with_the_way_out(ray):
    """Its sums depend on where gradients lie in its buffers, which a new module changes."""
    with pytest.raises(ConfigError, match=r"find_unused_parameters=True.*exact=False"):
        rayguard.TrainerGang(small_trainer(), ranks=2, kwargs={"strategy": "plain"}, options=CPU)


def test_a_spent_budget_tells_the_story(ray):
    """And every later call says it at once."""
    policy = rayguard.GangPolicy(restarts=rayguard.RestartBudget(max_restarts=0, within_s=60.0))
    with rayguard.TrainerGang(small_trainer(), ranks=2, options=CPU, policy=policy) as one:
        os.kill(one.call("where")[1][0], signal.SIGKILL)
        with pytest.raises(GaveUpError, match="rank 1"):
            one.call("step", 0)
        with pytest.raises(GaveUpError, match="rank 1"):
            one.call("step", 0)
    with pytest.raises(ConfigError, match="closed"):
        one.call("step", 0)


def test_a_gang_is_closed_in_the_midst_of_a_call(ray):
    """From another thread: the call ends with its ranks, and nothing is started any more."""
    one = rayguard.TrainerGang(small_trainer(), ranks=2, options=CPU)
    one.call("digest")
    ended = []

    def call():
        with pytest.raises((ConfigError, GaveUpError)) as caught:
            one.call("step", 0, fault=("sleep", 1))
        ended.append(caught.value)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    threading.Event().wait(1.5)
    one.close()
    thread.join(60)
    assert len(ended) == 1
    assert not one._hosts.alive
