"""Where trials happen: a Ray of their own, a weight source, models, and pools of real engines on the CPU.

The actors of those pools are ``rollouts``; what is done there is ``run``; watching a pool from inside is
``observer``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

import rayguard
from tests.benchmarks.trials.rollouts import RANK, WEIGHTS, adapters, engine_args, engine_of
from tests.engine.real import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.trials.rollouts import Rollout

REPOSITORY = Path(__file__).resolve().parents[3]
START_S = 900.0
MISFITS = ("misshapen", "missing", "foreign")  # what is wrong with a version that no engine can load


class Source:
    """The trainer's part: says which weights are current."""

    def __init__(self, folder: str) -> None:
        files = {name: Path(folder) / "models" / name / "model.safetensors" for name in WEIGHTS}
        self.bodies = {name: ray.put(file.read_bytes()) for name, file in files.items()}
        self.bodies.update({how: ray.put(misfit(files[WEIGHTS[0]], how)) for how in MISFITS})
        self.version = f"0-{WEIGHTS[0]}"

    def weights(self) -> tuple[str, Any]:
        return self.version, self.bodies[self.version.partition("-")[2]]

    def current(self) -> str:
        """Return their version alone."""
        return self.version

    def advance(self, name: str) -> str:
        """Make ``name`` current, under a version that is new."""
        self.version = f"{int(self.version.partition('-')[0]) + 1}-{name}"
        return self.version


def misfit(file: Path, how: str) -> bytes:
    """Return the tensors of ``file`` with one that no engine can take."""
    import torch
    from safetensors.torch import load_file, save

    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    tensor = tensors.pop(name)
    if how == "misshapen":
        tensors[name] = torch.zeros(tensor.shape[0] + 2, tensor.shape[1])
    if how == "foreign":
        tensors |= {name: tensor, f"{name}.of_another_model": tensor.clone()}
    return save(tensors)


class Cold:
    """Starts the same engine as vLLM does it: for comparison."""

    def __init__(self, folder: str) -> None:
        import vllm.v1.engine.async_llm  # noqa: F401 - no part of what is measured

        self.args = engine_args(Path(folder), "cold")

    async def start_s(self) -> float:
        """Return the seconds to the first token."""
        from vllm import SamplingParams

        began = time.monotonic()
        engine = await asyncio.to_thread(engine_of, self.args)
        async for _ in engine.generate(
            {"prompt_token_ids": [20, 7, 90, 11]}, SamplingParams(temperature=0.0, max_tokens=1), "first"
        ):
            took = time.monotonic() - began
        core = engine.engine_core.resources.engine_manager.processes[0]
        core.kill()
        core.join(10)
        engine.shutdown()
        return took


@ray.remote
def build_models(folder: str) -> None:
    """Write a model and its tokenizer for each of the weights, and two adapters."""
    from examples.grpo.text import sentences
    from rayguard.testing import tiny_qwen

    for seed, name in enumerate(WEIGHTS):
        texts = list(sentences(0, 2_000))
        tiny_qwen.build(Path(folder) / "models" / name, seed, texts=texts, spread=0.2)
    for seed, path in enumerate(adapters(Path(folder))):
        build_adapter(Path(path), Path(folder) / "models" / WEIGHTS[0], seed)


def build_adapter(path: Path, model: Path, seed: int) -> None:
    """Write a random LoRA adapter of all queries of ``model``, in the form of peft."""
    import torch
    from safetensors.torch import load_file, save_file

    dice, tensors = torch.Generator().manual_seed(seed), {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if name.endswith("q_proj.weight"):
            out, into = tensor.shape
            at = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, into, generator=dice)
            tensors[f"{at}.lora_B.weight"] = torch.randn(out, RANK, generator=dice) * 0.2
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    told = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (path / "adapter_config.json").write_text(json.dumps(told), encoding="utf-8")


@contextmanager
def own_ray(folder: Path) -> Iterator[None]:
    """Start a Ray on this machine for as long as the block runs, never joining another one."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    environment = {
        **ENVIRONMENT,
        "RAYGUARD_HOME": str(home(folder)),
        "TORCHDYNAMO_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": path,
    }
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": environment},
    )
    logging.getLogger("vllm").setLevel(logging.ERROR)  # imported here only to unpickle an engine's error
    try:
        yield
    finally:
        ray.shutdown()


def home(folder: Path) -> Path:
    """Return where the journal lies."""
    return folder / "rayguard"


@contextmanager
def a_pool(folder: Path, engines: int, kind: type[Rollout]) -> Iterator[rayguard.RolloutPool]:
    """Make a pool and end it; returns when all engines serve."""
    policy = rayguard.PoolPolicy(progress=False, spares=kind.SPARES)
    with rayguard.RolloutPool(
        kind, str(folder), engines=engines, options={"num_cpus": 0}, policy=policy
    ) as pool:
        pool.wait_ready(timeout_s=START_S)
        yield pool
