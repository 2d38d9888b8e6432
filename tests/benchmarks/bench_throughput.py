"""What the guard costs while nothing happens: tokens per second with it and without, side by side.

Two identical vLLM engines in one process, one of them guarded, take turns on the same batch; the ratio is
taken pair by pair. Last line JSON. ``python -m tests.benchmarks.bench_throughput --pairs 15``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.engine.real import ENVIRONMENT, Owner


def run(pairs: int) -> dict[str, float]:
    from vllm import SamplingParams

    from examples.grpo.model import build
    from rayguard.engine.settings import EngineSettings

    folder = Path(tempfile.mkdtemp(prefix="rayguard-throughput-"))
    os.environ["RAYGUARD_HOME"] = str(folder / "home")
    guarded = Owner(str(build(folder / "model", 0)), "LLM")
    guarded.start_engine()
    bare = guarded.build_engine(EngineSettings())
    prompts = [{"prompt_token_ids": [20 + i, 7, 90, 11] * 5} for i in range(32)]
    params = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)

    def with_guard() -> None:
        guarded.with_engine(lambda engine: engine.generate(prompts, params, use_tqdm=False))

    def without() -> None:
        bare.generate(prompts, params, use_tqdm=False)

    def timed(call) -> float:
        began = time.perf_counter()
        call()
        return len(prompts) * 120 / (time.perf_counter() - began)

    for warm in (with_guard, without, with_guard, without):
        warm()
    ratios, speeds = [], []
    for pair in range(pairs):
        order = (with_guard, without) if pair % 2 else (without, with_guard)
        speed = {call.__name__: timed(call) for call in order}
        speeds.append(speed["with_guard"])
        ratios.append(speed["with_guard"] / speed["without"])
        print(f"pair {pair:3d}  guarded/bare {ratios[-1]:.3f}", flush=True)
    guarded.stop_engine()
    bare.llm_engine.engine_core.shutdown()
    return {
        "pairs": pairs,
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "tokens_per_s_median": round(statistics.median(speeds)),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=15)
    os.environ.update(ENVIRONMENT)
    print(json.dumps(run(options.parse_args().pairs)))
