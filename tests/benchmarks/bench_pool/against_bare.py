"""A pool of two real engines beside two bare ``AsyncLLM`` actors: the same steps, in turns, nothing fails.

    python -m tests.benchmarks.bench_pool.against_bare [pairs]

A step is what a synchronous loop does: generate for all prompts, then give new weights to both engines. Bare is what
one would write without rayguard: each actor gets every second prompt in one call that answers with what the pool's
samples hold (tokens and their log-probabilities), and loads weights from a file (``reload_weights``). All four engines
live, the ones that are not asked wait; the arms take turns, each first as often as the other, and the first pair, in
which everything is new, is left out. Short steps are 32 prompts of 128 tokens, long ones 64 of 448.

Prints each pair, and as its last line JSON: medians of the bare seconds by the pool's with their 95 % intervals, for
generation alone as well. Ends with 1 where the pool is slower than promised: 0.98 in short steps, 0.99 in long ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import rayguard
from rayguard.testing import tiny_qwen
from tests.benchmarks.bench_throughput import interval
from tests.engine.real import local_ray

ENGINES = 2
GET_S = 300.0
PROMISED = {"short": 0.98, "long": 0.99}


@dataclass(frozen=True)
class Work:
    """What is done in one turn of an arm."""

    prompts: int
    tokens: int
    steps: int


WORK = {"short": Work(32, 128, 8), "long": Work(64, 448, 2)}


@dataclass
class Spent:
    """Seconds of the steps of one turn: generating, and giving weights."""

    generate: list[float] = field(default_factory=list)
    push: list[float] = field(default_factory=list)

    @property
    def both(self) -> float:
        return sum(self.generate) + sum(self.push)


def engine_args(model: str) -> dict[str, object]:
    return {
        "model": model,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 64,
        "kv_cache_memory_bytes": 64 << 20,
        "generation_config": "vllm",
    }


def sampling(tokens: int, seed: int) -> dict[str, object]:
    return {"temperature": 1.0, "max_tokens": tokens, "ignore_eos": True, "logprobs": 0, "seed": seed}


class Source:
    """The trainer's side: weights under the number of the step."""

    def __init__(self) -> None:
        self.tensors = tiny_qwen.tiny_model(spread=0.2).state_dict()
        self.step = 0

    def next_step(self) -> None:
        self.step += 1

    def weights(self) -> rayguard.Weights:
        return rayguard.Weights.from_tensors(f"step-{self.step}", self.tensors)


class Guarded(rayguard.RolloutMixin):
    """What a user of the pool writes."""

    def __init__(self, model: str, source) -> None:
        import ray

        self.model = model
        self.start_engine(weights=lambda: ray.get(source.weights.remote(), timeout=GET_S))

    def build_engine(self, settings):
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings.as_kwargs(**engine_args(self.model))))


class Bare:
    """What one writes without it."""

    def __init__(self, model: str, source, folder: str) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.source, self.folder, self.asked = source, Path(folder, f"pushed-{os.getpid()}"), 0
        self.folder.mkdir()
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args(model)))

    async def generate(self, requests) -> list[tuple[list[int], list[float]]]:
        return list(await asyncio.gather(*(self._one(*request) for request in requests)))

    async def _one(self, prompt, options):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.asked += 1
        params = SamplingParams(**options, output_kind=RequestOutputKind.FINAL_ONLY)
        async for output in self.engine.generate({"prompt_token_ids": prompt}, params, str(self.asked)):
            last = output
        answer = last.outputs[0]
        tokens = list(answer.token_ids)
        return tokens, [entry[token].logprob for token, entry in zip(tokens, answer.logprobs, strict=True)]

    async def push(self) -> str:
        weights = await self.source.weights.remote()
        await asyncio.to_thread((self.folder / "model.safetensors").write_bytes, weights.payload)
        await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(self.folder)})
        await self.engine.reset_prefix_cache()
        return weights.version


class BareArm:
    """Two actors, and what a driver does with them."""

    def __init__(self, ray, model: str, source, folder: str) -> None:
        self.ray = ray
        actor = ray.remote(num_cpus=0)(Bare)
        options = {"runtime_env": {"env_vars": {"VLLM_PLUGINS": ""}}}  # rayguard is also a plugin of vLLM
        self.actors = [actor.options(**options).remote(model, source, folder) for _ in range(ENGINES)]

    def generate(self, prompts, options) -> list[list[int]]:
        requests = list(zip(prompts, options, strict=True))
        parts = [actor.generate.remote(requests[n::ENGINES]) for n, actor in enumerate(self.actors)]
        answers: list[list[int]] = [[] for _ in prompts]
        for n, part in enumerate(self.ray.get(parts, timeout=GET_S)):
            answers[n::ENGINES] = [tokens for tokens, _ in part]
        return answers

    def push(self) -> None:
        self.ray.get([actor.push.remote() for actor in self.actors], timeout=GET_S)


class PoolArm:
    """A pool with what it does by default."""

    def __init__(self, model: str, source) -> None:
        policy = rayguard.PoolPolicy(progress=False)
        options = {"num_cpus": 0}
        self.pool = rayguard.RolloutPool(
            Guarded, model, source, engines=ENGINES, options=options, policy=policy
        )
        self.pool.wait_ready(timeout_s=GET_S)

    def generate(self, prompts, options) -> list[list[int]]:
        return [list(sample.token_ids) for sample in self.pool.generate(prompts, options).samples]

    def push(self) -> None:
        self.pool.update_weights()


class Bench:
    """Both arms, and what each turn took."""

    def __init__(self, ray, folder: str) -> None:
        model = str(tiny_qwen.build(Path(folder, "model"), spread=0.2))
        self.ray, self.number = ray, 0
        self.source = ray.remote(num_cpus=0)(Source).remote()
        bare = BareArm(ray, model, self.source, folder)
        self.arms = {"bare": bare, "pool": PoolArm(model, self.source)}

    def pair(self, kind: str, number: int) -> dict[str, Spent]:
        """Both arms do the same steps, one after the other; the answers are the same."""
        names = list(self.arms) if number % 2 else list(reversed(self.arms))
        done = {name: self._turn(self.arms[name], WORK[kind], number) for name in names}
        assert done["bare"][1] == done["pool"][1], "the arms do not do the same"
        return {name: spent for name, (spent, _) in done.items()}

    def _turn(self, arm, work: Work, number: int) -> tuple[Spent, list[list[int]]]:
        spent, answers = Spent(), []
        for step in range(work.steps):
            first = 1 + 1000 * number + 100 * step
            prompts = [[20 + n % 100, 7, 90 + step, 11 + n] * 10 for n in range(work.prompts)]
            options = [sampling(work.tokens, first + n) for n in range(work.prompts)]
            began = time.perf_counter()
            answers += arm.generate(prompts, options)
            generated = time.perf_counter()
            self.ray.get(self.source.next_step.remote(), timeout=GET_S)
            arm.push()
            spent.generate.append(generated - began)
            spent.push.append(time.perf_counter() - generated)
        return spent, answers


def told(kind: str, pairs: list[dict[str, Spent]]) -> dict[str, object]:
    figures: dict[str, object] = {}
    for name, of in {
        "": lambda spent: spent.both,
        "generate_": lambda spent: sum(spent.generate),
    }.items():
        ratios = [of(pair["bare"]) / of(pair["pool"]) for pair in pairs]
        low, high = interval(ratios)
        figures[f"{kind}_{name}ratio"] = round(statistics.median(ratios), 3)
        figures[f"{kind}_{name}ratio_95"] = [round(low, 3), round(high, 3)]
    for arm in ("bare", "pool"):
        pushes = [push for pair in pairs for push in pair[arm].push]
        generated = [step for pair in pairs for step in pair[arm].generate]
        figures[f"{kind}_{arm}_step_s"] = round(statistics.median(generated), 3)
        figures[f"{kind}_{arm}_push_ms"] = round(1e3 * statistics.median(pushes), 1)
    return figures


def main(pairs: int, kinds: list[str]) -> int:
    figures: dict[str, object] = {"pairs": pairs}
    with local_ray("against-bare") as folder:
        import ray

        bench = Bench(ray, folder)
        for kind in kinds:
            done = []
            for number in range(pairs + 1):
                pair = bench.pair(kind, number)
                bare, pool = pair["bare"], pair["pool"]
                row = f"{kind} {number:3d}   bare {bare.both:6.2f} s   pool {pool.both:6.2f} s"
                row += f"   ratio {bare.both / pool.both:.3f}"
                row += f"   generation {sum(bare.generate) / sum(pool.generate):.3f}"
                print(row if number else f"{row}   (not counted)", flush=True)
                done += [pair] if number else []
            figures |= told(kind, done)
        bench.arms["pool"].pool.close()
    figures["load"] = round(os.getloadavg()[0], 1)
    print(json.dumps(figures), flush=True)
    return int(any(figures[f"{kind}_ratio"] < PROMISED[kind] for kind in kinds))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    options.add_argument("pairs", nargs="?", type=int, default=12, help="of turns (default: 12)")
    options.add_argument("--only", choices=tuple(WORK), action="append", help="one kind of steps")
    told_to = options.parse_args()
    sys.exit(main(told_to.pairs, told_to.only or list(WORK)))
