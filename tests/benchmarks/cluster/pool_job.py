"""A job on ``rayguard.RolloutPool`` with real vLLM engines: generates and pushes weights until its time is over.

Prints a line of JSON for each step, and one at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import ray

import rayguard
from rayguard.testing import tiny_qwen

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
_READY_S = 600.0
_PROMPTS = [[20 + n, 7, 90 + 3 * n, 11] * 5 for n in range(16)]
_SAMPLING = {"temperature": 1.0, "max_tokens": 64, "ignore_eos": True, "logprobs": 0}


class Rollout(rayguard.RolloutMixin):
    """All that a user writes."""

    def __init__(self, model: str, current: str) -> None:
        self.model, self.current = model, Path(current)
        self.start_engine(weights=self.weights)

    def weights(self) -> rayguard.Weights:
        version = self.current.read_text()
        return rayguard.Weights(version, path=str(self.current.parent / "model" / "model.safetensors"))

    def build_engine(self, settings: rayguard.EngineSettings) -> object:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        chosen = settings.as_kwargs(
            model=self.model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            kv_cache_memory_bytes=64 << 20,
            generation_config="vllm",
        )
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**chosen))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--address", required=True)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--engines", type=int, default=1)
    chosen = options.parse_args()
    # Where its module lies: a worker imports it from there.
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    environment = {"env_vars": {**_ENVIRONMENT, "PYTHONPATH": path}, "rayguard": {}}
    ray.init(address=chosen.address, runtime_env=environment, log_to_driver=False)
    folder = Path(tempfile.mkdtemp(prefix="rayguard-pool-"))
    model = str(tiny_qwen.build(folder / "model", spread=0.2))
    current = folder / "current"
    current.write_text("0")
    asked = {"engines": chosen.engines, "options": {"num_cpus": 0}}
    with rayguard.RolloutPool(
        Rollout, model, str(current), policy=rayguard.PoolPolicy(progress=False), **asked
    ) as pool:
        pool.wait_ready(timeout_s=_READY_S)
        print(json.dumps({"ready": chosen.engines}), flush=True)
        until, step = time.monotonic() + chosen.seconds, 0
        while time.monotonic() < until:
            batch = pool.generate(_PROMPTS, _SAMPLING)
            step += 1
            print(json.dumps({"step": step, "samples": len(batch.samples)}), flush=True)
            if step % 10 == 0:
                current.write_text(str(step))
                pool.update_weights()
    print(json.dumps({"done": step}), flush=True)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
