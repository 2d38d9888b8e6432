"""The state that a rebuilt engine is put into: what its owner did to the last one, as far as it was answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.engine.protocol import Verdicts
from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.kept.condition import Call, EngineCondition, replay
from rayguard.engine.vllm.sync_client import SyncHealingClient


class Core:
    """As much of vLLM's core as decides whether it runs; fails the calls that it is told to."""

    def __init__(self, *, fails=()):
        self.fails, self.called = fails, []
        self.paused, self.asleep, self.adapters = False, set(), {}

    def _answer(self, name, *args):
        self.called.append((name, *args))
        if name in self.fails:
            raise RuntimeError(f"{name} failed")

    def pause_scheduler(self, mode="abort", clear_cache=True):
        self._answer("pause", mode, clear_cache)
        self.paused = True

    def resume_scheduler(self):
        self._answer("resume")
        self.paused = False

    def sleep(self, level=1, mode="abort"):
        self._answer("sleep", level)
        self.paused = True
        if level:
            self.asleep = {"weights", "kv_cache"}

    def wake_up(self, tags=None):
        self._answer("wake", tags)
        self.asleep -= self.asleep if tags is None else set(tags)
        self.paused = self.paused and bool(self.asleep)
        return not self.asleep

    def add_lora(self, lora_request):
        self._answer("add_lora", lora_request.lora_int_id)
        self.adapters[lora_request.lora_int_id] = lora_request.path
        return True

    def remove_lora(self, lora_id):
        self.adapters.pop(lora_id, None)

    def pin_lora(self, lora_id):
        self._answer("pin_lora", lora_id)

    def add_request(self, request):
        assert not self.paused, "it would be answered before it was woken"


class AsyncCore(Core):
    """The same for a loop."""

    def __getattr__(self, name):
        if not name.endswith("_async"):
            raise AttributeError(name)

        async def call(*args, **kwargs):
            return getattr(self, name.removesuffix("_async"))(*args, **kwargs)

        return call


def lora(number, path="a"):
    return SimpleNamespace(lora_int_id=number, path=path)


def seen(core):
    return core.paused, core.asleep, core.adapters


CALLS = st.one_of(
    st.tuples(st.just("pause_scheduler"), st.tuples(st.sampled_from(["keep", "abort"])), st.just({})),
    st.tuples(st.just("resume_scheduler"), st.just(()), st.just({})),
    st.tuples(st.just("sleep"), st.just(()), st.fixed_dictionaries({"level": st.integers(0, 2)})),
    st.tuples(st.just("wake_up"), st.sampled_from([(), (["weights"],), (["kv_cache"],)]), st.just({})),
    st.tuples(st.just("add_lora"), st.tuples(st.builds(lora, st.integers(1, 3), st.text("ab"))), st.just({})),
    st.tuples(st.just("remove_lora"), st.tuples(st.integers(1, 3)), st.just({})),
)


@given(st.lists(CALLS, max_size=12))
def test_a_new_core_is_put_into_the_state_of_the_last_one(calls):
    """Whatever its owner did, in whatever order."""
    old, new, kept = Core(), Core(), EngineCondition()
    for name, args, kwargs in calls:
        answer = getattr(old, name)(*args, **kwargs)
        kept = kept.after(Call(name=name, args=args, kwargs=kwargs), answer)
    replay(kept, new)
    assert seen(new) == seen(old)
    wanted = "asleep" if old.asleep else "paused" if old.paused else "serving"
    assert kept.standing().state == wanted


def test_a_call_that_was_not_answered_has_not_happened():
    """A death in a sleep leaves it awake, one in a wake asleep: whoever asked is told, or asks again."""
    old = Core(fails=["sleep"])
    client = SyncHealingClient(old, None, None, 1.0)
    with pytest.raises(RuntimeError):
        client.sleep(level=1)
    assert client.kept.standing().state == "serving"
    client.core = Core()
    client.sleep(level=1)
    client.core = Core(fails=["wake"])
    with pytest.raises(RuntimeError):
        client.wake_up()
    standing = client.kept.standing()
    assert (standing.state, standing.call) == ("asleep", "sleep(level=1)")
    new = Core()
    client.processor = SimpleNamespace(request_states={})
    client.adopt(new, Verdicts())
    assert new.asleep


def test_requests_reach_a_new_core_after_its_state(monkeypatch):
    """And an adapter that cannot be loaded any more costs only the requests that name it."""
    old, new = AsyncCore(), AsyncCore(fails=["add_lora"])
    old.add_request = lambda request: None
    taken = []
    new.add_request = lambda request: taken.append((new.paused, request.request_id))
    states = {"a": SimpleNamespace(detokenizer=None)}

    async def play():
        client = AsyncHealingClient(old, SimpleNamespace(request_states=states), None, 1.0)
        await client.add_lora_async(lora(1))
        await client.pause_scheduler_async(mode="keep", clear_cache=False)
        await client.add_request_async(
            SimpleNamespace(request_id="a", external_req_id=None, prompt_token_ids=[1])
        )
        await client.adopt(new, Verdicts())

    asyncio.run(play())
    assert new.called == [("add_lora", 1), ("pause", "keep", False)]
    assert taken == [(True, "a")]
