"""What a pool itself costs: microseconds a request, and whether a thousand engines cost more each than ten.

Scripted engines (``rayguard.testing.scripted``) answer at once, on the pool's own loop. CPU of the whole
process, since this machine is shared; the best of some rounds, since what is above it is others'.

* all: from ``generate`` to the sample in hand, scripted engines included: an upper bound. The same number of
  requests for each number of engines: Python's garbage collector takes longer the more of them wait.
* wall: the same by the clock; nothing else may run meanwhile, or it counts.
* engines: what the scripted engines take of it, driven without a pool. In truth they are other processes.
* singly: one request in each call to an engine and one in each answer, where "all" has many.
* dispatch: to accept, to choose the engine and to write the order; without delivery.

What does not depend on requests is beside: CPU to start one more engine, and a second of one that is idle.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.pool.actors.messages import Finished
from rayguard.pool.book import Book
from rayguard.pool.entries import Entry
from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.pool.values.request import Request
from rayguard.testing.scripted import Script, ScriptedActor, ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENGINES = (10, 100, 1_000)
ROUNDS = 3
COUNT = 20_000  # requests in a round
SINGLY = 2_000  # of those that come singly
ROOM = 20  # of each engine
TOKENS = 8
SAMPLING = {"max_tokens": TOKENS}
IDLE_S = 3.0


@dataclass
class Row:
    """Microseconds: a request's, but for the last two."""

    all: float = float("inf")
    wall: float = float("inf")
    engines: float = float("inf")
    singly: float = float("inf")
    dispatch: float = float("inf")
    start: float = 0.0  # of the whole pool
    idle: float = 0.0  # of an engine, a second


@dataclass
class Spent:
    """Seconds."""

    cpu: float = field(default_factory=time.process_time)
    wall: float = field(default_factory=time.perf_counter)


@contextmanager
def spending() -> Iterator[Spent]:
    """Measure what is spent within."""
    gc.collect()
    spent = Spent()
    yield spent
    spent.cpu, spent.wall = time.process_time() - spent.cpu, time.perf_counter() - spent.wall


def main() -> None:
    """Print a table, and the figures as JSON on the last line."""
    rows = {}
    _pool(1, 1).close()  # what is loaded with the first pool is no engine's
    print("engines   all  wall  engines  singly  dispatch   (us a request)")
    for engines in ENGINES:
        row = rows[engines] = measured(engines)
        print(
            f"{engines:7d} {row.all:5.0f} {row.wall:5.0f} {row.engines:8.0f} {row.singly:7.0f}"
            f" {row.dispatch:9.1f}",
            flush=True,
        )
    few, many = rows[ENGINES[0]], rows[ENGINES[-1]]
    figures = {
        "pool_us": round(rows[100].all, 1),
        "pool_us_1000": round(many.all, 1),
        "pool_us_1000_without_engines": round(many.all - many.engines, 1),
        "dispatch_us": round(rows[100].dispatch, 1),
        "cost_of_1000_against_10": round(many.all / few.all, 3),
        "singly_of_1000_against_10": round(many.singly / few.singly, 3),
        "start_us_an_engine": round((many.start - few.start) / (ENGINES[-1] - ENGINES[0])),
        "idle_us_an_engine_second": round(many.idle),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures))


def measured(engines: int) -> Row:
    """Return what a pool of so many engines costs."""
    row = Row()
    with spending() as starting:
        pool = _pool(engines, ROOM)
    row.start = starting.cpu * 1e6
    with pool:
        for _ in range(ROUNDS):
            spent = _generated(pool, COUNT)
            row.all, row.wall = min(row.all, spent.cpu / COUNT * 1e6), min(row.wall, spent.wall / COUNT * 1e6)
        with spending() as idling:
            asyncio.run(asyncio.sleep(IDLE_S))
        row.idle = idling.cpu / engines / IDLE_S * 1e6
    with _pool(engines, 1) as pool:
        for _ in range(ROUNDS):
            row.singly = min(row.singly, _generated(pool, SINGLY).cpu / SINGLY * 1e6)
    for _ in range(ROUNDS):
        row.engines = min(row.engines, asyncio.run(_without_pool(engines)) * 1e6)
        row.dispatch = min(row.dispatch, _dispatch(engines) * 1e6)
    return row


def _pool(engines: int, room: int) -> RolloutPool:
    staff = ScriptedProvider(Script(capacity=room, tokens_a_turn=TOKENS))
    pool = RolloutPool.of(staff, engines=engines, policy=PoolPolicy(progress=False))
    pool.wait_ready(timeout_s=60)
    return pool


def _generated(pool: RolloutPool, count: int) -> Spent:
    prompts = [[n, 1, 2] for n in range(count)]
    with spending() as spent:
        batch = pool.generate(prompts, SAMPLING)
    assert len(batch.samples) == count
    return spent


def _requests(count: int) -> list[Request]:
    return [Request(id=str(n), group=str(n), prompt=(n, 1, 2), sampling=SAMPLING) for n in range(count)]


async def _without_pool(engines: int) -> float:
    """Return CPU seconds a request: the engines get the same requests, as many at a time."""
    members = [ScriptedActor(str(n), Script(capacity=ROOM, tokens_a_turn=TOKENS)) for n in range(engines)]
    requests = _requests(COUNT)
    with spending() as spent:
        each = COUNT // engines
        await asyncio.gather(
            *(_driven(m, requests[n * each : (n + 1) * each]) for n, m in enumerate(members))
        )
    return spent.cpu / COUNT


async def _driven(member: ScriptedActor, requests: Sequence[Request]) -> None:
    session, taken = (await member.hello()).session, 0
    for at in range(0, len(requests), ROOM):
        await member.submit(session, [Entry(request).order() for request in requests[at : at + ROOM]])
        left = min(ROOM, len(requests) - at)
        while left:
            report = await member.poll(session, taken, 1.0)
            left -= sum(isinstance(event, Finished) for event in report.events[taken - report.first :])
            taken = report.first + len(report.events)


def _dispatch(engines: int) -> float:
    """Return CPU seconds a request."""
    book = Book()
    for n in range(engines):
        book.join(f"rollout-{n}", COUNT // engines)
    requests = _requests(COUNT)
    with spending() as spent:
        for request in requests:
            book.accept(request)
        orders = [entry.order() for entries in book.dispatch().values() for entry in entries]
    assert len(orders) == COUNT
    return spent.cpu / COUNT


if __name__ == "__main__":
    main()
