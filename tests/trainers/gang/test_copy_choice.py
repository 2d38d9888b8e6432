"""Where copies of states go, and of which call all ranks have a state: pure, without Ray."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.trainers.gang.kept import copy_choice
from rayguard.trainers.gang.kept.copy_choice import CopyTag, Lineage, newest_of_all, receivers

NODES = [f"node-{number}" for number in range(6)]
nodes = st.sets(st.sampled_from(NODES), min_size=1)


# -- where they go


@given(nodes, st.data())
def test_a_copy_lies_on_another_node_that_lives(alive, data):
    """Wherever there is one; of a gang's own, and not where it went wrong, as long as there is a choice."""
    homes = data.draw(st.lists(st.sampled_from(sorted(alive)), min_size=1, max_size=9))
    shunned = data.draw(st.sets(st.sampled_from(NODES)))
    found = receivers(homes, alive, shunned)
    assert len(found) == len(homes)
    for home, node in zip(homes, found, strict=True):
        others = alive - {home}
        assert node in others if others else not node
        better = (set(homes) & others) - shunned or others - shunned or others
        assert node in better if others else True


@given(st.lists(st.sampled_from(NODES), min_size=1, max_size=12), nodes)
def test_copies_are_shared_evenly(homes, more):
    """No copy could go to a node of the gang that has two fewer."""
    alive = {*homes, *more}
    found = receivers(homes, alive)
    load = Counter(found)
    for home, node in zip(homes, found, strict=True):
        if node in homes:
            assert all(load[node] <= load[other] + 1 for other in set(homes) - {home})


def test_some_gangs():
    """Two nodes have each other's; a gang on one node has them on the others, in turn."""
    assert receivers(["a", "a", "b"], {"a", "b"}) == ("b", "b", "a")
    assert receivers(["a", "a", "a"], {"a"}) == ("", "", "")
    assert Counter(receivers(["a"] * 4, {"a", "b", "c"})) == {"b": 2, "c": 2}
    assert receivers(["a", "b"], {"a", "b", "c"}) == ("b", "a"), "states fit where there are some"
    assert receivers(["a", "b"], {"a", "b", "c"}, {"b"}) == ("c", "a")
    assert receivers(["a"], {"a", "b"}, {"b"}) == ("b",), "there is no other"


# -- which are still of what was done

steps = st.lists(
    st.one_of(st.just("call"), st.just("copy"), st.tuples(st.just("back"), st.integers(0, 9))), max_size=60
)


@given(steps)
def test_a_copy_counts_only_while_what_it_is_of_was_not_undone(happened):
    """A model beside it: each call that is made leaves a state of its own, also under a number of before."""
    states, generation, lineage, made = [0], 0, Lineage().after(0, 0), 0
    copies = []
    for step in happened:
        if step == "call":
            made += 1
            states.append(made)
        elif step == "copy":
            number = len(states) - 1
            copies.append((CopyTag(0, 0, generation, number), states[number]))
        else:
            del states[max(1, len(states) - step[1]) :]
            generation += 1
            lineage = lineage.after(generation, len(states) - 1)
        for tag, state in copies:
            there = tag.number < len(states) and states[tag.number] == state
            assert lineage.has(tag) == there
    starts = [number for _, number in lineage.begun]
    assert starts == sorted(set(starts))


def test_a_lineage_does_not_grow_for_ever():
    """What is older than it reaches does not count."""
    lineage = Lineage()
    for generation in range(1_000):
        lineage = lineage.after(generation, 2 * generation)
    assert len(lineage.begun) == copy_choice._REMEMBERED
    assert not lineage.has(CopyTag(0, 0, 3, 0))
    assert lineage.has(CopyTag(0, 0, 998, 1_997))
    assert not lineage.has(CopyTag(0, 0, 998, 1_999))


# -- which call all have

ranks = st.lists(
    st.tuples(
        st.sets(st.integers(0, 6), max_size=3), st.dictionaries(st.integers(0, 6), st.text(max_size=3))
    ),
    max_size=4,
)


@settings(max_examples=300)
@given(ranks, st.integers(0, 6))
def test_the_newest_call_is_one_of_which_all_have_a_state(each, most):
    """None is newer; and what a node has itself is taken from there."""
    kept, copied = [mine for mine, _ in each], [theirs for _, theirs in each]
    common = [
        number for number in range(most + 1) if each and all(number in {*one, *two} for one, two in each)
    ]
    found = newest_of_all(kept, copied, most)
    if found is None:
        assert not common
        return
    number, sources = found
    assert number == common[-1]
    assert sources == tuple(None if number in mine else theirs[number] for mine, theirs in each)


def test_a_copy_that_lags_takes_all_back():
    """The ranks that live still have their states of that call: it is held until a newer one is copied."""
    kept = [{7, 8, 5}, (), {7, 8, 5}]
    assert newest_of_all(kept, [{}, {5: "copy of 5", 3: "of 3"}, {}], 8) == (5, (None, "copy of 5", None))
    assert newest_of_all(kept, [{}, {6: "copy of 6"}, {}], 8) is None
    assert newest_of_all([{8}, ()], [{}, {9: "not completed by all"}], 8) is None
