"""What the guard costs while nothing happens: one engine, with and without the client that heals it.

One real vLLM engine on the CPU. In short alternating blocks (each arm once, then once more in the opposite
order) the healing client is put in the place of vLLM's own and taken out again, with the token log and without
it, so that process, core, caches and the weather of the machine are the same for all. Engines side by side
differ by more than what is looked for.

Beside it stands what an audit costs (``bench_audit``). Three answers, from blunt to sharp: tokens per second (median ratio of the groups with its 95 % interval, from
order statistics), CPU time of the owner's process per step, and the time of what the client adds, run by
itself over recorded outputs of the engine, as a share of a step.

Last line JSON; ends with 1 when the promise is broken. ``python -m tests.benchmarks.bench_throughput --groups 100``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console
from rich.progress import track

from tests.benchmarks import bench_audit
from tests.engine.real import ENVIRONMENT, Owner

PROMISED_LOSS = 0.01
REQUESTS, TOKENS = 16, 64
REPLAYS = 40
ARMS = ("bare", "healed", "logged")  # vLLM's own client; the healing one; the healing one with a token log


@dataclass(frozen=True)
class Block:
    """One block of generation: seconds of the wall, of the whole process and of the calling thread."""

    wall_s: float
    process_s: float
    thread_s: float
    steps: int


class Bench:
    """One engine that works in one of ``ARMS`` from one block to the next."""

    def __init__(self, owner: Owner) -> None:
        from vllm import SamplingParams

        self.owner = owner
        engine = owner._engine_slot.engine(1.0)
        self.llm, self.front, self.client = engine.handle, engine.front, engine.client
        self.keepers = tuple(self.client.inflight.keepers)
        assert self.keepers, "a token log is kept by default"
        self.params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        self.prompts = [{"prompt_token_ids": [20 + i, 7, 90, 11]} for i in range(REQUESTS)]
        self.steps = 0
        processor = self.front.output_processor
        process = processor.process_outputs

        def counted(outputs, *args, **kwargs):
            self.steps += 1
            return process(outputs, *args, **kwargs)

        processor.process_outputs = counted  # in both arms alike

    def block(self, arm: str) -> Block:
        guarded = arm != "bare"
        self.front.engine_core = self.client if guarded else self.client.core
        self.client.inflight.keepers[:] = self.keepers if arm == "logged" else ()
        steps, wall, process, thread = (
            self.steps,
            time.perf_counter(),
            time.process_time(),
            time.thread_time(),
        )
        outputs = self.owner.with_engine(self._generate) if guarded else self._generate(self.llm)
        block = Block(
            time.perf_counter() - wall,
            time.process_time() - process,
            time.thread_time() - thread,
            self.steps - steps,
        )
        assert [len(output.outputs[0].token_ids) for output in outputs] == [TOKENS] * REQUESTS
        return block

    def _generate(self, engine):
        return engine.generate(self.prompts, self.params, use_tqdm=False)

    def record(self) -> tuple[list, list]:
        """Return the requests of one block as they reached the core, and what it sent."""
        core, recorded, asked = self.client.core, [], []
        get_output, add_request = core.get_output, core.add_request

        def recording():
            recorded.append(get_output())
            return recorded[-1]

        def adding(request):
            asked.append(request)
            add_request(request)

        core.get_output, core.add_request = recording, adding
        try:
            self.block("healed")
        finally:
            del core.get_output, core.add_request
        return asked, recorded


class Recorded:
    """A core that sends what another one sent."""

    resources = SimpleNamespace(engine_dead=False)

    def __init__(self, outputs: list) -> None:
        self._outputs = iter(outputs)

    def get_output(self):
        return next(self._outputs)

    def add_request(self, request):
        return None

    abort_requests = add_request

    async def get_output_async(self):
        return next(self._outputs)

    async def add_request_async(self, request):
        return None


def replay(client, requests: list, steps: int) -> float:
    """Return the seconds of everything that ``LLMEngine`` calls on its client during one block."""
    began = time.perf_counter()
    for request in requests:
        client.add_request(request)
    for _ in range(steps):
        client.get_output()
        client.abort_requests(())
    return time.perf_counter() - began


async def replay_async(client, requests: list, steps: int) -> float:
    """As ``replay``, for what ``AsyncLLM`` calls."""
    began = time.perf_counter()
    for request in requests:
        await client.add_request_async(request)
    for _ in range(steps):
        await client.get_output_async()
    return time.perf_counter() - began


def added_s(requests: list, outputs: list) -> dict[str, float]:
    """Return what each healing client adds to one block, in seconds: the least of many runs."""
    from rayguard.engine.vllm.async_client import AsyncHealingClient
    from rayguard.engine.vllm.sync_client import SyncHealingClient

    found = {"sync": [], "async": [], "sync bare": [], "async bare": []}
    for _ in range(REPLAYS):
        for name, kind in (("sync", SyncHealingClient), ("async", AsyncHealingClient)):
            for arm in (name, f"{name} bare"):
                core = Recorded(outputs)
                client = core if arm.endswith("bare") else kind(core, None, None, 1.0)
                took = (
                    replay(client, requests, len(outputs))
                    if name == "sync"
                    else asyncio.run(replay_async(client, requests, len(outputs)))
                )
                found[arm].append(took)
    return {name: min(found[name]) - min(found[f"{name} bare"]) for name in ("sync", "async")}


def interval(values: list[float], coverage: float = 0.95) -> tuple[float, float]:
    """Return order statistics between which the median lies with at least ``coverage``."""
    ordered, n = sorted(values), len(values)
    tail, k = 0.0, 0
    while k < n // 2 and tail + math.comb(n, k) / 2**n <= (1 - coverage) / 2:
        tail += math.comb(n, k) / 2**n
        k += 1
    return ordered[max(0, k - 1)], ordered[n - max(1, k)]


def compare(groups: list[list[tuple[str, Block]]], measure, arm: str, against: str) -> dict[str, float]:
    """Return the median over groups of ``measure`` of one arm by that of another, with its interval."""
    ratios = [
        sum(measure(block) for name, block in group if name == arm)
        / sum(measure(block) for name, block in group if name == against)
        for group in groups
    ]
    low, high = interval(ratios)
    return {"median": round(statistics.median(ratios), 4), "low": round(low, 4), "high": round(high, 4)}


def rotated(number: int) -> tuple[str, ...]:
    """Return the order of the arms in a group: each arm is as often first as any other."""
    first = number % len(ARMS)
    order = ARMS[first:] + ARMS[:first]
    return order + order[::-1]


def run(count: int) -> dict:
    from examples.grpo.model import build

    folder = Path(tempfile.mkdtemp(prefix="rayguard-throughput-"))
    os.environ["RAYGUARD_HOME"] = str(folder / "home")
    owner = Owner(str(build(folder / "model", 0)), "LLM")
    owner.start_engine()
    bench = Bench(owner)
    for arm in ARMS * 4:
        bench.block(arm)
    load = os.getloadavg()[0]
    numbers = track(range(count), "Groups of blocks", console=Console(stderr=True))
    groups = [[(arm, bench.block(arm)) for arm in rotated(number)] for number in numbers]
    requests, outputs = bench.record()
    owner.stop_engine()
    audited = bench_audit.measured(folder / "model", max(1, count // 4))

    def per_step_us(measure, arm):
        blocks = [block for group in groups for name, block in group if name == arm]
        return round(statistics.median(measure(block) / block.steps for block in blocks) * 1e6, 1)

    def ratio(arm, against, measure=lambda block: 1 / block.wall_s):
        return compare(groups, measure, arm, against)

    step_us = per_step_us(lambda block: block.wall_s, "bare")
    extra = {name: seconds / len(outputs) * 1e6 for name, seconds in added_s(requests, outputs).items()}
    tokens = sum(len(output.new_token_ids) for sent in outputs for output in sent.outputs)
    return {
        "groups": count,
        "tokens_per_s_ratio": ratio("logged", "bare"),
        "token_log_ratio": ratio("logged", "healed"),
        # Seconds without an audit by those with it, of an AsyncLLM that is never without work.
        "audit_ratio": compare(audited, lambda seconds: 1 / seconds, "audited", "bare"),
        "audit_share": bench_audit.SHARE,
        "tokens_per_s_bare": round(REQUESTS * TOKENS / (step_us * 1e-6 * len(outputs))),
        "step_us_bare": step_us,
        "process_cpu_us_per_step": {arm: per_step_us(lambda block: block.process_s, arm) for arm in ARMS},
        "thread_cpu_us_per_step": {arm: per_step_us(lambda block: block.thread_s, arm) for arm in ARMS},
        "process_cpu_ratio": ratio("logged", "bare", lambda block: block.process_s / block.steps),
        "added_us_per_step": {name: round(us, 2) for name, us in extra.items()},
        "added_ns_per_token": {name: round(us * 1e3 * len(outputs) / tokens) for name, us in extra.items()},
        "added_share_of_a_step": {name: round(us / step_us, 5) for name, us in extra.items()},
        "tokens_in_a_step": round(tokens / len(outputs), 1),
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--groups", type=int, default=100)
    os.environ.update({**ENVIRONMENT, "TORCHDYNAMO_DISABLE": "1"})
    told = run(options.parse_args().groups)
    print(json.dumps(told))
    broken = (
        max(told["added_share_of_a_step"].values()) > PROMISED_LOSS
        or told["tokens_per_s_ratio"]["high"] < 1 - PROMISED_LOSS
        or told["token_log_ratio"]["high"] < 1 - PROMISED_LOSS
    )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
