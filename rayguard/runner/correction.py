"""Which settings avoid a failure, by their plain names: from its diagnosis and what the job is set to. Pure.

The mildest come first. What a framework calls them, and whether it has them, is ``rayguard.dialects``; which
one is tried when is ``machine``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayguard.batching.plan import largest_divisor
from rayguard.engine.settings import SAFE_SETTINGS, EngineSettings
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.preflight_checks import batches
from rayguard.preflight_checks.finding import Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rayguard.dialects.job_settings import JobSettings
    from rayguard.faults.diagnosis import Diagnosis
    from rayguard.preflight_checks.finding import PreflightFinding

_PLAIN = {"enable_chunked_prefill": "chunked_prefill"}  # where vLLM's word is not ours
_CHUNKS = re.compile(r"Got size of DataProto (\d{1,9}) and chunk (\d{1,6})")
_TWO_THREADS = frozenset({"vllm.scheduler.prefill_while_decoding", "vllm.scheduler.concurrent_use"})
_NO_LAUNCHER = frozenset({"torch.launcher.env_missing", "torch.launcher.no_group"})
_LEAST_SHARE, _MOST_SHARE, _SHARE_STEP = 0.1, 0.9, 0.1  # of a GPU's memory, for the engine
# What preflight finds of a kind: the beginning of its ids.
_FINDINGS = {
    Kind.BATCH_INDIVISIBLE: ("batch.", "parallel."),
    Kind.CONFIG_INVALID: ("length.", "engine.", "parallel."),
    Kind.KV_CACHE_TOO_SMALL: ("memory.engine",),
    Kind.ENGINE_INIT_FAILED: ("length.", "memory.engine", "engine.", "parallel."),
    Kind.HOST_OOM: ("memory.host",),
    Kind.CUDA_OOM: ("memory.",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Settings, by plain names, that are known to avoid one failure."""

    name: str
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What is known of a job when it failed: its settings now, and what preflight says of them."""

    settings: JobSettings
    findings: Sequence[PreflightFinding] = ()
    gpus: int = 0  # that one process of it sees; 0: not known


def corrections(diagnosis: Diagnosis, job: JobFacts) -> tuple[Correction, ...]:
    """Return what may be changed for ``diagnosis``, the mildest first; empty where no setting helps."""
    found: list[Correction] = []
    for one in (one for look in _LOOKS for one in look(diagnosis, job)):
        if all(one.name != other.name and one.settings != other.settings for other in found):
            found.append(one)
    return tuple(found)


def _own_engine(diagnosis: Diagnosis, job: JobFacts) -> Iterator[Correction]:
    """Yield what ms-swift needs where the trainer and its sampler step one engine at a time."""
    said = any("async_generate" in line for line in (*diagnosis.evidence, diagnosis.cause))
    asked = said if diagnosis.kind is Kind.CONFIG_INVALID else diagnosis.signature in _TWO_THREADS
    if asked and job.settings.async_generate:
        yield Correction(name="vllm_mode_server", settings={"vllm_mode": "server"})


def _launcher(diagnosis: Diagnosis, job: JobFacts) -> Iterator[Correction]:
    """Yield a launcher where several ranks were meant and one process was started."""
    one_process = job.settings.launcher in ("python", None) and (job.settings.gpus or job.gpus) > 1
    asserts = diagnosis.kind is Kind.CUDA_DEVICE_ASSERT and one_process
    if diagnosis.signature in _NO_LAUNCHER or asserts:
        yield Correction(name="launcher", settings={"launcher": "accelerate"})


def _batch(diagnosis: Diagnosis, job: JobFacts) -> Iterator[Correction]:
    """Yield sizes that divide, over as many ranks as the failure names."""
    if diagnosis.kind is not Kind.BATCH_INDIVISIBLE:
        return
    found = _CHUNKS.search("\n".join((diagnosis.cause, *diagnosis.evidence)))
    settings, nodes = job.settings, max(1, job.settings.nodes)
    if found is not None and int(found[2]) and int(found[2]) % nodes == 0:
        settings = replace(settings, gpus=int(found[2]) // nodes)
        if int(found[1]) == settings.prompts or settings.prompts is None:
            settings = replace(settings, prompts=int(found[1]))
    yield from _of_findings(diagnosis, tuple(batches.check(settings)))


def _cures(diagnosis: Diagnosis, job: JobFacts) -> Iterator[Correction]:
    """Yield the safe settings that the catalog knows for it."""
    for cure in diagnosis.cures:
        if cure in SAFE_SETTINGS:
            yield Correction(name=cure, settings=safe_setting(cure, job.settings))


def safe_setting(name: str, job: JobSettings) -> dict[str, object]:
    """Return what a safe setting of ``rayguard.engine.settings`` changes for a job, by plain names."""
    own = {
        "max_model_len": job.max_model_len or job.tokens,
        "max_num_batched_tokens": job.max_num_batched_tokens,
        "gpu_memory_utilization": job.gpu_memory_utilization,
    }
    changed = EngineSettings(applied=(name,)).overrides(own)
    return {_PLAIN.get(key, key): value for key, value in changed.items() if own.get(key) != value}


def _device_memory(diagnosis: Diagnosis, job: JobFacts) -> Iterator[Correction]:
    """Yield what needs less of a GPU's memory and trains the same: smaller pieces, a smaller engine."""
    if diagnosis.kind is not Kind.CUDA_OOM:
        return
    now = job.settings
    less: dict[str, object] = {}
    for name in ("micro_update", "micro_experience"):
        size = getattr(now, name)
        if size is not None and size > 1:
            less[name] = largest_divisor(size, size // 2)
    if now.gpu_memory_utilization and now.colocated is not False and diagnosis.scope is not Scope.ENGINE:
        less["gpu_memory_utilization"] = max(_LEAST_SHARE, round(now.gpu_memory_utilization - _SHARE_STEP, 3))
    if less:
        yield Correction(name="less_device_memory", settings=less)
    yield Correction(name="fewer_sequences", settings=safe_setting("fewer_sequences", now))
    if now.reference_offload is not None or now.offload_params or now.offload_optimizer:
        yield Correction(name="offload", settings={"offload_params": True, "offload_optimizer": True})


def _cache(diagnosis: Diagnosis, job: JobFacts) -> Iterator[Correction]:
    """Yield more memory for an engine whose cache is too small for one request."""
    share = job.settings.gpu_memory_utilization
    if diagnosis.kind is Kind.KV_CACHE_TOO_SMALL and share and share < _MOST_SHARE:
        more = min(_MOST_SHARE, round(share + _SHARE_STEP, 3))
        yield Correction(name="more_cache", settings={"gpu_memory_utilization": more})


def _host_memory(diagnosis: Diagnosis, job: JobFacts) -> Iterator[Correction]:
    """Yield what keeps off the host's memory, where its GPUs have room for it as far as is known."""
    now = job.settings
    names = [
        name for name in ("offload_params", "offload_optimizer", "reference_offload") if getattr(now, name)
    ]
    too_tight = any(one.id == "memory.trainer" for one in job.findings)
    if diagnosis.kind is Kind.HOST_OOM and names and not too_tight:
        yield Correction(name="no_offload", settings=dict.fromkeys(names, False))


def _found(diagnosis: Diagnosis, job: JobFacts) -> Iterator[Correction]:
    """Yield what preflight corrects of the same kind."""
    yield from _of_findings(diagnosis, job.findings)


def _of_findings(diagnosis: Diagnosis, findings: Sequence[PreflightFinding]) -> Iterator[Correction]:
    begins = _FINDINGS.get(diagnosis.kind, ())
    for one in findings:
        if one.level is Level.ERROR and one.settings and begins and one.id.startswith(begins):
            yield Correction(name=one.id, settings=one.settings)


_LOOKS: tuple[Callable[[Diagnosis, JobFacts], Iterator[Correction]], ...] = (
    _own_engine,
    _launcher,
    _batch,
    _cures,
    _device_memory,
    _cache,
    _host_memory,
    _found,
)
