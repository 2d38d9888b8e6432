"""Names of what grows: the way to it as the user would write it."""

import functools
import gc
import sys
import threading
from collections import deque

import pytest

from rayguard.memory.growth.names import way_to

GLOBAL = {"deep": {"deeper": []}}
LOCAL = threading.local()


class Trainer:
    shared = []  # noqa: RUF012 - a leak's usual place

    def __init__(self):
        self.seen = []
        self.by_step = {3: []}
        self.queue = deque([[1]])


class Slotted:
    __slots__ = ("kept",)

    def __init__(self):
        self.kept = []


def make_closure():
    kept = []

    def step():
        return kept

    return step


@functools.lru_cache(maxsize=None)  # noqa: UP033 - as many write it
def unbounded(number):
    return [number]


@functools.lru_cache(maxsize=5)
def bounded(number):
    return [number]


def default(number, kept=[]):  # noqa: B006 - the classic
    return kept


TRAINER, SLOTTED, CLOSURE = Trainer(), Slotted(), make_closure()
LOCAL.kept = []
OPENED = Trainer()
vars(OPENED)["seen"].append(1)  # its attributes have a dict of their own now
ME = __name__


def cache(function):
    """Return the dict of a cache; it has one for its attributes too."""
    (found,) = (one for one in gc.get_referents(function) if type(one) is dict and "__wrapped__" not in one)
    return found


unbounded(1)
bounded(1)


@pytest.mark.parametrize(
    ("get", "name"),
    [
        (lambda: GLOBAL, f"{ME}.GLOBAL"),
        (lambda: GLOBAL["deep"]["deeper"], f"{ME}.GLOBAL['deep']['deeper']"),
        (lambda: TRAINER.seen, "Trainer.seen"),
        pytest.param(lambda: OPENED.seen, "Trainer.seen", id="with a dict of its own"),
        (lambda: TRAINER.by_step[3], "Trainer.by_step[3]"),
        (lambda: TRAINER.queue, "Trainer.queue"),
        (lambda: TRAINER.queue[0], "Trainer.queue[...]"),
        (lambda: Trainer.shared, f"{ME}.Trainer.shared"),
        (lambda: SLOTTED.kept, "Slotted.kept"),
        (
            lambda: CLOSURE.__closure__[0].cell_contents,
            f"kept in the closure of {ME}.make_closure.<locals>.step",
        ),
        (lambda: LOCAL.kept, f"{ME}.LOCAL.kept"),
        (lambda: cache(unbounded), f"the cache of {ME}.unbounded"),
        (lambda: cache(bounded), f"the cache (of at most 5) of {ME}.bounded"),
        (lambda: default(1), f"a default value of {ME}.default"),
    ],
)
def test_a_thing_is_named_by_the_way_to_it(get, name):
    """The shortest that a person would look for."""
    assert way_to(get()) == name


def test_a_variable_of_running_code_is_named_with_its_line():
    """The collector does not know it; its frame does, and keeps no copy."""

    def training():
        kept = [bytearray(10)]
        references = sys.getrefcount(kept)
        name = way_to(kept)
        assert sys.getrefcount(kept) == references
        return name

    assert training().startswith("kept in training (test_growth_names.py:")


def test_a_variable_of_a_suspended_generator_is_named():
    """A coroutine that waits looks alike."""

    def batches():
        kept = [bytearray(10)]
        yield kept
        yield None

    running = batches()
    name = way_to(next(running))
    assert name.startswith("a variable of ")
    assert "batches" in name


def test_a_cycle_has_an_end():
    """Two that hold only each other."""
    one = []
    other = [one]
    one.append(other)
    names = [way_to(one), way_to(other)]
    assert all(names)


def test_a_way_that_takes_too_long_is_cut():
    """What is known by then is told."""
    assert way_to(GLOBAL["deep"]["deeper"], deadline_s=0.0) == "a list"
