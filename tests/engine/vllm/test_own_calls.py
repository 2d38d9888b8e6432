"""Calls of the user's into vLLM's workers: looked at before and after, and never where that would end a core."""

from __future__ import annotations

import asyncio

import pytest

from rayguard.engine.vllm.changes.own_calls import OwnCalls
from rayguard.engine.weights.changes import LOST, WeightChanges


class Core:
    """Workers whose weights are a number, which ``add`` changes."""

    def __init__(self, *, looks=True):
        self.weights, self.looks, self.asked = 0, looks, 0

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        if method == "rayguard_fingerprint":
            self.asked += 1
            if not self.looks:
                raise RuntimeError("no such method")
            return [str(self.weights)]
        if method == "add":
            self.weights += args[0]
        if method == "break":
            self.weights += 1
            raise ValueError("half done")
        return [args]

    async def collective_rpc_async(self, *given):
        return self.collective_rpc(*given)

    def sleep(self, level=1):
        return level

    def wake_up(self, tags=None):
        return tags


@pytest.fixture(params=["collective_rpc", "collective_rpc_async"])
def call(request):
    """Return a call into the workers of a core, as an ``LLM`` or an ``AsyncLLM`` makes it."""

    def make(own, core, *given, **more):
        result = own.before(core, request.param, getattr(core, request.param))(*given, **more)
        return asyncio.run(result) if request.param.endswith("async") else result

    return make


def test_a_change_is_seen_and_what_changes_nothing_is_not(call):
    """The caller gets its own answer."""
    own, core = OwnCalls(WeightChanges(watched=True)), Core()
    assert call(own, core, "add", None, (0,)) == [(0,)]
    assert call(own, core, "check_health", timeout=None) == [()]
    assert (own.changes.changed, core.asked, own.touched) == (False, 2, True)
    call(own, core, "add", None, (1,), None)
    assert own.changes.changed
    call(own, core, "add", None, (1,), None)
    assert core.asked == 4, "it is known by now"


def test_a_call_that_fails_may_have_changed_weights_too(call):
    """Its own error comes out, and it mends no engine."""
    own, core = OwnCalls(WeightChanges(watched=True)), Core()
    for _ in range(2):
        with pytest.raises(ValueError, match="half done"):
            call(own, core, "break")
        assert own.changes.changed
        own.changes.lose()
    assert own.changes.asked(0.0) == LOST


def test_where_nobody_can_look_the_worst_is_taken(call):
    """Workers without our methods, once; and where a source says what is current nobody looks."""
    own, core = OwnCalls(WeightChanges(watched=True)), Core(looks=False)
    call(own, core, "add", None, (0,))
    assert (own.changes.changed, core.asked) == (True, 1)
    own, core = OwnCalls(WeightChanges()), Core()
    call(own, core, "add", None, (1,))
    assert (own.changes.changed, core.asked, own.touched) == (False, 0, True)


def test_weights_that_are_away_are_not_looked_at(call):
    """Reading them would end the core; once they are back it is as before."""
    own, core = OwnCalls(WeightChanges(watched=True)), Core()

    def sleeps(name, *given):
        return own.before(core, name, getattr(core, name))(*given)

    assert sleeps("sleep", 2) == 2
    assert sleeps("wake_up", ["kv_cache"]) == ["kv_cache"]
    call(own, core, "mine")
    assert core.asked == 0
    own.changes = WeightChanges(watched=True)
    sleeps("wake_up", ["weights"])
    call(own, core, "add", None, (0,))
    assert (core.asked, own.changes.changed) == (2, False)
    call(own, core, "checkpoint_prepare")
    call(own, core, "mine")
    assert core.asked == 2


def test_functions_are_known_by_their_names(call):
    """One that looks into the model does not stand for one that changes it."""

    def look(_model):
        return 1

    own, core = OwnCalls(WeightChanges(watched=True)), Core()
    call(own, core, look)
    call(own, core, "apply_model", args=(look,))
    assert not own.changes.changed
    assert core.asked == 4


def test_a_push_of_rayguards_is_not_touched_by_what_came_before_it():
    """But by what came meanwhile; and one that fails ends nothing."""
    own = OwnCalls(WeightChanges())
    own.touched = True
    with own.pushing():
        assert not own.touched
    assert not own.touched
    own.touched = True
    with pytest.raises(ValueError, match="no"), own.pushing():
        raise ValueError("no")
    assert own.touched
