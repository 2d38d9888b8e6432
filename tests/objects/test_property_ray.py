"""Random ways to hold references, on real Ray: what code still holds stays, what only data holds ends."""

import collections
import functools
import gc
import queue
import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayguard.objects.scope import object_scope
from rayguard.objects.scope_ended_error import ScopeEndedError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_heap"), pytest.mark.timeout(480)]


class Box:
    def __init__(self, held):
        self.held = held


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


def generator(held):
    yield None
    yield held


def started(held):
    running = generator(held)
    next(running)
    return running


def queued(held):
    one = queue.Queue()
    one.put(held)
    return one


def closed(held):
    return lambda: held


# Each wraps what it is given; the second value takes it out again.
DATA = {
    "list": (lambda held: [held], lambda one: one[0]),
    "tuple": (lambda held: (1, held), lambda one: one[1]),
    "dict": (lambda held: {"a": held}, lambda one: one["a"]),
    "deque": (lambda held: collections.deque([held]), lambda one: one[0]),
    "attribute": (Box, lambda one: one.held),
    "slot": (Slotted, lambda one: one.held),
    "namespace": (lambda held: types.SimpleNamespace(held=held), lambda one: one.held),
    "twice": (lambda held: [held, held], lambda one: one[1]),
}
LIVE = {
    "closure": (closed, lambda one: one()),
    "generator": (started, next),
    "partial": (lambda held: functools.partial(lambda value: value, held), lambda one: one()),
    "queue": (queued, lambda one: one.get_nowait()),
    "iterator": (lambda held: iter([held]), next),
    "key": (lambda held: {held: 1}, lambda one: next(iter(one))),
    "set": (lambda held: {held}, lambda one: next(iter(one))),
}

ways = st.tuples(
    st.one_of(st.none(), st.sampled_from(sorted(LIVE))),
    st.lists(st.sampled_from(sorted(DATA)), max_size=3),
    st.booleans(),
)


def wrapped(ref, live, data, *, inside):
    """Wrap ``ref`` in data, with code right around it, or (where that can be told) around the nearest data."""
    held, undo = ref, []
    around_data = inside and live in {"generator", "partial", "queue", "iterator"}
    first = [("live", live)] if live is not None else []
    chain = [("data", name) for name in data]
    order = chain[:1] + first + chain[1:] if around_data and chain[:1] in LISTS else first + chain
    for kind, name in order:
        wrap, unwrap = (LIVE if kind == "live" else DATA)[name]
        held = wrap(held)
        undo.append(unwrap)
    return held, undo


LISTS = (
    [("data", "list")],
    [("data", "tuple")],
    [("data", "deque")],
    [("data", "dict")],
    [("data", "twice")],
)


@settings(
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(ways, min_size=4, max_size=12))
def test_what_code_holds_stays_and_what_only_data_holds_ends(fresh, chosen):
    """Exactly so, for every mixture."""
    held = []
    with object_scope(0, keep_steps=0):
        for number, (live, data, inside) in enumerate(chosen):
            held.append(wrapped(fresh.put(number), live, data or ["list"], inside=inside))
    for number, (live, _, _) in enumerate(chosen):
        value, undo = held[number]
        for unwrap in reversed(undo):
            value = unwrap(value)
        if live is None:
            with pytest.raises(ScopeEndedError):
                fresh.get(value)
        else:
            assert fresh.get(value) == number
    held.clear()
    gc.collect()
