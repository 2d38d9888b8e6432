"""Memory by arithmetic: a GPU and its weights, optimizer and cache; the host and what is offloaded to it.

Estimates: activations and fragmentation are not in them, so what does not fit here does not fit at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.preflight_checks.finding import PreflightFinding, error, note, warning
from rayguard.preflight_checks.machine import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.dialects.job_settings import JobSettings
    from rayguard.preflight_checks.machine import MachineFacts
    from rayguard.preflight_checks.model import ModelFacts

_MASTER, _ENGINE, _REFERENCE = 4, 2, 2  # bytes of a parameter: trained in 32 bits, served in 16
_HALF = frozenset({"bf16", "bfloat16", "fp16", "float16", "half"})
_RAY_KILLS_AT = 0.95  # of the host's memory
_STORE_SHARE = 0.3  # of it is Ray's object store, unless told otherwise
_TENSORS = 14  # of 8 bytes a token that a GRPO step puts into the store (measured with EasyR1)


def check(job: JobSettings, model: ModelFacts | None, machine: MachineFacts) -> Iterator[PreflightFinding]:
    """Yield what does not fit, and what could not be checked for want of a number."""
    host = job.host_bytes or machine.memory
    if model is not None and model.parameters and job.world is not None:
        yield from _device(job, model, job.gpu_bytes or machine.gpu_bytes)
        yield from _host(job, model, host)
    elif job.model is not None and model is None:
        yield note(
            "memory.unknown_model",
            f"the files of {job.model} are not on this machine: its memory, context and heads were not "
            "checked",
        )
    yield from _store(job, host)


def _device(job: JobSettings, model: ModelFacts, gpu: int) -> Iterator[PreflightFinding]:
    assert job.world is not None
    if not gpu:
        yield note(
            "memory.no_gpu",
            "no GPU is seen here: whether the model fits was not checked (say how large one is: "
            "--gpu-memory 80GiB)",
        )
        return
    shards = job.world if job.full_shard else 1
    master, gradient, adam = _trained(job)
    resident = gradient + (0 if job.offload_params else master) + (0 if job.offload_optimizer else adam)
    train = model.parameters * resident // shards
    share = 0.9 if job.gpu_memory_utilization is None else job.gpu_memory_utilization
    weights = model.parameters * _ENGINE // job.tensor_parallel
    cache = int(gpu * share) - weights
    length = job.max_model_len or job.tokens or model.context
    needed = model.kv_bytes * length // min(job.tensor_parallel, max(1, model.kv_heads))
    if cache < needed:
        what = (
            "its weights do not fit"
            if cache < 0
            else f"{_gib(cache)} are left for {_gib(needed)} of one request"
        )
        yield error(
            "memory.engine",
            f"the engine gets {_gib(int(gpu * share))} of a GPU "
            f"({job.name('gpu_memory_utilization')}={share}) and holds {_gib(weights)} of weights: {what}",
            **_more_for_engine(job, gpu, weights + needed),
        )
    if train > gpu:
        yield error(
            "memory.trainer",
            f"parameters, gradients and optimizer are {_gib(train)} on each of {job.world} GPUs of "
            f"{_gib(gpu)}",
            **{name: True for name in ("offload_optimizer", "offload_params") if not getattr(job, name)},
        )
    elif job.colocated is not False and job.gpu_memory_utilization and train + gpu * share > gpu:
        yield warning(
            "memory.colocated",
            f"trainer ({_gib(train)}) and engine ({_gib(int(gpu * share))}) share a GPU of {_gib(gpu)}: it "
            "fits only while the engine sleeps",
        )


def _trained(job: JobSettings) -> tuple[int, int, int]:
    """Return the bytes of a parameter, of its gradient and of its two moments; an adapter's are little."""
    master = _MASTER // 2 if job.train_dtype in _HALF else _MASTER
    return (master, 0, 0) if job.adapter else (master, master, 2 * master)


def _more_for_engine(job: JobSettings, gpu: int, needed: int) -> dict[str, object]:
    if needed <= gpu * 0.9:
        return {"gpu_memory_utilization": round(needed / gpu + 0.05, 2)}
    return (
        {"tensor_parallel": job.tensor_parallel * 2}
        if job.world and job.world % (job.tensor_parallel * 2) == 0
        else {}
    )


def _host(job: JobSettings, model: ModelFacts, memory: int) -> Iterator[PreflightFinding]:
    if not memory:
        return
    master, _, adam = _trained(job)
    offloaded = (master if job.offload_params else 0) + (adam if job.offload_optimizer else 0)
    copies = 1 if job.full_shard else (job.gpus or 1)
    reference = _REFERENCE if job.reference_offload else 0
    used = model.parameters * (offloaded + reference) * copies // (job.nodes if job.full_shard else 1)
    store = _a_step(job) // job.nodes
    if used + store > memory * _RAY_KILLS_AT:
        off = {name: False for name in ("offload_params", "offload_optimizer") if getattr(job, name)}
        yield error(
            "memory.host",
            f"what is offloaded ({_gib(used)}) and a step's objects ({_gib(store)}) are more than the "
            f"{_gib(int(memory * _RAY_KILLS_AT))} at which Ray kills workers of a node with {_gib(memory)}",
            **off,
        )


def _store(job: JobSettings, memory: int) -> Iterator[PreflightFinding]:
    step = _a_step(job) // job.nodes
    if memory and step > memory * _STORE_SHARE:
        rows = (job.prompts or 1) * job.answers
        yield warning(
            "memory.object_store",
            f"a step of {rows} rows of {job.tokens} tokens puts about {_gib(step)} into the object store of "
            f"each node, which has {_gib(int(memory * _STORE_SHARE))}: it spills to disk, and slows down",
        )


def _a_step(job: JobSettings) -> int:
    if job.prompts is None or job.tokens is None:
        return 0
    return job.prompts * job.answers * job.tokens * 8 * _TENSORS


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
