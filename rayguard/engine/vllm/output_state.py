"""Reading what a vLLM frontend has received of a request, and giving another frontend the same.

Both ways go through vLLM's own objects: its output processor's request states (0.32:
vllm/v1/engine/output_processor.py, logprobs.py) on the way out, ``EngineCoreOutput`` on the way in, so text,
stop strings and log-probabilities come out as if one engine had generated all of it.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

from rayguard.engine.generated import Generated, versions_since

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rayguard.engine.vllm.interfaces import (
        CompletionOutput,
        EngineCoreOutput,
        EngineCoreOutputs,
        EngineCoreRequest,
        FrontendRequest,
        Logprob,
        LogprobsLists,
        OutputProcessor,
        SamplingParams,
    )

_ALL = -1  # vLLM's "log-probabilities of the whole vocabulary"


def width_of(params: SamplingParams) -> int | None:
    """Return how many log-probabilities come with each token; None for more than is worth carrying."""
    if params.logprobs == _ALL or getattr(params, "logprob_token_ids", None):
        return None
    return 0 if params.logprobs is None else 1 + int(params.logprobs)


def read(state: FrontendRequest, start: int, params: SamplingParams) -> Generated:
    """Return what ``state`` (a frontend's request state) has received from token ``start`` on."""
    assert state.detokenizer is not None, "a pooling request has no tokens"
    tokens = array("i", state.detokenizer.output_token_ids[start:])
    rows = state.logprobs_processor.logprobs
    if rows is not None:
        rows = rows[start : start + len(tokens)]
    return _generated(tokens, rows, width_of(params) or 0, versions_since(state.weight_version_starts, start))


def of_completion(completion: CompletionOutput, params: SamplingParams) -> Generated:
    """Return what a finished ``CompletionOutput`` holds."""
    versions = tuple((span.version, span.start) for span in completion.weight_versions or ())
    tokens = array("i", completion.token_ids)
    return _generated(tokens, completion.logprobs, width_of(params) or 0, versions)


def _generated(
    tokens: array[int],
    rows: Sequence[Mapping[int, Logprob]] | None,
    width: int,
    versions: tuple[tuple[str, int], ...],
) -> Generated:
    if not width:
        return Generated(tokens=tokens, versions=versions)
    assert rows is not None, "as many as the request asked for"
    ids, logprobs, ranks = array("i"), array("f"), array("i")
    if width == 1:
        for token, row in zip(tokens, rows, strict=True):
            known = row[token]
            logprobs.append(known.logprob)
            ranks.append(known.rank)
        ids = tokens[:]
    else:
        for token, row in zip(tokens, rows, strict=True):
            best = sorted((known.rank, other) for other, known in row.items() if known.rank < width)
            if len(best) == width:  # the sampled token is as likely as one of the best, but not among them
                best = [(rank, other) for rank, other in best if other != token]
            ids.append(token)
            ids.extend(other for _, other in best)
            logprobs.append(row[token].logprob)
            logprobs.extend(row[other].logprob for _, other in best)
            ranks.append(row[token].rank)
    return Generated(tokens=tokens, width=width, ids=ids, logprobs=logprobs, ranks=ranks, versions=versions)


def of_output(output: EngineCoreOutput, version: str | None, width: int) -> Generated:
    """Return what one output of an engine's core brings, with ``width`` log-probabilities a token.

    The core sends as many as the request of its batch that asked for most.
    """
    tokens = array("i", output.new_token_ids)
    versions = ((version, 0),) if version is not None and len(tokens) else ()
    rows = output.new_logprobs
    if rows is None or not width or not len(tokens):
        return Generated(tokens=tokens, versions=versions)
    return Generated(
        tokens=tokens,
        width=width,
        ids=array("i", rows.logprob_token_ids[:, :width].ravel().tolist()),
        logprobs=array("f", rows.logprobs[:, :width].ravel().tolist()),
        ranks=array("i", rows.sampled_token_ranks.tolist()),
        versions=versions,
    )


def ending(params: SamplingParams, generated: Generated, room: int) -> tuple[str, int | None] | None:
    """Return (finish reason, stop reason) where ``generated`` is a whole answer, None where more must come.

    As vllm/v1/core/sched/utils.py::check_stop judges the last token; stop strings are the frontend's.
    ``room`` is how many tokens the engine's longest sequence leaves after the prompt.
    """
    if not len(generated):
        return None
    last, count = generated.tokens[-1], len(generated)
    if last == getattr(params, "eos_token_id", None):
        return "STOP", None
    if last in (params.stop_token_ids or ()):
        return "STOP", last
    limit = room if params.max_tokens is None else min(room, params.max_tokens)
    return ("LENGTH", None) if count >= limit else None


def give(
    processor: OutputProcessor,
    request_id: str,
    generated: Generated,
    end: tuple[str, int | None] | None = None,
) -> None:
    """Let a frontend's ``processor`` know ``generated`` of a request it has just taken, as from a core.

    ``end`` says that this is all of it (see ``client_teardown``).
    """
    starts = [start for _, start in generated.versions] or [0]
    names: list[str | None] = [version for version, _ in generated.versions] or [None]
    if starts[0] != 0:
        starts, names = [0, *starts], [None, *names]
    for version, (start, stop) in zip(names, pairwise([*starts, len(generated)]), strict=True):
        piece = generated.since(start).first(stop - start)
        last = stop == len(generated)
        processor.process_outputs([_output(request_id, piece, end if last else None)], weight_version=version)


def end_of(request_id: str, reason: str, why: str | None) -> EngineCoreOutput:
    """Return the end of a request that no core has ended."""
    return _output(request_id, Generated(), (reason, why))


def as_from_a_core(outputs: list[EngineCoreOutput]) -> EngineCoreOutputs:
    """Return ``outputs`` as a core would send them."""
    from vllm.v1.engine import EngineCoreOutputs as CoreOutputs  # noqa: PLC0415 - vLLM only where it runs

    made: EngineCoreOutputs = CoreOutputs(outputs=outputs)
    return made


def begin_afresh(processor: OutputProcessor, request: EngineCoreRequest) -> bool:
    """Reset what the frontend holds for a request; False when its caller already saw tokens of it."""
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - vLLM only where it runs
    from vllm.v1.engine.output_processor import RequestState  # noqa: PLC0415

    state = processor.request_states[request.request_id]
    if state.output_kind != RequestOutputKind.FINAL_ONLY:
        return False
    processor.request_states[request.request_id] = RequestState.from_new_request(
        tokenizer=processor.tokenizer,
        request=request,
        prompt=state.prompt,
        parent_req=state.parent_req,
        request_index=state.request_index,
        queue=state.queue,
        log_stats=processor.log_stats,
        stream_interval=processor.stream_interval,
    )
    return True


def _output(request_id: str, piece: Generated, end: tuple[str, str | int | None] | None) -> EngineCoreOutput:
    from vllm.v1.engine import EngineCoreOutput as CoreOutput  # noqa: PLC0415 - vLLM only where it runs
    from vllm.v1.engine import FinishReason  # noqa: PLC0415

    reason, stop = end or (None, None)
    output: EngineCoreOutput = CoreOutput(
        request_id=request_id,
        new_token_ids=list(piece.tokens),
        new_logprobs=_logprobs(piece) if piece.width else None,
        finish_reason=None if reason is None else FinishReason[reason],
        stop_reason=stop,
    )
    return output


def _logprobs(piece: Generated) -> LogprobsLists:
    import numpy as np  # noqa: PLC0415 - comes with vLLM
    from vllm.v1.outputs import LogprobsLists as Lists  # noqa: PLC0415

    shape = (len(piece), piece.width)
    lists: LogprobsLists = Lists(
        np.array(piece.ids, dtype=np.int32).reshape(shape),
        np.array(piece.logprobs, dtype=np.float32).reshape(shape),
        np.array(piece.ranks, dtype=np.int32),
        None,
    )
    return lists
