"""What a healthy job prints: workers, engines and the driver of a GRPO run on Ray, interleaved. Seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator

_WORKERS = 6
_LINES = (
    "(WorkerDict pid={pid}, ip=10.0.0.{ip}) INFO:2026-11-02 {time},{ms} Before compute_log_prob, memory allocated (GB): {f:.3f}, memory reserved (GB): {g:.3f}",
    "(WorkerDict pid={pid}, ip=10.0.0.{ip}) step:{step} - global_seqlen/min:{n} - actor/entropy_loss:{f:.4f} - actor/kl_loss:{g:.5f} - critic/score/mean:{f:.3f}",
    "(vLLMHttpServer pid={pid}) INFO 11-02 {time} [loggers.py:236] Engine 000: Avg prompt throughput: {n}.{k} tokens/s, Avg generation throughput: {m}.{k} tokens/s, Running: {k} reqs, Waiting: 0 reqs, GPU KV cache usage: {k}.1%, Prefix cache hit rate: 41.{k}%",
    "(EngineCore_0 pid={pid}) INFO 11-02 {time} [core.py:210] Batch queue is enabled with size {k}",
    "(TaskRunner pid={pid}) Training Progress:  {k}%|{bar}| {step}/1000 [{time}<5:14:02, 11.{k}s/it]",
    "(TaskRunner pid={pid}) ('Unable to find a reward for 0 of {n} samples; format ok',)",
    "[rank{ip}]:[I1102 {time}.{ms}123 ProcessGroupNCCL.cpp:{n}] [PG ID 0 PG GUID 0(default_pg) Rank {ip}] ProcessGroupNCCL initialization options: size: 6, global rank: {ip}, TIMEOUT(ms): 600000, USE_HIGH_PRIORITY_STREAM: 0",
    "{{'loss': {f:.4f}, 'grad_norm': {g:.3f}, 'learning_rate': 1e-06, 'completion_length': {n}.0, 'reward': {f:.3f}, 'reward_std': {g:.3f}, 'kl': 0.00{k}, 'epoch': 0.{k}}}",
    "2026-11-02 {time},{ms}\tINFO worker.py:1942 -- Connected to Ray cluster.",
    "[2026-11-02 {time},{ms} I {pid} {pid}] (raylet) node_manager.cc:{n}: [state-dump] NumExecutedTasks: {m}",
    "(WorkerDict pid={pid}, ip=10.0.0.{ip}) Saving checkpoint to /ckpt/global_step_{step}/actor/model_world_size_6_rank_{ip}.pt",
    "(raylet, ip=10.0.0.{ip}) Spilled {n} MiB, {k} objects, write throughput {m} MiB/s. Set RAY_verbose_spill_logs=0 to disable this message.",
    "(WorkerDict pid={pid}, ip=10.0.0.{ip}) INFO 11-02 {time} [block_pool.py:316] Successfully reset prefix cache",
    '(vLLMHttpServer pid={pid}) INFO:     10.0.0.{ip}:{n} - "POST /v1/completions HTTP/1.1" 200 OK',
    "(RewardWorker pid={pid}) [prompt] Natalia sold {k} clips in April. How many did she sell? [response] She sold {n} clips. [score] 1.0",
    "(WorkerDict pid={pid}, ip=10.0.0.{ip}) /opt/venv/lib/python3.12/site-packages/torch/utils/checkpoint.py:86: UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
)


def healthy_lines(seed: int) -> Iterator[str]:
    """Yield lines without end."""
    rng = random.Random(seed)
    clock = 0
    while True:
        clock += 1
        k, step = rng.randrange(1, 99), clock // 40
        yield rng.choice(_LINES).format(
            pid=20_000 + 17 * rng.randrange(_WORKERS), ip=rng.randrange(1, _WORKERS + 1), k=k, step=step,
            time=f"{clock // 3600 % 24:02}:{clock // 60 % 60:02}:{clock % 60:02}", ms=rng.randrange(100, 999),
            f=rng.random(), g=rng.random(), n=rng.randrange(100, 4_000), m=rng.randrange(1_000, 9_000),
            bar="#" * (k // 10) + " " * (10 - k // 10),
        )  # fmt: skip
