"""Who may serve, by its weights: a table of cases, and what holds whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rayguard.pool.weights.gate import WeightGate


def gate(lag=0, **versions):
    """A pool of engines with these versions, in the order in which they were seen."""
    made = WeightGate(lag)
    for name, version in versions.items():
        made.joined(name, version)
    return made


def pushed(made, version, *names):
    for name in names:
        made.pushing(name)
        made.taken(name, version)
    made.pushed(version)
    return made


@pytest.mark.parametrize(
    ("lag", "serving"),
    [(0, {"new"}), (1, {"one", "new"}), (2, {"two", "one", "new"}), (9, {"two", "one", "new"})],
)
def test_the_lag_says_how_old_the_oldest_may_be(lag, serving):
    """Counted in versions that the pool has seen."""
    made = gate(lag, two="v1", one="v2", new="v3")
    made.pushed("v3")
    assert {name for name in ("two", "one", "new") if made.may_serve(name)} == serving


def test_a_version_that_nobody_saw_before_is_newer_and_serves():
    """An actor that restarted has what is current now."""
    made = gate(a="v1")
    made.joined("a", "v2")
    assert made.may_serve("a")
    assert made.current == "v1", "until it is pushed to all"
    made.pushed("v2")
    assert made.may_serve("a")


def test_an_engine_without_weights_of_the_pools_serves_until_there_are_some():
    """Nobody pushes to a pool that only samples."""
    made = gate(a="", b="")
    assert made.may_serve("a")
    pushed(made, "v1", "b")
    assert not made.may_serve("a")


def test_new_weights_serve_when_they_were_compared_and_not_before():
    """Or when the comparison takes too long."""
    made = gate(a="v1", b="v1")
    before = made.pushing("a")
    assert made.may_serve("a"), "it has the old ones still"
    made.taken("a", "v2")
    made.pushed("v2")
    assert not made.may_serve("a")
    assert made.compared("a", "v2")
    assert made.may_serve("a")
    assert not made.wait_no_more("a", before), "that comparison is over"
    before = made.pushing("b")
    made.taken("b", "v2")
    assert made.wait_no_more("b", before)
    assert made.may_serve("b")


def test_who_takes_another_version_already_is_not_cleared_by_the_comparison_of_this_one():
    """It is compared with that one."""
    made = pushed(gate(a="v1"), "v2", "a")
    assert not made.compared("a", "v1")
    assert made.compared("a", "v2")
    made.pushing("a")
    assert not made.compared("a", "v2")


def test_a_doubted_engine_serves_with_another_version_or_in_another_life():
    """Or when it is cleared of this doubt, not of another one."""
    made = gate(a="v1", b="v1")
    made.doubt({"a": object(), "b": object()}, "v1")
    made.clear("a", "v0")
    assert not made.may_serve("a")
    made.clear("a", "v1")
    assert made.may_serve("a")
    made.joined("b", "v1")
    assert made.may_serve("b")


def test_an_old_report_that_comes_late_changes_nothing():
    """Reports and pushes come on different ways."""
    made = pushed(gate(a="v1"), "v2", "a")
    assert not made.reported("a", "v1")
    assert not made.reported("a", "v2")
    assert made.reported("a", "v3")
    assert made.of("a") == "v3"


@pytest.mark.parametrize(
    ("lag", "own", "made_by", "mixes"),
    [(0, "v2", ["v2"], False), (0, "v2", ["v1"], True), (0, "v2", ["v1", "v2"], True), (0, "", ["v1"], False),
     (1, "v2", ["v1"], False)],
)  # fmt: skip
def test_tokens_of_other_weights_are_mixed_in_only_with_a_lag(lag, own, made_by, mixes):
    """And where the engine says nothing of its weights."""
    assert gate(lag, a=own).mixes("a", made_by) == mixes


names = st.sampled_from("abc")
known = st.sampled_from(["v1", "v2", "v3", "v4"])
happening = st.one_of(
    st.tuples(st.sampled_from(["joined", "reported", "taken", "compared", "doubt", "clear"]), names, known),
    st.tuples(st.just("pushing"), names, st.just("")),
    st.tuples(st.just("pushed"), st.just(""), known),
)


class Oracle:
    """What the pool has seen, kept beside the gate in the plainest way."""

    def __init__(self, lag):
        self.gate = WeightGate(lag)
        self.seen, self.current, self.doubted = [], "", {}

    def happens(self, what, name, version):
        arguments = {"pushing": (name,), "pushed": (version,), "doubt": ([name], version)}
        getattr(self.gate, what)(*arguments.get(what, (name, version)))
        if what == "doubt":
            self.doubted[name] = version
        if what == "joined" or (what == "clear" and self.doubted.get(name) == version):
            self.doubted.pop(name, None)
        if what in {"joined", "pushed"} or (what == "reported" and self.gate.of(name) == version):
            self.seen += [version] * (version not in self.seen)
            self.current = version if what == "pushed" else self.current or version

    def check(self, name):
        own = self.gate.of(name)
        assert not own or self.doubted.get(name) != own
        assert own or not self.current
        if own in self.seen and self.current in self.seen:
            assert self.seen.index(own) >= self.seen.index(self.current) - self.gate.max_lag


@given(st.integers(0, 2), st.lists(happening, max_size=40))
@example(0, [("taken", "b", "v1"), ("reported", "b", "v1")])
def test_no_engine_serves_with_weights_that_are_not_allowed_or_doubted(lag, chosen):
    """Whatever reports, pushes and votes come in whatever order."""
    oracle = Oracle(lag)
    for event in chosen:
        oracle.happens(*event)
        for name in "abc":
            if oracle.gate.may_serve(name):
                oracle.check(name)
