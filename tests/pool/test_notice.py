"""What a cluster says of a pool's actors, and what the pool makes of it; with scripted actors."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rayguard.pool import gcs_watch
from rayguard.pool.gcs_watch import Notices, drain_s
from rayguard.ray_internals import gcs_subscription
from rayguard.recovery.tally import TALLY

PROMPTS = [[n, n + 1, 5] for n in range(24)]


@pytest.mark.parametrize(
    ("left_s", "limit_s", "wanted"),
    [(60, 300, 55), (600, 300, 300), (10, 300, 8), (0.5, 300, 0.4), (-3, 300, 0), (None, 300, 300)],
)
def test_an_actor_goes_on_until_a_little_before_its_node_goes(left_s, limit_s, wanted):
    """Never longer than the pool's own limit; a node without a time has that."""
    deadline_ms = 0 if left_s is None else int((1_000 + left_s) * 1000)
    assert drain_s(deadline_ms, 1_000.0, limit_s) == pytest.approx(wanted)


@pytest.fixture
def lit(stage):
    """A pool whose actors say where they are: each on a node of its own."""

    def make(**script):
        play = stage(**{"turn_s": 0.01, **script})

        def place():
            for n, connection in enumerate(play.core.connections.values()):
                connection.hello = replace(connection.hello, actor_id=f"a{n}", pid=100 + n, node_id=f"n{n}")

        play.on_loop(place)
        play.notices = Notices(play.core, 300.0)
        return play

    return make


def began(play, sampling):
    futures = [play.pool.submit(p, sampling, request_id=f"r{n}") for n, p in enumerate(PROMPTS)]
    play.working("rollout-0")
    return lambda: [future.result(20) for future in futures]


def test_a_death_that_is_told_is_taken_at_once_for_the_life_that_is_meant(lit):
    """Another actor's, another process's, a late word: nothing."""
    play = lit()
    result = began(play, {"max_tokens": 100})
    for actor_id, pid in (("a0", 999), ("a9", 100), ("", 0)):
        play.on_loop(lambda a=actor_id, p=pid: play.notices.died(a, p, "told", innocent=False))
    assert play.pool.status()["engines"]["rollout-0"]["last_loss"] == ""
    play.kill("rollout-0", tell=False)
    play.on_loop(lambda: play.notices.died("a0", 100, "told", innocent=False))
    play.until(lambda: play.core.causes.get("rollout-0") == "told")
    assert any(e.deaths for e in play.core.book.entries.values())
    play.on_loop(lambda: play.notices.died("a0", 100, "told again", innocent=False))
    play.right(result(), PROMPTS, {"max_tokens": 100})
    assert play.core.causes["rollout-0"] == "told"


def test_requests_are_not_to_blame_for_the_end_of_a_node(lit):
    """None of them is suspected."""
    play = lit()
    result = began(play, {"max_tokens": 100})
    play.kill("rollout-0", tell=False)
    play.on_loop(lambda: play.notices.died("a0", 100, "its node", innocent=True))
    play.until(lambda: play.core.causes.get("rollout-0") == "its node")
    assert not any(e.deaths for e in play.core.book.entries.values())
    play.right(result(), PROMPTS, {"max_tokens": 100})


def test_actors_leave_a_node_that_goes_after_others_were_hired(lit):
    """They finish what they have, and are told once."""
    play = lit(start_s=0.1)
    result = began(play, {"max_tokens": 60})
    for _ in range(3):
        play.on_loop(lambda: play.notices.draining({"n0": int((time.time() + 30) * 1000)}, time.time()))
    play.until(lambda: play.staff.dismissed == ["rollout-0"])
    batch = result()
    play.right(batch, PROMPTS, {"max_tokens": 60})
    assert not any(sample.cuts for g in batch for sample in g.samples)
    assert sorted(play.pool.handles) == ["rollout-1", "rollout-2"]


def test_when_time_is_up_requests_move_with_their_tokens(lit):
    """Before the node goes."""
    play = lit()
    result = began(play, {"max_tokens": 800})
    until = time.time() + 1.0
    play.on_loop(lambda: play.notices.draining({"n0": int(until * 1000)}, time.time()))
    play.until(lambda: play.staff.dismissed == ["rollout-0"])
    batch = result()
    play.right(batch, PROMPTS, {"max_tokens": 800})
    assert any(sample.cuts for g in batch for sample in g.samples)


def test_nobody_listens_where_the_kernel_tells_of_all_deaths(lit):
    """All actors on the pool's node, or none that said where it is."""
    play = lit()
    assert play.notices.beyond("n0")
    play.on_loop(lambda: play.core.connections.pop("rollout-1").close())
    assert not play.notices.beyond("n0")


async def test_without_rays_word_the_pool_goes_on(monkeypatch):
    """Said and counted once, tried again."""
    tries = []

    class Broken:
        def __init__(self, *_):
            tries.append(1)

        async def run(self):
            raise AttributeError("another Ray")

    monkeypatch.setattr(gcs_watch, "_Word", Broken)
    monkeypatch.setattr(gcs_subscription, "AGAIN_S", (0.01, 0.01, 0.01))
    before = TALLY.guard_errors["gcs"]
    listening = asyncio.ensure_future(gcs_watch.listen("here", SimpleNamespace(beyond=lambda _here: True)))
    await asyncio.sleep(0.3)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert len(tries) > 3
    assert TALLY.guard_errors["gcs"] >= before + 1


async def test_an_outage_after_a_long_quiet_is_told_once(monkeypatch):
    """The first failure ends the quiet; those that follow at once are of the same outage."""
    lasting = iter([0.2, 0.0, 0.0])
    ended = asyncio.Event()

    async def line():
        for lasts in lasting:
            await asyncio.sleep(lasts)
            raise ConnectionError("gone")
        ended.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(gcs_subscription, "AGAIN_S", (0.0, 0.0, 0.1))
    before = TALLY.guard_errors["gcs"]
    hearing = asyncio.ensure_future(gcs_subscription.kept_up(line, "nothing is heard", (0.0,)))
    await asyncio.wait_for(ended.wait(), 30)
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
    assert TALLY.guard_errors["gcs"] == before + 1
