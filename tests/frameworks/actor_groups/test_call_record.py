"""What a group was told is kept as far as its state depends on it: decided without Ray."""

from __future__ import annotations

import pytest

from rayguard.frameworks.actor_groups.call_record import CallRecord
from rayguard.frameworks.actor_groups.effects import NOT_TWICE, effect_of
from rayguard.frameworks.actor_groups.sent_call import Arguments, SentCall, SentPart
from rayguard.frameworks.worker_groups.calls import Effect


def call(name, *, answered=True, size_bytes=0, took_s=0.0):
    part = SentPart(0, name, Arguments((), {}), "id", answered=answered)
    return SentCall(name, effect_of(name), 1, [part], size_bytes=size_bytes, took_s=took_s, whole=True)


def record(*calls, most_bytes=100, most_s=60.0):
    found = CallRecord(most_bytes, most_s)
    for one in calls:
        found.sent(one)
    return found


def test_what_is_not_known_is_said_so():
    """And what is not made twice leaves nothing behind in the ranks."""
    assert effect_of("anything") is None
    assert {effect_of(name) for name in NOT_TWICE} == {Effect.NONE}


def test_an_answered_call_stays_if_it_changed_something():
    """Others stay until then, in their place."""
    calls = [call(name) for name in ("init_model_from_pretrained", "forward", "append", "fit")]
    found = record(*calls)
    assert [one.name for one in found.calls][1] == "forward"
    for one in calls:
        found.over(one)
    assert [one.name for one in found.calls] == ["init_model_from_pretrained", "append", "fit"]


@pytest.mark.parametrize(
    ("one", "said"), [({"size_bytes": 60}, "to keep"), ({"took_s": 40.0}, "too long to make them again")]
)
def test_too_many_updates_are_not_kept(one, said):
    """What is under way stays: its caller has its references."""
    init, pending = call("init_model_from_pretrained"), call("append", answered=False, **one)
    found = record(init, call("append", **one), pending)
    found.weighed()
    assert said in found.doubt
    assert found.calls == [init, pending]
    pending.parts[0].answered = True
    found.over(pending)
    assert found.calls == [init]


def test_a_call_is_not_over_before_it_was_sent_to_all():
    """The first rank's answer may be there by then."""
    sent = SentCall(
        "forward", Effect.NONE, 1, [SentPart(0, "forward", Arguments((), {}), "id", answered=True)]
    )
    assert not sent.is_answered
    sent.sealed()
    assert sent.is_answered
