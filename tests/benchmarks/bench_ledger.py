"""What a pool's ledger costs: a request through it, its slowest commit, the disk that it takes, a restart.

Two tables. *alone*: a script of what a pool tells its ledger, without a pool: requests come, get tokens many
times (one ``flush`` for what each of some engines reports), are answered; then the file is opened again.
*pool*: requests a second through a pool of scripted engines, with the ledger and without one.

Beside it in the same run, turn by turn, another ledger (``--beside package.module:Class``; by default one on
sqlite3, ``sqlite_ledger``); the ratios are the other one's figures over ours. CPU of this process where
another one may run meanwhile; the best of some rounds for sums, all rounds for the slowest commits.

Two busy cores, sqlite3 3.40, WAL without syncing, 6 rounds: 3.0 times our CPU a request, 3.8 times our commit
(p50; p99 12 times), 0.83 of our disk, a quarter of our time to open it again; the pool answers 0.91 as many
requests a second, where 0.97 was asked. So the ledger is a file of its own records.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import tempfile
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.engine.generated import Generated
from rayguard.pool.ledger import location
from rayguard.pool.ledger.request_ledger import RequestLedger
from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.pool.values.request import Request
from rayguard.pool.values.result import Sample
from rayguard.testing.scripted import Script, ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 5
REQUESTS, ENGINES, RUNNING = 2_000, 8, 64  # of the script: engines, and requests that each works on at once
PIECES, TOKENS = 32, 8  # of each request, and tokens of each piece
PROMPT = tuple(range(100_000, 100_256))
POOL_ENGINES, POOL_REQUESTS, POOL_TOKENS = 16, 4_000, 64


@dataclass
class Alone:
    """What the script cost."""

    cpu_us: list[float] = field(default_factory=list)  # a request
    flushes_us: list[float] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)  # the most bytes
    close_ms: list[float] = field(default_factory=list)
    reopen_ms: list[float] = field(default_factory=list)  # with all answers, and what was running then

    def figures(self) -> dict[str, float]:
        """Return them by name."""
        commits = statistics.quantiles(self.flushes_us, n=1000)
        return {
            "cpu_us": min(self.cpu_us),
            "commit_p50_us": commits[499],
            "commit_p99_us": commits[989],
            "commit_max_us": max(self.flushes_us),
            "disk_mb": max(self.disk) / 1e6,
            "close_ms": min(self.close_ms),
            "reopen_ms": min(self.reopen_ms),
        }


def _made(count: int) -> Generated:
    return Generated(
        tokens=array("i", range(count)),
        width=1,
        ids=array("i", range(count)),
        logprobs=array("f", [-0.5] * count),
        ranks=array("i", [1] * count),
        versions=(("v1", 0),),
    )


def _script(ledger: Any, note: Callable[[], None]) -> None:
    """Tell ``ledger`` what a pool would; ``note`` is called in the place of ``flush``."""
    piece, answer = _made(TOKENS), _made(PIECES * TOKENS)
    waiting = iter(range(REQUESTS))
    running: list[dict[int, int]] = [{} for _ in range(ENGINES)]
    sampling = {"max_tokens": PIECES * TOKENS, "temperature": 1.0, "logprobs": 0}
    for n in range(REQUESTS):
        ledger.accepted(Request(id=f"r{n}", group=f"r{n}", prompt=PROMPT, sampling=sampling), "f" * 32)
    note()
    left = REQUESTS
    while left > ENGINES * RUNNING // 2:  # the last ones are owed when it is opened again
        for engine in running:
            while len(engine) < RUNNING and (n := next(waiting, None)) is not None:
                engine[n] = n % PIECES  # so that they do not end together
            for n, pieces in list(engine.items()):
                if pieces < PIECES:
                    ledger.progressed(f"r{n}", (pieces - n % PIECES) * TOKENS, piece)
                    engine[n] += 1
                else:
                    sample = Sample(id=f"r{n}", prompt_token_ids=PROMPT, generated=answer, text="x" * 1000)
                    ledger.answered(f"r{n}", "f" * 32, sample)
                    del engine[n]
                    left -= 1
            note()


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def alone(kind: Callable[[Path], Any], seen: Alone) -> None:
    """Play the script once."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "bench.ledger"
        ledger, most = kind(path), 0
        spent = [0.0]

        def note() -> None:
            nonlocal most
            began = time.perf_counter()
            ledger.flush()
            seen.flushes_us.append((time.perf_counter() - began) * 1e6)
            before = time.process_time()
            most = max(most, _bytes(path.parent))
            spent[0] += time.process_time() - before

        began = time.process_time()
        _script(ledger, note)
        seen.cpu_us.append((time.process_time() - began - spent[0]) / REQUESTS * 1e6)
        seen.disk.append(most)
        began = time.perf_counter()
        ledger.close()
        seen.close_ms.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        again = kind(path)
        seen.reopen_ms.append((time.perf_counter() - began) * 1e3)
        assert len(again.past.owed) + len(again.past.answered) == REQUESTS
        again.close(remove=True)


def pooled(kind: Callable[[Path], Any] | None) -> tuple[float, float]:
    """Return CPU and wall microseconds a request of a pool with such a ledger; None: without one."""
    with tempfile.TemporaryDirectory() as name:
        ledger = False if kind is None else Path(name) / "pool.ledger"
        if kind is not None:
            location.RequestLedger = kind  # type: ignore[assignment,misc]  # what ``open_ledger`` makes
        staff = ScriptedProvider(Script(capacity=RUNNING, tokens_a_turn=TOKENS))
        policy = PoolPolicy(progress=False, ledger=ledger)
        with RolloutPool.of(staff, engines=POOL_ENGINES, policy=policy) as pool:
            pool.wait_ready(timeout_s=60)
            ids = [f"step-{n}" for n in range(POOL_REQUESTS)]
            prompts = [[n, *PROMPT] for n in range(POOL_REQUESTS)]
            cpu, wall = time.process_time(), time.perf_counter()
            batch = pool.generate(prompts, {"max_tokens": POOL_TOKENS}, ids=ids)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            assert len(batch.samples) == POOL_REQUESTS
    return cpu / POOL_REQUESTS * 1e6, wall / POOL_REQUESTS * 1e6


def _kinds(beside: str) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    module, _, name = beside.partition(":")
    yield "this", RequestLedger
    yield "beside", getattr(importlib.import_module(module), name)


def main() -> None:
    """Print both tables, and the figures as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--beside",
        default="tests.benchmarks.sqlite_ledger:SqliteLedger",
        help="another ledger: package.module:Class",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    kinds = dict(_kinds(arguments.beside))
    seen = {name: Alone() for name in kinds}
    pools: dict[str, list[tuple[float, float]]] = {name: [] for name in [*kinds, "none"]}
    for turn in range(arguments.rounds):
        for name in list(pools)[:: 1 if turn % 2 else -1]:
            pools[name].append(pooled(kinds.get(name)))
            if name in kinds:
                alone(kinds[name], seen[name])
    figures: dict[str, float] = {"load": os.getloadavg()[0]}
    for name, one in seen.items():
        print(f"alone, {name}: " + ", ".join(f"{what} {value:.1f}" for what, value in one.figures().items()))
        figures |= {f"{name}_{what}": value for what, value in one.figures().items()}
    for name, times in pools.items():
        cpu, wall = min(cpu for cpu, _ in times), min(wall for _, wall in times)
        print(f"pool, {name}: {cpu:.0f} us CPU, {wall:.0f} us wall a request, {1e6 / wall:.0f} requests/s")
        figures |= {f"{name}_pool_cpu_us": cpu, f"{name}_pool_requests_s": 1e6 / wall}
    for what in (*seen["this"].figures(), "pool_cpu_us", "pool_requests_s"):
        figures[f"ratio_{what}"] = figures[f"beside_{what}"] / figures[f"this_{what}"]
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
