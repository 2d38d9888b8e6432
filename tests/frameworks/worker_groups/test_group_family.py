"""A family of groups at work, with workers that die as they are told: no Ray."""

from __future__ import annotations

import io
import logging
import pickle
import threading
import time
from contextlib import redirect_stdout

import pytest

from rayguard.frameworks.worker_groups import in_worker, roll_call
from rayguard.frameworks.worker_groups.calls import method_of
from rayguard.frameworks.worker_groups.family import Elsewhere, GroupFamily
from rayguard.frameworks.worker_groups.pending_call import PendingCall, Sending, here
from rayguard.frameworks.worker_groups.policy import GroupPolicy
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.journal import Journal

UPDATE, ASK = method_of("update_actor", ()), method_of("compute_values", ())


class DeadError(RuntimeError):
    """What a caller gets from workers that died."""


class Number:
    """Workers that hold one number, and die at the calls that they were told of."""

    name, roles = "numbers of 2", ()

    def __init__(self, dying=(), failing=()):
        self.handles, self.value, self.calls, self.made = ["a", "b"], 0, 0, 0
        self.dying, self.failing, self.dead = set(dying), set(failing), False
        self.block = threading.Event()
        self.block.set()

    def update(self, number):
        self.calls += 1
        if self.calls in self.dying:
            self.dead = True
        if self.dead:
            raise DeadError("rank 1 has gone")
        if self.calls in self.failing:
            raise ValueError("of the user's own")
        self.value += number
        return self.value

    def make_again(self, number):
        assert self.block.wait(60)
        self.handles, self.value, self.made, self.dead = [f"{number}a", f"{number}b"], 0, self.made + 1, False

    def load(self, method):
        return None


@pytest.fixture
def journal(monkeypatch, tmp_path):
    """Return what was written; nobody asks Ray who is dead."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    return Journal(tmp_path)


@pytest.fixture
def family_of(monkeypatch, journal):
    """Return a function that makes a family of such workers."""

    def family(workers, **policy):
        ended = []
        monkeypatch.setattr(roll_call, "patience_s", lambda *_: 1.0)
        monkeypatch.setattr(
            roll_call,
            "dead_ranks",
            lambda handles, within_s: {1: DeadError("it died")} if workers.dead else {},
        )
        monkeypatch.setattr(roll_call, "end_all", lambda handles, within_s: ended.append(tuple(handles)))
        monkeypatch.setattr(roll_call, "all_ready", lambda handles, within_s: True)
        found = GroupFamily(workers, GroupPolicy(**{"snapshot_ratio": 0.0, **policy}))
        found.ended = ended
        return found

    return family


def outcomes(journal):
    return [one.outcome.value for one in journal.read()]


def test_a_death_is_not_seen_by_the_caller(family_of, journal):
    """All workers are ended, and the new ones are told what the old ones were."""
    workers = Number(dying={3})
    family = family_of(workers)
    assert [family.call(UPDATE, Sending(workers.update), number) for number in (1, 2, 3, 4)] == [1, 3, 6, 10]
    assert family.ended == [("a", "b")]
    assert workers.made == 1
    assert outcomes(journal) == ["recovered"]


def test_an_error_with_nobody_dead_is_the_callers(family_of, journal):
    """The very same exception; but what it left behind is not known, so a later death is not recovered."""
    workers = Number(failing={2}, dying={4})
    family = family_of(workers)
    family.call(UPDATE, Sending(workers.update), 1)
    with pytest.raises(ValueError, match="own"):
        family.call(UPDATE, Sending(workers.update), 1)
    assert outcomes(journal) == []
    family.call(UPDATE, Sending(workers.update), 1)
    with pytest.raises(DeadError) as caught:
        family.call(UPDATE, Sending(workers.update), 1)
    assert outcomes(journal) == ["failed"]
    assert "raised ValueError" in journal.read()[0].notes[0]
    assert workers.made == 0
    assert "rayguard incident" in "".join(getattr(caught.value, "__notes__", ["rayguard incident"]))


def test_what_was_only_asked_leaves_no_doubt(family_of):
    """An error of a call that changes nothing does not stand in the way."""
    workers = Number(dying={2})
    family = family_of(workers)

    def refuse():
        raise ValueError("not now")

    family.call(UPDATE, Sending(workers.update), 1)
    with pytest.raises(ValueError, match="not now"):
        family.call(ASK, refuse)
    assert family.call(UPDATE, Sending(workers.update), 2) == 3


def test_a_call_that_kills_its_workers_again_and_again_is_given_up(family_of, journal):
    """After so many repeats it is likely to be the call's own doing."""
    workers = Number(dying={2, 4, 6})
    family = family_of(workers, repeats=2)
    family.call(UPDATE, Sending(workers.update), 1)
    with pytest.raises(DeadError):
        family.call(UPDATE, Sending(workers.update), 2)
    assert workers.made == 2
    assert outcomes(journal) == ["failed", "failed"]


def test_a_budget_that_is_spent_ends_it(family_of, journal):
    """And the error says how often."""
    workers = Number(dying={2, 5})
    family = family_of(workers, restarts=RestartBudget(max_restarts=1, within_s=60.0))
    family.call(UPDATE, Sending(workers.update), 1)
    assert family.call(UPDATE, Sending(workers.update), 2) == 3
    with pytest.raises(DeadError):
        family.call(UPDATE, Sending(workers.update), 3)
    assert outcomes(journal) == ["recovered", "failed"]
    assert "1 times" in journal.read()[1].notes[0]


def test_workers_that_cannot_be_made_are_given_up_for_good(family_of, journal, caplog):
    """The caller has his own error, and all later calls go through as they are."""
    workers = Number(dying={2})
    family = family_of(workers)

    def broken(number):
        raise OSError("no place for them")

    workers.make_again = broken
    family.call(UPDATE, Sending(workers.update), 1)
    with caplog.at_level(logging.ERROR, "rayguard"), pytest.raises(DeadError):
        family.call(UPDATE, Sending(workers.update), 1)
    assert "no place for them" in caplog.text
    assert "no place for them" in family.off
    assert outcomes(journal) == ["failed"]
    assert family.call(ASK, lambda: 7) == 7


def test_a_recovery_that_takes_too_long_is_given_up(family_of, journal):
    """Within its deadline, and what was begun is ended."""
    workers = Number(dying={2})
    family = family_of(workers, rebuild_s=0.2)
    family.call(UPDATE, Sending(workers.update), 1)
    workers.block.clear()
    with pytest.raises(DeadError):
        family.call(UPDATE, Sending(workers.update), 1)
    assert "0.2 s" in journal.read()[0].notes[0]
    assert len(family.ended) == 2
    workers.block.set()
    until = time.monotonic() + 30
    while len(family.ended) < 3 and time.monotonic() < until:
        threading.Event().wait(0.01)
    assert family.ended[2] == ("2a", "2b"), "what came too late is ended as well"


def test_new_workers_that_fail_are_made_once_more(family_of, journal):
    """A port that was taken, say; not a third time."""
    workers = Number(dying={2})
    family, make, tried = family_of(workers), workers.make_again, []

    def at_the_second_time(number):
        tried.append(number)
        if len(tried) == 1:
            raise OSError("the port is taken")
        make(number)

    workers.make_again = at_the_second_time
    family.call(UPDATE, Sending(workers.update), 1)
    assert family.call(UPDATE, Sending(workers.update), 2) == 3
    assert tried == [2, 3], "under other names"
    assert outcomes(journal) == ["recovered"]


def test_new_workers_that_do_not_come_up_are_no_recovery(family_of, journal, monkeypatch):
    """Nobody is told that they had."""
    workers = Number(dying={2})
    family = family_of(workers)
    monkeypatch.setattr(roll_call, "all_ready", lambda handles, within_s: False)
    family.call(UPDATE, Sending(workers.update), 1)
    with pytest.raises(DeadError):
        family.call(UPDATE, Sending(workers.update), 1)
    assert outcomes(journal) == ["failed"]
    assert "did not come up" in journal.read()[0].notes[0]


def test_calls_that_fail_together_are_recovered_once(family_of, journal):
    """The second one joins what the first has begun."""
    workers = Number()
    family = family_of(workers)
    family.call(UPDATE, Sending(workers.update), 5)
    met, answers = threading.Barrier(2), []
    workers.dead = True

    def ask():
        if workers.dead:
            met.wait(10)
            raise DeadError("gone")
        return workers.value

    threads = [threading.Thread(target=lambda: answers.append(family.call(ASK, ask))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [5, 5]
    assert workers.made == 1
    assert outcomes(journal) == ["recovered"]


def test_an_error_before_anything_was_sent_leaves_no_doubt(family_of):
    """A batch that does not divide, say: no worker has seen it."""
    workers = Number(dying={2})
    family = family_of(workers)

    def refuse(_number):
        raise AssertionError("only support equal chunk")

    family.call(UPDATE, Sending(workers.update), 1)
    with pytest.raises(AssertionError, match="equal chunk"):
        family.call(UPDATE, refuse, 7)
    assert family.call(UPDATE, Sending(workers.update), 2) == 3


def test_what_cannot_be_kept_is_doubted(family_of, journal, monkeypatch):
    """The call itself has its answer, and a later death is told as it is."""
    monkeypatch.setattr("ray.put", pickle.dumps)  # which would start a cluster, and refuses a lock as well
    workers = Number(dying={2})
    family = family_of(workers)
    assert family.call(UPDATE, lambda number, lock: workers.update(number), 1, threading.Lock()) == 1
    with pytest.raises(DeadError):
        family.call(UPDATE, Sending(workers.update), 2)
    assert "cannot be kept" in journal.read()[0].notes[0]


def test_arguments_may_have_any_name(family_of):
    """Also those that ours have."""
    family = family_of(Number())
    assert family.call(ASK, lambda **given: sorted(given), method=1, bare=2, self=3) == [
        "bare",
        "method",
        "self",
    ]


def test_a_family_that_is_copied_makes_bare_calls_there_and_says_so_here(family_of):
    """What a copy does in another process is not seen."""
    family = family_of(Number())
    assert isinstance(pickle.loads(pickle.dumps(family)), Elsewhere)
    assert Elsewhere.call(ASK, lambda: 3) == 3
    assert "copy" in family.history.doubt


def test_a_call_is_kept_as_soon_as_it_was_sent():
    """While the workers are at it; once for each call."""
    happened = []

    def execute(*args):
        happened.append((args, here.within, pending.was_sent))

    send = Sending(execute)
    pending = PendingCall(UPDATE, lambda number: (send("update", number), send("ask", number)), (1,), {})
    pending.make(keep=True)
    assert happened == [(("update", 1), True, True), (("ask", 1), True, True)]
    assert pending.kept().kept.args == (1,)
    assert not here.within
    assert here.pending is None


def test_nothing_is_printed_of_a_snapshot_and_all_else_is():
    """Also what ends in no line."""

    class Worker:
        def save(self, path):
            print(f"[rank-0]: Saving model to {path}/model.pt.")
            print("half of ", end="")
            print("a line")
            print("the end", end="")

    out = io.StringIO()
    with redirect_stdout(out):
        in_worker.save(Worker(), "save", "/dev/shm/x")
    assert out.getvalue() == "half of a line\nthe end"
