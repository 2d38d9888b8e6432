"""What a pool itself costs: microseconds a request, and whether a thousand engines cost more each than ten.

Scripted engines (``rayguard.testing.scripted``) answer at once, so nearly all that is measured is the pool's
loop and the scripted engines on it: an upper bound. CPU seconds of the whole process, since this machine is
shared. ``dispatch_us`` is the book's and the orders' part alone, without delivery.
"""

from __future__ import annotations

import json
import os
import statistics
import time

from rayguard.actors.pool.book import Book
from rayguard.actors.pool.policy import PoolPolicy
from rayguard.actors.pool.pool import RolloutPool
from rayguard.actors.pool.request import Request
from rayguard.testing.scripted import Script, ScriptedStaff

ROUNDS = 5
EACH = 20  # requests for each engine
TOKENS = 8


def main() -> None:
    """Print a table, and the figures as JSON on the last line."""
    rows = {
        engines: statistics.median(_whole(engines) for _ in range(ROUNDS)) for engines in (10, 100, 1_000)
    }
    dispatch = {engines: min(_dispatch(engines) for _ in range(ROUNDS)) for engines in rows}
    print("engines   us a request (all)   us a request (dispatch)")
    for engines, cost in rows.items():
        print(f"{engines:7d} {cost:20.1f} {dispatch[engines]:25.1f}")
    figures = {
        "pool_us": round(rows[100], 1),
        "dispatch_us": round(dispatch[100], 1),
        "cost_of_1000_against_10": round(rows[1_000] / rows[10], 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures))


def _whole(engines: int) -> float:
    """Return CPU microseconds a request, from ``generate`` to the sample in hand."""
    staff = ScriptedStaff(Script(capacity=EACH, tokens_a_turn=TOKENS))
    with RolloutPool.of(staff, engines=engines, policy=PoolPolicy(progress=False)) as pool:
        pool.wait_ready(timeout_s=60)
        count = max(2_000, engines * EACH)
        prompts = [[n, 1, 2] for n in range(count)]
        began = time.process_time()
        batch = pool.generate(prompts, {"max_tokens": TOKENS})
        spent = time.process_time() - began
        assert len(batch.samples) == count
    return spent / count * 1e6


def _dispatch(engines: int) -> float:
    """Return CPU microseconds to accept a request, choose its engine and write the order."""
    book = Book()
    for n in range(engines):
        book.join(f"rollout-{n}", EACH)
    requests = [Request(id=str(n), group=str(n), prompt=(1, 2)) for n in range(engines * EACH)]
    began = time.process_time()
    for request in requests:
        book.accept(request)
    orders = [entry.order() for entries in book.dispatch().values() for entry in entries]
    spent = time.process_time() - began
    assert len(orders) == len(requests)
    return spent / len(requests) * 1e6


if __name__ == "__main__":
    main()
