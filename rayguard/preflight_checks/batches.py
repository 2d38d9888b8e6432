"""Batches that do not divide over ranks, mini-batches and micro-batches; corrected together."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rayguard.batching.plan import largest_divisor
from rayguard.preflight_checks.finding import PreflightFinding, error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.dialects.job_settings import JobSettings

_NEAR = 100  # multiples that are tried below and above


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes that fit each other; None where nobody asked for one."""

    prompts: int | None
    mini_batch: int | None
    micro_update: int | None
    micro_experience: int | None
    prompts_sampled: int | None


def check(job: JobSettings) -> Iterator[PreflightFinding]:
    """Yield what does not divide, with the nearest numbers that do."""
    if job.world is None:
        if job.prompts and job.mini_batch and job.prompts % job.mini_batch:
            yield _mini_batch(job, _corrected(job, 1, 1))
        return
    yield from _tensor_parallel(job, job.world)
    ranks = max(1, job.world // job.sequence_parallel)
    fitting = _corrected(job, job.world, ranks)
    yield from _over_ranks(job, job.world, fitting)
    if job.prompts and job.mini_batch and job.prompts % job.mini_batch:
        yield _mini_batch(job, fitting)
    yield from _of_a_rank(job, ranks, fitting)


def _over_ranks(job: JobSettings, world: int, fitting: _Sizes) -> Iterator[PreflightFinding]:
    for name in ("prompts", "prompts_sampled"):
        size = getattr(job, name)
        if size is not None and size % world:
            yield error(
                f"batch.{name}_over_ranks",
                f"{job.name(name)}={size} does not divide over {_gpus(job)}: the first step fails (EasyR1: "
                f"'only support equal chunk. Got size of DataProto {size} and chunk {world}')",
                **_changed(job, fitting),
            )


def _tensor_parallel(job: JobSettings, world: int) -> Iterator[PreflightFinding]:
    if world % job.tensor_parallel:
        yield error(
            "parallel.tensor_over_ranks",
            f"{job.name('tensor_parallel')}={job.tensor_parallel} does not divide {_gpus(job)}: engines of "
            "this size do not fill them",
            tensor_parallel=largest_divisor(world, job.tensor_parallel),
        )


def _mini_batch(job: JobSettings, fitting: _Sizes) -> PreflightFinding:
    return error(
        "batch.mini_batch",
        f"{job.name('prompts')}={job.prompts} does not divide into mini-batches of "
        f"{job.name('mini_batch')}={job.mini_batch} prompts",
        **_changed(job, fitting),
    )


def _of_a_rank(job: JobSettings, ranks: int, fitting: _Sizes) -> Iterator[PreflightFinding]:
    """Yield what does not divide within a mini-batch, or within a step's rows."""
    if job.mini_batch is not None:
        rows = job.mini_batch * job.answers
        if rows % ranks:
            yield error(
                "batch.mini_batch_over_ranks",
                f"a mini-batch of {job.name('mini_batch')}={job.mini_batch} prompts x {job.answers} answers "
                f"= {rows} rows does not divide over {ranks} ranks",
                **_changed(job, fitting),
            )
        elif job.micro_update and rows // ranks % job.micro_update:
            yield error(
                "batch.micro_update",
                f"each rank has {rows // ranks} rows of a mini-batch, which do not divide into "
                f"micro-batches of {job.name('micro_update')}={job.micro_update}",
                **_changed(job, fitting),
            )
    if job.prompts is not None and job.micro_experience:
        rows = job.prompts * job.answers
        if rows % job.micro_experience:
            yield error(
                "batch.micro_experience",
                f"{rows} rows ({job.name('prompts')} x answers) do not divide into micro-batches of "
                f"{job.name('micro_experience')}={job.micro_experience}",
                **_changed(job, fitting),
            )


def _corrected(job: JobSettings, world: int, ranks: int) -> _Sizes:
    """Return the sizes nearest to those of ``job`` that all fit together."""
    step = ranks // math.gcd(ranks, job.answers)  # a mini-batch's prompts come in these
    minis = [None] if job.mini_batch is None else _near(job.mini_batch, step)
    return min((_around(job, mini, world, ranks) for mini in minis), key=lambda sizes: _change(job, sizes))


def _around(job: JobSettings, mini: int | None, world: int, ranks: int) -> _Sizes:
    """Return what fits to a mini-batch of ``mini`` prompts."""
    prompts = None if job.prompts is None else _multiple(job.prompts, math.lcm(world, mini or 1))
    update, experience = job.micro_update, job.micro_experience
    if mini is not None and update:
        update = largest_divisor(mini * job.answers // ranks, update)
    if prompts is not None and experience:
        experience = largest_divisor(prompts * job.answers, experience)
    sampled = None if job.prompts_sampled is None else _multiple(job.prompts_sampled, world)
    return _Sizes(prompts, mini, update, experience, sampled)


def _change(job: JobSettings, sizes: _Sizes) -> float:
    """Return how much is changed, in proportion: what is trained counts full, how it is cut up a fifth."""

    def part(name: str) -> float:
        before, after = getattr(job, name), getattr(sizes, name)
        return abs(after / before - 1) if before and after else 0.0

    cut = part("micro_update") + part("micro_experience")
    return round(part("mini_batch") + part("prompts") + 0.2 * cut, 9)  # of two alike, the smaller comes first


def _near(size: int, step: int) -> range:
    """Return the multiples of ``step`` from the half of ``size`` to its double; the nearest 200 at most."""
    first = max(1, max(size // 2, size - _NEAR * step) // step) * step
    return range(first, max(first, min(size * 2, size + _NEAR * step)) + 1, step)


def _multiple(size: int, step: int) -> int:
    """Return the multiple of ``step`` that is nearest, 0 left out."""
    return max(1, (size + (step - 1) // 2) // step) * step


def _changed(job: JobSettings, fitting: _Sizes) -> dict[str, object]:
    """Return all that changes: one size alone would not fit the others."""
    found = {one.name: getattr(fitting, one.name) for one in fields(fitting)}
    return {name: value for name, value in found.items() if value != getattr(job, name)}


def _gpus(job: JobSettings) -> str:
    return f"{job.world} GPUs" + (f" ({job.gpus} on each of {job.nodes} nodes)" if job.nodes > 1 else "")
