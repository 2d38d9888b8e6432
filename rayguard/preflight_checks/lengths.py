"""Lengths: prompt and answer against the engine's limits and the model's context; what vLLM refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.batching.plan import largest_divisor
from rayguard.preflight_checks.finding import PreflightFinding, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.dialects.job_settings import JobSettings
    from rayguard.preflight_checks.model import ModelFacts


def check(job: JobSettings, model: ModelFacts | None) -> Iterator[PreflightFinding]:
    """Yield what is too long for something."""
    yield from _engine(job)
    if model is not None:
        yield from _model(job, model)


def _engine(job: JobSettings) -> Iterator[PreflightFinding]:
    length, limit, batched = job.tokens, job.max_model_len, job.max_num_batched_tokens
    if length is not None and limit is not None and length > limit:
        yield error(
            "length.engine",
            f"{_sum(job)} tokens are longer than {job.name('max_model_len')}={limit}: longer prompts are "
            "refused, and answers end early",
            max_model_len=length,
        )
    needed = limit or length
    raised = job.framework == "verl"  # by itself, to what is needed
    if (
        batched is not None
        and needed is not None
        and batched < needed
        and not (job.chunked_prefill or raised)
    ):
        yield error(
            "length.batched_tokens",
            f"{job.name('max_num_batched_tokens')}={batched} is less than {needed} tokens of one request, "
            "and without chunked prefill a prompt must fit into one batch: the engine does not start",
            max_num_batched_tokens=needed,
        )
    if job.chunked_prefill and job.framework == "EasyR1":
        yield warning(
            "engine.chunked_prefill",
            f"{job.name('chunked_prefill')}=true: EasyR1 has it off, since schedulers of vLLM before 0.11 "
            "fail an assertion with it under load (prefill_seq_groups)",
            chunked_prefill=False,
            **({"max_num_batched_tokens": max(batched or 0, needed)} if needed else {}),
        )


def _model(job: JobSettings, model: ModelFacts) -> Iterator[PreflightFinding]:
    length = job.max_model_len or job.tokens
    if length is not None and model.context and length > model.context:
        settings: dict[str, object] = {"max_model_len": model.context} if job.max_model_len else {}
        if job.tokens is not None and job.tokens > model.context and job.prompt_tokens is not None:
            over = job.tokens - model.context
            settings |= {"prompt_tokens": job.prompt_tokens - over} if job.prompt_tokens > over else {}
        yield error(
            "length.context",
            f"{length} tokens ({job.name('max_model_len') if job.max_model_len else _sum(job)}) are more "
            f"than the {model.context} that {model.name} was made for",
            **settings,
        )
    for what, heads in (("attention", model.heads), ("key-value", model.kv_heads)):
        fits = heads % job.tensor_parallel == 0 or (what == "key-value" and job.tensor_parallel % heads == 0)
        if heads and not fits:
            yield error(
                "parallel.heads",
                f"{heads} {what} heads of {model.name} do not divide by "
                f"{job.name('tensor_parallel')}={job.tensor_parallel}: vLLM refuses to start",
                tensor_parallel=largest_divisor(heads, job.tensor_parallel),
            )
            return
    if model.vocabulary and model.tokenizer_size > model.vocabulary:
        yield error(
            "model.tokenizer",
            f"the tokenizer of {model.tokenizer or model.name} has {model.tokenizer_size} tokens, and the "
            f"embedding of {model.name} {model.vocabulary} rows: an id beyond them is a "
            "device-side assert (resize the embedding, or use the model's tokenizer)",
        )


def _sum(job: JobSettings) -> str:
    return (
        f"{job.name('prompt_tokens')}={job.prompt_tokens} + "
        f"{job.name('response_tokens')}={job.response_tokens} = {job.tokens}"
    )
