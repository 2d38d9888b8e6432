"""The frontend's part: a request whose logits were no numbers ends with an error, not with what came of them.

What a worker saw comes with each output of its core (``worker``). The token of that step is taken out, the
request ends as one does that is quarantined (``finish_reason="error"``, the reason in ``stop_reason``), and
its core is told to go on without it. The tokens before it stay, as do all other requests. Who hears of it
besides is ``rayguard.engine.spoiled_requests``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.engine.spoiled_requests import SPOILED
from rayguard.engine.vllm.inflight import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from rayguard.engine.vllm.interfaces import (
        EngineCoreOutput,
        EngineCoreRequest,
        OutputProcessor,
        VllmConfig,
    )
    from rayguard.engine.vllm.kept.input_streams import InputStreams


def reason(token: int) -> str:
    """Return why a request ended at its ``token``, counted from 1."""
    return (
        f"{SPOILED}: the logits of its token {token} are NaN or infinite, and any token would be garbage "
        "(vLLM takes token 0). If that comes again, look for NaN in the weights"
    )


class NumericEnds:
    """Those of one frontend. On the frontend's thread.

    Args:
        running: The requests that are not answered yet, by vLLM's ids.
        streams: Those of them whose input is a stream.
        processor: The frontend's book.
    """

    def __init__(
        self,
        running: MutableMapping[str, EngineCoreRequest],
        streams: InputStreams,
        processor: OutputProcessor,
    ) -> None:
        self._told: Callable[[Sequence[str]], object] | None = None
        self._running, self._streams, self._processor = running, streams, processor
        self._inside: list[str] = []

    def of_core(self, config: VllmConfig, told: Callable[[Sequence[str]], object] | None) -> None:
        """Begin with a core that was built with ``config``.

        ``told`` is given the callers' ids of requests that were ended; None where none is to be.
        """
        # vLLM counts by row; with speculative decoding it would name the wrong request.
        self._told = told if getattr(config, "speculative_config", None) is None else None

    def put_in(self, outputs: list[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """Return ``outputs`` with the end of its request in the place of each that has bad numbers."""
        if self._told is None:
            return outputs
        bad = [one for one in outputs if getattr(one, "num_nans_in_logits", 0)]
        bad = [one for one in bad if one.request_id in self._running]
        if not bad:
            return outputs
        names = [name_of(self._running[one.request_id]) for one in bad]
        broken = [one for one in bad if not self._ends(one)]
        self._told(names)
        return [one for one in outputs if not any(one is other for other in broken)]

    def _ends(self, output: EngineCoreOutput) -> bool:
        """Make ``output`` the end of its request; False for a stream, which ends past it."""
        from vllm.v1.engine import FinishReason  # noqa: PLC0415 - vLLM only where it runs

        name = output.request_id
        state = self._processor.request_states.get(name)
        detokenizer = None if state is None else state.detokenizer
        why = reason(1 if detokenizer is None else detokenizer.num_output_tokens() + 1)
        stream = name in self._streams
        if stream or output.finish_reason is None:
            self._inside.append(name)
        if stream:
            self._streams.break_off(name, self._running, state, why)
            return False
        output.new_token_ids, output.new_logprobs = [], None
        output.finish_reason, output.stop_reason = FinishReason.ERROR, why
        if hasattr(output, "new_sampling_mask"):
            output.new_sampling_mask = None
        return True

    def inside(self) -> list[str]:
        """Return the requests that their core has yet to be told of, once."""
        inside, self._inside = self._inside, []
        return inside
