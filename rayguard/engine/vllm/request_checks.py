"""The door of a vLLM engine: sampling options are checked before a request comes near it.

vLLM takes wrong types (``max_tokens=16.5``, ``structured_outputs={...}``) without a word; they then end the
engine's core, or make it drop the request in silence. Lengths, token ids and values are checked by vLLM's own
frontend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.errors import RequestError
from rayguard.options import meant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.engine.vllm.interfaces import SamplingParams as Params

_OURS = frozenset({"output_kind", "n", "skip_clone", "output_text_buffer_length", "stream_interval"})


def sampling_params(request_id: str, options: Mapping[str, object]) -> Params:
    """Return vLLM's ``SamplingParams`` of one completion, delivered whole at its end.

    Raises:
        RequestError: An option is unknown, or has a type or value that vLLM cannot use.
    """
    import msgspec  # noqa: PLC0415 - comes with vLLM
    from vllm import SamplingParams  # noqa: PLC0415 - vLLM only where it runs
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    names = [name for name in SamplingParams.__struct_fields__ if not name.startswith("_")]
    for name in options:
        if name not in names or name in _OURS:
            known = [other for other in names if other not in _OURS]
            unknown = f"the installed vLLM knows no sampling option {name!r}{meant(name, known)}"
            raise RequestError(request_id, unknown)
    try:
        params: Params = msgspec.convert(dict(options), SamplingParams)
    except (msgspec.ValidationError, ValueError, TypeError) as refused:
        raise RequestError(request_id, f"sampling options cannot be used: {refused}") from refused
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return params
