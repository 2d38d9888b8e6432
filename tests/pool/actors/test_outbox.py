"""What a rollout actor has to tell waits for more only where more can come."""

import asyncio

import pytest

from rayguard.errors import RayguardError
from rayguard.pool.actors import outbox
from rayguard.pool.actors.messages import CallFailed

LONG_S, MOMENT_S = 3600.0, 0.2


async def told(others):
    box = outbox.Outbox()
    for name in ("last", *others):
        box.expect(name, 0)
    box.put(CallFailed("last", RayguardError("no"), retry=True))
    box.done("last")
    return await asyncio.wait_for(box.take(0, LONG_S), MOMENT_S)


def test_the_last_answer_is_told_at_once(monkeypatch):
    monkeypatch.setattr(outbox, "SETTLE_S", LONG_S)
    first, [event] = asyncio.run(told(()))
    assert (first, event.id) == (0, "last")


def test_an_answer_waits_a_moment_for_those_of_others(monkeypatch):
    monkeypatch.setattr(outbox, "SETTLE_S", LONG_S)
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        asyncio.run(told(("other",)))
