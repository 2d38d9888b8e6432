"""Who needs a launcher where several GPUs are visible, and who does not: most commands do not."""

from __future__ import annotations

import pytest

import rayguard

SHOWN = "CUDA_VISIBLE_DEVICES=0,1"
NEEDS = "place.no_launcher"


@pytest.fixture(autouse=True)
def scripts(tmp_path, monkeypatch):
    """Scripts of their own kinds, beside each other."""
    for name in ("CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "on_ray.py": "import ray\n\nray.init()\n",
        "engine.py": "from vllm import LLM\n\nLLM('m', tensor_parallel_size=2)\n",
        "tools.py": "import json\n",
        "grpo.py": "from trl import GRPOTrainer\n",
        "grpo_on_ray.py": "import ray\nfrom trl import GRPOTrainer\n",
    }.items():
        (tmp_path / name).write_text(text)


def needs_launcher(command):
    return NEEDS in {one.id for one in rayguard.preflight(command).findings}


@pytest.mark.parametrize(
    "command",
    [
        "python on_ray.py",
        "python on_ray.py --num_generations 8",
        "python grpo_on_ray.py",
        "python engine.py",
        "python tools.py",
        "python -m my.training",
        "python not_here.py",
        "swift rollout --model m --vllm_mode colocate",
        "swift deploy --model m",
        "swift infer --model m",
        "swift sft --model m",
        "swift rlhf --rlhf_type dpo --model m",
        "python -m swift.cli.rollout --model m",
        "trl vllm-serve --model m",
        "python -m trl.scripts.vllm_serve --model m",
        "vllm serve m",
        "trl grpo --model m",
        "ray job submit -- python on_ray.py",
    ],
)
def test_whoever_uses_the_gpus_otherwise_is_let_through(command):
    """Actors, engines, servers and models that are spread: `rayguard run` would refuse to start them."""
    assert not needs_launcher(f"{SHOWN} {command}")


@pytest.mark.parametrize(
    "command",
    [
        "python grpo.py",
        "python not_here.py --use_vllm",
        "swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode colocate",
        "swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode server --vllm_server_host h",
    ],
)
def test_a_trainer_that_needs_a_rank_for_each_is_told(command):
    """One GPU is no trouble, nor is a launcher."""
    assert needs_launcher(f"{SHOWN} {command}")
    assert not needs_launcher(f"CUDA_VISIBLE_DEVICES=0 {command}")
    assert not needs_launcher(
        f"{SHOWN} NPROC_PER_NODE=2 {command}" if "swift" in command else f"{SHOWN} torchrun {command[7:]}"
    )
