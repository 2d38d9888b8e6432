"""The ledger of a pool: whole at any instant of its writer's death, bounded, private."""

from __future__ import annotations

import enum
import os
import signal
import stat
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayguard.engine.generated import Generated
from rayguard.errors import ConfigError
from rayguard.pool.ledger import location
from rayguard.pool.ledger import request_ledger as module
from rayguard.pool.ledger.location import open_ledger
from rayguard.pool.ledger.request_ledger import NoLedger, RequestLedger
from rayguard.pool.values.request import Request
from rayguard.pool.values.result import Sample
from rayguard.recovery.tally import TALLY


def ask(name, prompt=(1, 2, 3), **sampling):
    return Request(id=name, group=name.partition("/")[0], prompt=prompt, sampling=sampling)


def made(*tokens, version="1"):
    n = len(tokens)
    return Generated(
        tokens=array("i", tokens),
        width=2,
        ids=array("i", [7] * 2 * n),
        logprobs=array("f", [-0.5] * 2 * n),
        ranks=array("i", [1] * n),
        versions=((version, 0),) if n else (),
    )


def sample(name, *tokens):
    return Sample(id=name, generated=made(*tokens), text="said", stop_reason=2, cuts=(1,), restarted=("why",))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pools" / "one.ledger"


@pytest.fixture
def opened(path):
    """Open the ledger again and again, as life after life of its owner does."""
    lives = []

    def open_again():
        if lives:
            lives[-1].close()
        lives.append(RequestLedger(path))
        return lives[-1]

    yield open_again
    lives[-1].close()


def owed(ledger):
    return {o.request.id: o.generated.tokens.tolist() for o in ledger.past.owed}


def test_the_next_life_knows_what_is_owed_and_what_was_answered(opened):
    """Field by field, in the order in which it was asked."""
    ledger = opened()
    requests = [
        ask("text", "half a character \ud800", stop=["x"], temperature=0.5),
        ask("group/1", (5,) * 300, logit_bias={5: -1.5}, seed=None),
        ask("done"),
        ask("dropped"),
    ]
    for request in requests:
        ledger.accepted(request, f"asked {request.id}")
    ledger.progressed("group/1", 0, made(1, 2, 3))
    ledger.progressed("group/1", 2, made(3, 4, version="2"))
    ledger.progressed("group/1", 9, made(9))
    ledger.progressed("done", 0, made(8))
    ledger.answered("done", "asked done", sample("done", 8, 9))
    ledger.gone(["dropped", "never heard of"])
    ledger.flush()
    for _ in range(3):  # as often as the owner dies
        ledger = opened()
        assert [o.request for o in ledger.past.owed] == requests[:2]
        assert [o.fingerprint for o in ledger.past.owed] == ["asked text", "asked group/1"]
        assert ledger.past.owed[1].generated == made(1, 2, 3).plus(made(4, version="2"))
        assert list(ledger.past.answered) == ["done"]
        assert ledger.past.answered["done"].sample == sample("done", 8, 9)
        assert ledger.past.answered["done"].fingerprint == "asked done"
    ledger.afresh("group/1")
    ledger.gone(["done"])
    ledger = opened()
    assert owed(ledger) == {"text": [], "group/1": []}
    assert not ledger.past.answered


def test_what_derives_from_plain_values_comes_back_plain_and_nothing_else_is_written(opened):
    """No class is loaded from the file."""
    import numpy as np

    class Level(enum.IntEnum):
        HIGH = 3

    ledger, before = opened(), TALLY.guard_errors["ledger"]
    ledger.accepted(ask("a", temperature=np.float64(0.25), level=Level.HIGH), "x")
    ledger.accepted(ask("b", thing=object()), "x")
    assert TALLY.guard_errors["ledger"] == before + 1
    [found] = opened().past.owed
    assert found.request.sampling == {"temperature": 0.25, "level": 3}
    assert [type(v) for v in found.request.sampling.values()] == [float, int]


def test_only_its_owner_may_read_it(opened, path):
    """It holds prompts."""
    opened().accepted(ask("a"), "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_second_pool_cannot_use_it(opened, path):
    """Neither in this process nor in another one."""
    opened()
    with pytest.raises(ConfigError, match="this process"):
        RequestLedger(path)
    code = f"from rayguard.pool.ledger.request_ledger import RequestLedger; from pathlib import Path; RequestLedger(Path({str(path)!r}))"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "another process" in tried.stderr
    with pytest.raises(ConfigError, match="cannot be used"):
        open_ledger("/dev/null/x.ledger")
    for wrong in (True, 5, ""):
        with pytest.raises(ConfigError, match="a name, a path"):
            open_ledger(wrong)


def test_it_stays_small_however_much_goes_through_it(opened, path, monkeypatch):
    """What is void is left out when the file is written anew."""
    monkeypatch.setattr(module, "_VOID_BYTES", 20_000)
    monkeypatch.setattr(module, "ANSWER_BYTES", 30_000)
    ledger, largest = opened(), 0
    for n in range(2_000):
        ledger.accepted(ask(f"r{n}"), "x")
        ledger.progressed(f"r{n}", 0, made(*range(50)))
        ledger.flush()
        if n % 10:
            ledger.answered(f"r{n}", "x", sample(f"r{n}", *range(50)))
        else:
            ledger.gone([f"r{n}"])
        largest = max(largest, path.stat().st_size)
    assert largest < 200_000
    kept = list(opened().past.answered)
    assert kept == [f"r{n}" for n in range(2_000) if n % 10][-len(kept) :], "the newest"
    assert len(kept) > 10


def test_a_full_disk_ends_it_and_nothing_else(opened, monkeypatch):
    """What was written before counts."""
    ledger = opened()
    ledger.accepted(ask("a"), "x")
    ledger.flush()

    def full(file, data):
        os.write(file, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_all", full)
    for name in "bc":
        ledger.accepted(ask(name), "x")
        ledger.flush()
    monkeypatch.undo()
    assert owed(opened()) == {"a": []}


steps = st.lists(
    st.tuples(st.sampled_from(["accept", "progress", "afresh", "answer", "gone"]), st.integers(0, 5)),
    max_size=40,
)


def play(ledger, chosen):
    """Do what was drawn; return what must be known after each write."""
    truth, answers = {}, {}
    states = [({}, [])]
    for n, (what, which) in enumerate(chosen):
        name = f"r{which}"
        if what == "accept" and name not in truth and name not in answers:
            truth[name] = []
            ledger.accepted(ask(name), "x")
        elif what == "progress" and name in truth:
            ledger.progressed(name, len(truth[name]), made(n, n + 1))
            truth[name] = [*truth[name], n, n + 1]
        elif what == "afresh" and name in truth:
            ledger.afresh(name)
            truth[name] = []
        elif what == "answer" and name in truth:
            answers[name] = truth.pop(name)
            ledger.answered(name, "x", sample(name, *answers[name]))
        elif what == "gone":
            truth.pop(name, None)
            answers.pop(name, None)
            ledger.gone([name])
        ledger.flush()
        states.append((dict(truth), sorted(answers)))
    return states


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.integers(0, 1 << 30), st.binary(max_size=20))
def test_a_file_cut_anywhere_holds_what_was_known_at_some_moment(tmp_path, chosen, cut, rubbish):
    """Records before the tear count, all of them; what stands behind it does not, whatever it is."""
    path = tmp_path / "cut.ledger"
    path.unlink(missing_ok=True)
    ledger = RequestLedger(path)
    states = play(ledger, chosen)
    ledger.close()
    data = path.read_bytes()
    path.write_bytes(data[: cut % (len(data) + 1)] + rubbish)
    again = RequestLedger(path)
    now = (owed(again), sorted(again.past.answered))
    again.close()
    assert now in states
    if not rubbish and cut % (len(data) + 1) == len(data):
        assert now == states[-1]


@given(st.binary(max_size=300))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_file_holds_the_pool_begins(tmp_path, rubbish):
    """With what can be read."""
    path = tmp_path / "rubbish.ledger"
    path.write_bytes(rubbish)
    ledger = RequestLedger(path)
    assert not ledger.past.owed
    ledger.accepted(ask("a"), "x")
    ledger.close()
    again = RequestLedger(path)
    assert owed(again) == {"a": []}
    again.close()


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_ledger import ask, made, sample
from rayguard.pool.ledger import request_ledger as module
module._VOID_BYTES = 30_000
ledger = module.RequestLedger(Path(sys.argv[1]))
first = int(sys.argv[3])
for n in range(first, first + 100_000):
    ledger.accepted(ask(f"r{n}"), "x")
    ledger.progressed(f"r{n}", 0, made(n, n))
    ledger.flush()
    print("asked", n, flush=True)
    if n - first >= 3:
        ledger.answered(f"r{n - 3}", "x", sample(f"r{n - 3}", n))
        ledger.flush()
        print("answered", n - 3, flush=True)
    if n - first >= 40:
        ledger.gone([f"r{n - 40}"])
"""


@pytest.mark.parametrize("lines", [1, 60, 300])
def test_a_writer_killed_at_any_moment_leaves_all_that_it_said(path, lines):
    """SIGKILL, several lives one after the other; the file is written anew meanwhile."""
    asked, answered = set(), set()
    for life in range(2):
        command = [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent), str(life * 1_000_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            said = [writer.stdout.readline() for _ in range(lines)]
            writer.send_signal(signal.SIGKILL)
            said += writer.stdout.readlines()
        for word, number in (line.split() for line in said if line.endswith("\n")):
            (asked if word == "asked" else answered).add(f"r{number}")
    assert asked, "the writer wrote"
    ledger = RequestLedger(path)
    try:
        there = {o.request.id for o in ledger.past.owed} | set(ledger.past.answered)
        wanted = [
            n
            for life in range(2)
            for n in sorted(asked, key=lambda name: int(name[1:]))
            if int(n[1:]) // 1_000_000 == life
        ]
        newest = {
            n for life in range(2) for n in [w for w in wanted if int(w[1:]) // 1_000_000 == life][-36:]
        }
        assert newest <= there, "accepted and not forgotten"
        assert (answered & newest) <= set(ledger.past.answered)
        assert all(tokens == [int(n[1:])] * 2 for n, tokens in owed(ledger).items() if n in asked)
    finally:
        ledger.close(remove=True)
    assert not list(path.parent.iterdir())


# -- where it lies


@pytest.fixture
def in_actor(monkeypatch, tmp_path):
    """Pretend to be an actor."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))

    def enter(actor_id="abc", max_restarts=-1):
        life = location.Incarnation(actor_id=actor_id, max_restarts=max_restarts)
        monkeypatch.setattr(location.Incarnation, "current", classmethod(lambda _: life))

    return enter


def test_only_an_actor_that_comes_back_has_one_unasked(in_actor):
    """And its next life finds it: the first pool the first one's, the second the second one's."""
    assert type(open_ledger(None)) is NoLedger
    in_actor(max_restarts=0)
    assert type(open_ledger(None)) is NoLedger
    in_actor()
    assert type(open_ledger(False)) is NoLedger
    first, second = open_ledger(None), open_ledger(None)
    assert first.path.name == "actor-abc-0.ledger"
    assert second.path.name == "actor-abc-1.ledger"
    second.accepted(ask("b"), "x")
    first.close()
    second.close()
    again = [open_ledger(None), open_ledger(None)]
    assert [owed(ledger) for ledger in again] == [{}, {"b": []}]
    for ledger in again:
        ledger.close(remove=True)


def test_a_name_lies_in_rayguards_home_and_a_path_where_it_says(in_actor, tmp_path):
    """Relative paths are of the working directory."""
    for place, wanted in (
        ("job7", tmp_path / "pools" / "job7.ledger"),
        (tmp_path / "x" / "y.ledger", tmp_path / "x" / "y.ledger"),
    ):
        ledger = open_ledger(place)
        assert ledger.path == wanted
        ledger.close()


def test_ledgers_of_actors_long_gone_are_removed(in_actor, tmp_path):
    """Not those of a week ago, and nobody else's files."""
    in_actor()
    folder = tmp_path / "pools"
    folder.mkdir(mode=0o700)
    for name in ("actor-0f-0.ledger", "actor-1f-0.ledger", "mine.ledger"):
        (folder / name).touch()
        if not name.startswith("actor-1f"):
            os.utime(folder / name, (1, 1))
    open_ledger(None).close(remove=True)
    assert sorted(p.name for p in folder.iterdir()) == ["actor-1f-0.ledger", "mine.ledger"]


def test_without_a_place_to_write_the_pool_begins_without_one(in_actor, monkeypatch):
    """Counted, not raised: the user did not ask for it."""
    in_actor()
    monkeypatch.setenv("RAYGUARD_HOME", "/proc/nothing")
    before = TALLY.guard_errors["ledger"]
    assert type(open_ledger(None)) is NoLedger
    assert TALLY.guard_errors["ledger"] == before + 1


def test_the_next_life_knows_where_actors_keep_their_tokens(opened):
    """As long as they live, however often the file is written anew."""
    ledger = opened()
    ledger.accepted(ask("a"), "x")
    for _ in range(2):
        ledger.logged("/logs/one", "node-1")
    ledger.logged("/logs/two", "node-2")
    ledger.gone(["/logs/two", ""])
    ledger.flush()
    size = ledger.path.stat().st_size
    for _ in range(3):
        ledger = opened()
        assert ledger.past.logs == {"/logs/one": "node-1"}
        assert owed(ledger) == {"a": []}
        assert ledger.path.stat().st_size <= size
    ledger.gone(["/logs/one"])
    assert not opened().past.logs
