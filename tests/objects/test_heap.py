"""How a reference is held, found out from the heap. No Ray: any gc-tracked class stands for a reference."""

import collections
import copy
import functools
import gc
import queue
import sys
import threading
import types

import pytest

from rayguard.objects.heap import SlowHeapError, search
from rayguard.objects.proof import Grip

pytestmark = pytest.mark.usefixtures("own_heap")


class Ref:
    """Equal by what it names, as an ObjectRef is."""

    def __init__(self, name="a"):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Ref) and other.name == self.name

    def __hash__(self):
        return hash(self.name)


class Holder:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("ref",)


class Hashed:
    def __init__(self, ref):
        self.ref = ref

    def __eq__(self, other):
        return self.ref == other.ref

    def __hash__(self):
        return hash(self.ref)


def grips(name="a"):
    """Return how all references of ``name`` are held."""
    gc.collect()
    return {grip for item in search(Ref, lambda one: one.name == name, most=1000) for grip in item.grips}


def with_slot():
    holder = Slotted()
    holder.ref = Ref()
    return holder


def closing_over(held):
    return lambda: held


def with_default(ref):
    return lambda held=ref: held


def both(ref):
    return {"x": ref, ref: 1}


def cycle():
    ring = [Ref()]
    ring.append(ring)
    return ring


DATA = {
    "list": lambda: [Ref()],
    "twice in a list": lambda: [Ref()] * 2,
    "deque": lambda: collections.deque([Ref()]),
    "dict value": lambda: {"a": Ref()},
    "defaultdict": lambda: collections.defaultdict(list, {1: [Ref()]}),
    "list of tuples": lambda: [(1, Ref())],
    "attribute": lambda: Holder(ref=Ref()),
    "attribute of materialised dict": lambda: (holder := Holder(ref=Ref()), vars(holder))[0],
    "list in an attribute": lambda: Holder(refs=[Ref()]),
    "deep": lambda: Holder(by_step={1: [(Ref(), 2)]}),
    "slot": with_slot,
    "class attribute": lambda: type("Cls", (), {"ref": Ref()}),
    "namespace": lambda: types.SimpleNamespace(ref=Ref()),
    "two copies": lambda: [Ref(), Ref()],
    "list of its own": cycle,
    "list in a closure": lambda: closing_over([Ref()]),
}


def suspended(ref):
    yield 1
    yield ref


def started(generator):
    next(generator)
    return generator


def frozen_frame():
    def fail(ref):
        raise ValueError

    try:
        fail(Ref())
    except ValueError as error:
        return error


def queued(item):
    one = queue.Queue()
    one.put(item)
    return one


LIVE = {
    "closure": (lambda: closing_over(Ref()), Grip.CLOSURE),
    "default": (lambda: with_default(Ref()), Grip.MACHINERY),
    "key": (lambda: {Ref(): 1}, Grip.KEY),
    "key and value": (lambda: both(Ref()), Grip.KEY),
    "set": (lambda: {Ref()}, Grip.KEY),
    "frozenset": (lambda: frozenset([Ref()]), Grip.KEY),
    "tuple in a set": (lambda: {(1, Ref())}, Grip.KEY),
    "tuple as key": (lambda: {(1, Ref()): 2}, Grip.KEY),
    "hashed by it": (lambda: Hashed(Ref()), Grip.KEY),
    "generator": (lambda: started(suspended(Ref())), Grip.SUSPENDED),
    "list in a generator": (lambda: started(suspended([Ref()])), Grip.SUSPENDED),
    "not started generator": (lambda: suspended([(Ref(),)]), Grip.SUSPENDED),
    "iterator": (lambda: iter([Ref()]), Grip.SUSPENDED),
    "map": (lambda: map(str, [Ref()]), Grip.SUSPENDED),
    "frame of an exception": (frozen_frame, Grip.SUSPENDED),
    "partial": (lambda: functools.partial(print, Ref()), Grip.MACHINERY),
    "partial with a list": (lambda: functools.partial(print, [Ref()]), Grip.MACHINERY),
    "queue": (lambda: queued(Ref()), Grip.MACHINERY),
    "list in a queue": (lambda: queued([Ref()]), Grip.MACHINERY),
    "thread not started": (lambda: threading.Thread(target=print, args=(Ref(),)), Grip.MACHINERY),
    "bound method": (lambda: Ref().__init__, Grip.MACHINERY),
}


@pytest.mark.parametrize("case", DATA)
def test_data_is_seen_to_be_data(case):
    """Every reference is accounted for."""
    held = DATA[case]()
    assert grips() == {Grip.DATA}
    del held


@pytest.mark.parametrize("case", LIVE)
def test_code_that_may_go_on_is_no_data(case):
    """Whatever the way in which it holds the reference."""
    make, expected = LIVE[case]
    held = make()
    found = grips()
    assert found - {Grip.DATA}
    assert expected is None or expected in found
    del held


def test_a_local_variable_is_seen_by_what_is_missing():
    """Running frames are not tracked: the count tells."""
    variable = Ref()
    held = [variable]
    assert grips() == {Grip.DATA, Grip.UNSEEN}
    del variable
    assert grips() == {Grip.DATA}
    del held


def test_a_copy_that_code_holds_counts_for_all():
    """Copies are looked at together."""
    held = [Ref()]
    other = started(suspended(copy.copy(held[0])))
    assert Grip.SUSPENDED in grips()
    del held, other


def test_what_another_thread_works_with_is_running():
    """Its variables and its arguments, one level deep."""
    held = [Ref()]
    ready, go = threading.Event(), threading.Event()

    def work(refs):
        ready.set()
        go.wait(30)
        return refs

    thread = threading.Thread(target=work, args=(held,))
    thread.start()
    try:
        ready.wait(30)
        assert grips() - {Grip.DATA}
    finally:
        go.set()
        thread.join()
    del thread
    assert grips() == {Grip.DATA}


def test_looking_keeps_nothing_alive():
    """Neither what was looked for nor what other threads' variables held."""
    held = [Ref()]
    ready, go, dropped = threading.Event(), threading.Event(), threading.Event()

    def work():
        local = Ref("b")
        ready.set()
        go.wait(30)
        del local
        dropped.set()
        go.clear()
        go.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(30)
    grips()
    before = sys.getrefcount(held[0])
    grips()
    after = sys.getrefcount(held[0])
    assert after == before
    go.set()
    dropped.wait(30)
    gc.collect()
    alive = [one for one in gc.get_objects() if type(one) is Ref and one.name == "b"]
    go.set()
    thread.join()
    assert alive == []


def test_somebody_who_takes_it_up_after_the_pass_is_noticed():
    """The last check before anything is touched."""
    held = [Ref()]
    (found,) = search(Ref, lambda one: True, most=10)
    found.holders.clear()
    assert found.unchanged()
    variable = held[0]
    assert not found.unchanged()
    del variable, found


@pytest.mark.parametrize("count", [1, 100, 5000])
def test_many_are_found_as_few_are(count):
    """Both ways of searching see the same."""
    held = [[Ref()] for _ in range(count)]
    found = search(Ref, lambda one: one.name == "a", most=10_000)
    assert len(found) == count
    assert {grip for item in found for grip in item.grips} == {Grip.DATA}
    del held


def test_a_heap_too_large_for_the_time_decides_nothing():
    """It says so."""
    held = [Ref()]
    with pytest.raises(SlowHeapError):
        search(Ref, lambda one: True, most=10, deadline_s=0.0)
    del held
