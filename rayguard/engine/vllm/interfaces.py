# ruff: noqa: D102 - vLLM says what its methods do
"""What rayguard uses of vLLM's objects, by the names that vLLM 0.32 gives them. Types alone.

vLLM itself is imported only where it runs; whoever gets one of its objects names it by a type from here, and
mypy objects when it asks for more than stands here. What is looked up with ``getattr`` is not always there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence
    from concurrent.futures import Future
    from enum import Enum
    from queue import Queue

    import numpy as np
    import torch
    from numpy.typing import NDArray


class SamplingParams(Protocol):
    """How one request is sampled (vllm/sampling_params.py)."""

    seed: int | None
    temperature: float
    max_tokens: int | None
    min_tokens: int
    logprobs: int | None
    stop_token_ids: Sequence[int] | None
    output_kind: object
    extra_args: Mapping[str, object] | None

    def clone(self) -> SamplingParams: ...


class EngineCoreRequest(Protocol):
    """One request on its way to a core (vllm/v1/engine/__init__.py)."""

    request_id: str
    external_req_id: str | None
    prompt_token_ids: list[int] | None
    sampling_params: SamplingParams | None
    lora_request: object


class LogprobsLists(Protocol):
    """Log-probabilities of some tokens, a row for each (vllm/v1/outputs.py)."""

    logprob_token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    sampled_token_ranks: NDArray[np.int32]


class EngineCoreOutput(Protocol):
    """What one engine step brought for one request."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: LogprobsLists | None
    finish_reason: Enum | None
    stop_reason: int | str | None


class EngineCoreOutputs(Protocol):
    """What one engine step brought."""

    outputs: list[EngineCoreOutput]
    weight_version: str | None


class Detokenizer(Protocol):
    """The tokens that a frontend received for a request, and their text."""

    output_token_ids: list[int]

    def num_output_tokens(self) -> int: ...


class Logprob(Protocol):
    """One entry of a position's log-probabilities."""

    logprob: float
    rank: int


class LogprobsProcessor(Protocol):
    """The log-probabilities that a frontend received for a request."""

    logprobs: Sequence[Mapping[int, Logprob]] | None


class FrontendRequest(Protocol):
    """What a frontend knows of one request (vllm/v1/engine/output_processor.py)."""

    external_req_id: str
    prompt: str | None
    prompt_len: int
    parent_req: object
    request_index: int
    queue: object
    output_kind: object
    detokenizer: Detokenizer | None
    logprobs_processor: LogprobsProcessor
    weight_version_starts: list[tuple[str, int]]


class RequestQueue(Protocol):
    """Where a caller of an ``AsyncLLM`` waits for its outputs."""

    def put(self, output: object) -> None: ...


class OutputProcessor(Protocol):
    """A frontend's book of the requests that it waits for."""

    request_states: dict[str, FrontendRequest]
    tokenizer: object
    log_stats: bool
    stream_interval: int

    def abort_requests(self, request_ids: list[str], *, internal: bool) -> list[str]: ...
    def process_outputs(self, outputs: list[EngineCoreOutput], *, weight_version: str | None) -> object: ...


class VersionSpan(Protocol):
    """From which token on an answer was made with which weights."""

    version: str
    start: int


class CompletionOutput(Protocol):
    """One finished answer, as callers get it (vllm/outputs.py)."""

    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, Logprob]] | None
    weight_versions: Sequence[VersionSpan] | None


class ModelConfig(Protocol):
    """Of a ``VllmConfig``."""

    model: str
    max_model_len: int
    max_logprobs: int
    runner_type: str
    is_encoder_decoder: bool
    quantization: object

    def get_vocab_size(self) -> int: ...


class SchedulerConfig(Protocol):
    """Of a ``VllmConfig``."""

    max_num_seqs: int


class ParallelConfig(Protocol):
    """Of a ``VllmConfig``."""

    world_size: int
    data_parallel_size: int


class VllmConfig(Protocol):
    """What an engine was built with (vllm/config/vllm.py)."""

    model_config: ModelConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig


class ClientResources(Protocol):
    """What a client must let go of (vllm/v1/engine/core_client.py: ``BackgroundResources``)."""

    engine_manager: object

    def __call__(self) -> None: ...


class MessageEncoder(Protocol):
    """What a client sends goes through it (vllm/v1/serial_utils.py: ``MsgpackEncoder``)."""

    def encode(self, message: object, /) -> Sequence[object]: ...


class EngineCoreClient(Protocol):
    """A frontend's way to its core: an ``LLM`` uses the plain methods, an ``AsyncLLM`` those that end so."""

    vllm_config: VllmConfig
    resources: ClientResources
    outputs_queue: Queue[EngineCoreOutputs | Exception]  # an asyncio.Queue under an AsyncLLM
    utility_results: MutableMapping[int, Future[object]]
    encoder: MessageEncoder
    core_engines: Sequence[bytes]  # by data-parallel rank

    def shutdown(self, timeout: float | None = None) -> None: ...
    def get_output(self) -> EngineCoreOutputs: ...
    def add_request(self, request: EngineCoreRequest) -> None: ...
    def abort_requests(self, request_ids: list[str]) -> None: ...
    def reset_prefix_cache(self) -> object: ...
    def set_weight_version(self, weight_version: str) -> None: ...
    def collective_rpc(
        self, method: str, timeout: float | None, args: tuple[object, ...], kwargs: None
    ) -> list[Mapping[str, object]]: ...

    async def call_utility_all_async(self, method: str, *args: object) -> list[Any]: ...  # one for each rank
    async def get_output_async(self) -> EngineCoreOutputs: ...
    async def add_request_async(self, request: EngineCoreRequest) -> None: ...
    async def abort_requests_async(self, request_ids: list[str]) -> None: ...
    async def pause_scheduler_async(self, *, mode: str, clear_cache: bool) -> None: ...
    async def resume_scheduler_async(self) -> None: ...
    async def reset_prefix_cache_async(self, *, reset_running_requests: bool) -> object: ...
    async def set_weight_version_async(self, weight_version: str) -> None: ...
    async def collective_rpc_async(
        self, method: str, timeout: float | None, args: tuple[object, ...], kwargs: None
    ) -> list[Mapping[str, object]]: ...


class LLMEngine(Protocol):
    """What has a core's client and a book of requests: an ``AsyncLLM``, or an ``LLM``'s."""

    vllm_config: VllmConfig
    engine_core: EngineCoreClient
    output_processor: OutputProcessor

    def _run_output_handler(self) -> None: ...  # of an ``AsyncLLM`` alone


class LLM(Protocol):
    """The synchronous frontend."""

    llm_engine: LLMEngine


class ModelRunner(Protocol):
    """What runs a model inside a worker."""

    def get_model(self) -> torch.nn.Module: ...


class EngineWorker(Protocol):
    """One worker of an engine (vllm/v1/worker/worker_base.py)."""

    vllm_config: VllmConfig
    model_config: ModelConfig
    model_runner: ModelRunner
    rayguard_receipt: Mapping[str, object]  # ours: what the last push left here
