"""A Ray that has moved a private name: scopes do less, and a user's own calls notice nothing. Real Ray."""

import logging

import numpy as np
import pytest

from rayguard.objects import reaper, watch
from rayguard.objects.holdings import HOLDINGS
from rayguard.objects.reaper import Tombstones
from rayguard.objects.scope import object_scope
from rayguard.objects.scope_ended_error import ScopeEndedError
from rayguard.ray_internals import object_refs
from rayguard.ray_internals.actor_classes import HANDLES, RELEASING
from rayguard.ray_internals.actor_creation import CREATION
from rayguard.ray_internals.capability import switched_off
from rayguard.ray_internals.object_refs import ENDING, OBJECTS, core_worker, counts

from another_ray import depths, moved, unwrapped  # isort: skip

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SCOPES = 1100
NAMES = [(one, word) for one in (OBJECTS, CREATION, ENDING, HANDLES, RELEASING) for word in one.needs]


class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count


@pytest.fixture(scope="module")
def actor(cluster):
    return cluster.remote(num_cpus=0)(Counter).remote()


@pytest.mark.parametrize(
    ("capability", "word"), NAMES, ids=lambda value: getattr(value, "name", value).replace(" ", "_")
)
def test_with_any_name_moved_a_users_calls_go_on_through_a_thousand_scopes(
    fresh, actor, caplog, capability, word
):
    """Nothing is wrapped twice, the loss is said once, and what is off ends nothing."""
    cache = [fresh.put("before")]
    with moved(capability, word), caplog.at_level(logging.WARNING, "rayguard"):
        for step in range(SCOPES):
            with object_scope(step, keep_steps=0) as scope:
                if capability in (HANDLES, RELEASING):
                    fresh.put(
                        step
                    )  # not kept: there, references are ended, and searching for them takes time
                else:
                    cache.append(fresh.put(step))
        with object_scope(SCOPES, keep_steps=0):
            made = [fresh.remote(num_cpus=0)(Counter).remote()]
            assert fresh.get(actor.add.remote()) > 0
            assert fresh.get(fresh.remote(num_cpus=0)(lambda value: value).remote(fresh.put(5))) == 5
        assert fresh.get([cache[0], fresh.put("after")]) == ["before", "after"]
        if capability in (OBJECTS, CREATION):
            assert set(depths().values()) == {0}, "all or nothing"
        else:
            assert set(depths().values()) == {1}
        assert scope.ended.ended == ()
        assert fresh.get(cache) == ["before", *range(len(cache) - 1)]
        if capability not in (ENDING, HANDLES):  # these two end actors still
            assert fresh.get(made[0].add.remote()) == 1
    said = [line for line in caplog.messages if f"{capability.name}: off" in line]
    assert len(said) == 1, caplog.messages
    assert capability.needs[word].replace(":", ".") in said[0]


def test_all_names_there_each_method_is_wrapped_once(fresh):
    """However many scopes open; and nothing is wrapped before the first."""
    with unwrapped():
        assert set(depths().values()) == {0}
        for step in range(SCOPES):
            with object_scope(step, keep_steps=0):
                pass
        assert set(depths().values()) == {1}


# -- the gate in front of the end of a reference


def test_ending_is_tried_on_objects_of_our_own_and_leaves_nothing(fresh):
    """What was put for it is gone afterwards."""
    with unwrapped():
        before = counts(core_worker())
        assert ENDING.usable()
        assert counts(core_worker()) == before
        assert "ended references" not in switched_off()


def misses_the_count(core, reference, stone):
    """End ``reference`` without giving its own count back: the store keeps the object."""
    type(reference).__init__(reference, stone.binary(), stone.owner_address(), stone.call_site())


def counts_twice(core, reference, stone):
    """Take the count down once too often: another reference's object goes."""
    kind = type(reference)
    before = kind(reference.binary(), reference.owner_address(), reference.call_site())
    kind.__init__(reference, stone.binary(), stone.owner_address(), stone.call_site())
    core.remove_object_ref_reference(before)
    core.remove_object_ref_reference(reference)


def points_nowhere(core, reference, stone):
    """Leave the reference at an object that has gone."""
    core.remove_object_ref_reference(reference)


def raises(core, reference, stone):
    """Have another signature."""
    raise TypeError("__init__() takes exactly 2 arguments (4 given)")


@pytest.mark.parametrize("broken", [misses_the_count, counts_twice, points_nowhere, raises])
def test_an_end_that_does_not_do_what_it_did_is_found_out_before_a_users_object_is_touched(
    fresh, monkeypatch, caplog, broken
):
    """From then on a scope ends no references; all of the user's can be read, and Ray frees what is dropped."""
    with unwrapped(), caplog.at_level(logging.WARNING, "rayguard"):
        monkeypatch.setattr(object_refs, "end", broken)
        cache = []
        for step in range(5):
            with object_scope(step, keep_steps=0) as scope:
                cache.append(fresh.put(np.full(200_000, step)))
            assert scope.ended.ended == ()
            assert dict(scope.ended.waiting) == {"this Ray's references cannot be ended": 1}
        assert [int(value[0]) for value in fresh.get(cache)] == [0, 1, 2, 3, 4]
        assert len(watch.end_leaks().ended) == 5, "what would be ended can be told"
        ids = {ref.hex() for ref in cache}
        assert ids <= set(counts(core_worker()))
        cache.clear()
        assert not ids & set(counts(core_worker()))
        assert [line.split(",")[0] for line in caplog.messages] == ["rayguard's ended references: off"]


def test_with_a_ray_that_it_was_not_tried_with_no_reference_is_ended(fresh, monkeypatch, caplog):
    """Not even on trial: a wrong count may take the process along."""
    with unwrapped(), caplog.at_level(logging.WARNING, "rayguard"):
        monkeypatch.setattr("rayguard.ray_internals.capability.ray_version", lambda: (2, 61))
        monkeypatch.setattr(object_refs, "put_error", lambda *_: 1 // 0)
        with object_scope(0, keep_steps=0) as scope:
            cache = [fresh.put(7)]
        assert fresh.get(cache) == [7]
        assert scope.ended.ended == ()
        assert "not tried with Ray 2.61" in switched_off()["ended references"]


def test_an_ended_reference_is_let_go_by_the_store_and_its_neighbours_live(fresh, monkeypatch):
    """The same that the trial asks for, of a user's objects."""
    monkeypatch.setattr(reaper, "_stones", Tombstones())
    with object_scope(0, keep_steps=0) as scope:
        cache = [fresh.put(number) for number in range(4)]
        scope.keep(cache[1:2])
        ids = [ref.hex() for ref in cache]
    held = set(counts(core_worker()))
    assert [one in held for one in ids] == [False, True, False, False]
    assert fresh.get(cache[1]) == 1
    with pytest.raises(ScopeEndedError):
        fresh.get(cache[2])
    assert HOLDINGS.objects.get(ids[2]) is None
