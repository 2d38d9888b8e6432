"""What the ledger costs: one pass over 10,000 live references, a scope, and the end of 10,000 leaked ones.

Run it as a script. Times are this thread's own (CPU), the best of several turns: noise only adds.
"""

import json
import os
import time

from rayguard.harmless import errors as counted_errors
from rayguard.objects import reaper
from rayguard.objects.holdings import HOLDINGS
from rayguard.objects.remote_scopes import install
from rayguard.objects.scope import object_scope
from rayguard.ray_internals.object_refs import core_worker

LIVE = 10_000
LIMIT_MS = 50.0
TURNS = 15


def best_ms(work, turns=TURNS):
    """Return the milliseconds of ``work``, best of ``turns``: (CPU, wall)."""
    cpu, wall = [], []
    for turn in range(turns):
        started, begun = time.thread_time(), time.perf_counter()
        work(turn)
        cpu.append(time.thread_time() - started)
        wall.append(time.perf_counter() - begun)
    return min(cpu) * 1e3, min(wall) * 1e3


def put_us(ray, count=3000):
    """Return the added microseconds of a put within a scope: it is noted, with its line."""
    figures = {}
    for name in ("bare", "scoped", "bare", "scoped"):
        started = time.thread_time()
        if name == "scoped":
            with object_scope(0, across=False):
                for number in range(count):
                    ray.put(number)
        else:
            for number in range(count):
                ray.put(number)
        figures[name] = min(figures.get(name, 1e9), (time.thread_time() - started) / count * 1e6)
    return figures


def main():
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=400_000_000,
    )
    try:
        reaper._SHARE = 1e9
        HOLDINGS.tracking = install()
        live = [ray.put(number) for number in range(LIVE)]
        cpu_ms, wall_ms = best_ms(lambda _: reaper.refresh(core_worker()))
        assert len(HOLDINGS.objects) >= LIVE
        HOLDINGS.tracking = False
        empty_us = [best_ms(lambda turn: object_scope(turn).__enter__().__exit__(None, None, None))[0] * 1e3]
        del live
        reaper.refresh(core_worker())
        costs = put_us(ray)
        with object_scope(TURNS, keep_steps=0, across=False):
            leaked = [ray.put(number) for number in range(LIVE)]
            started = time.thread_time()
        end_ms = (time.thread_time() - started) * 1e3
        errors = counted_errors.total()
        assert HOLDINGS.totals.ended >= LIVE, HOLDINGS.totals
        del leaked
    finally:
        ray.shutdown()
    print(
        f"one pass over {LIVE} live references: {cpu_ms:.1f} ms of CPU, {wall_ms:.1f} ms of wall; a scope that made "
        f"nothing (with {LIVE} live): {empty_us[0]:.0f} us; a put: bare {costs['bare']:.1f} us, in a scope "
        f"{costs['scoped']:.1f} us; the end of {LIVE} leaked references: {end_ms:.0f} ms"
    )
    print(json.dumps({"ledger_pass_ms": round(wall_ms, 2), "live": LIVE, "errors": errors}))
    assert cpu_ms <= LIMIT_MS, f"a pass takes {cpu_ms:.1f} ms"


if __name__ == "__main__":
    main()
