"""What a pool is asked for: prompts and sampling options, checked at the door.

Only what needs no model is checked here: types, ids, things that could not cross processes. Option names and
values, lengths and token ids are checked in the rollout actor (``rayguard.engine.vllm.request_checks``), by
the installed vLLM, before they reach an engine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rayguard.errors import RequestError

if TYPE_CHECKING:
    from rayguard.engine.generated import Generated

_PLAIN = (str, int, float, bool, type(None))
_MAX_DEPTH = 8
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1  # whole numbers that an engine can be sent
_TOKENS = "prompt_token_ids"
_TEXT = "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion to be generated: one of the ``n`` of a prompt.

    Invariant: ``id`` is ``group`` where n is 1, else ``group/index``; ``sampling["n"]`` is never set.
    """

    id: str
    group: str
    index: int = 0
    prompt: str | tuple[int, ...]
    sampling: Mapping[str, object] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """The same for the same question: an id that comes back with another one is a mistake."""
        asked = json.dumps([self.prompt, self.sampling], sort_keys=True, default=str)
        return hashlib.sha256(asked.encode(errors="surrogatepass")).hexdigest()[:32]

    @property
    def likeness(self) -> int:
        """Do as ``fingerprint`` within one process, at a tenth of the cost."""
        return hash((self.prompt, str(sorted(self.sampling.items()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request on its way to an actor, with what is there already."""

    request: Request
    prior: Generated | None = None
    cuts: tuple[int, ...] = ()  # where it was cut before, in tokens
    question: str = ""  # its fingerprint, where that is known: what the actor's token log says of it


def fan_out(group: str, prompt: object, sampling: Mapping[str, object]) -> list[Request]:
    """Return the requests for one prompt: ``n`` of them, each with a seed of its own where one is given.

    As vLLM does for ``n > 1``: child i gets ``seed + i``.

    Raises:
        RequestError: The prompt or an option can be used by no engine.
    """
    checked = check_prompt(group, prompt)
    options = dict(sampling)
    count = options.pop("n", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise RequestError(group, f"sampling option n must be a whole number from 1, got {count!r}")
    seed = options.get("seed")
    if count == 1:
        return [Request(id=group, group=group, prompt=checked, sampling=options)]
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise RequestError(group, f"sampling option seed must be a whole number, got {seed!r}")
    return [
        Request(
            id=f"{group}/{index}",
            group=group,
            index=index,
            prompt=checked,
            sampling=options if seed is None else {**options, "seed": seed + index},
        )
        for index in range(count)
    ]


def check_prompt(name: str, prompt: object) -> str | tuple[int, ...]:
    """Return the prompt as text or token ids; vLLM's ``{"prompt_token_ids": ...}`` is taken too."""
    if isinstance(prompt, Mapping):
        known = {_TOKENS, _TEXT} & prompt.keys()
        if len(known) != 1 or len(prompt) != 1:
            raise RequestError(
                name, f"a prompt given as a mapping needs exactly one of {_TOKENS!r} and {_TEXT!r}"
            )
        prompt = prompt[known.pop()]
    if hasattr(prompt, "tolist"):  # a tensor or an array of token ids
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise RequestError(name, f"a prompt is text or a sequence of token ids, got {type(prompt).__name__}")
    if not prompt:
        raise RequestError(name, "the prompt is empty")
    if isinstance(prompt, str):
        _check_value(name, "the prompt", prompt)
        return prompt
    return _token_ids(name, prompt)


def _token_ids(name: str, prompt: Sequence[Any]) -> tuple[int, ...]:
    for place, token in enumerate(prompt):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= _LARGEST:
            raise RequestError(name, f"token {place} of the prompt is {token!r}: token ids are 0 or more")
    return tuple(prompt)


def check_sampling(sampling: object) -> dict[str, object]:
    """Return the sampling options as plain values by vLLM's names; ``SamplingParams`` is taken too.

    Raises:
        RequestError: They are no mapping, or hold what cannot be sent to another process as it is.
    """
    if sampling is None:
        return {}
    if type(sampling).__name__ == "SamplingParams":
        sampling = _set_options(sampling)
    if not isinstance(sampling, Mapping):
        raise RequestError("", f"sampling is a mapping of vLLM's option names, got {type(sampling).__name__}")
    options: dict[str, object] = {}
    for name, value in sampling.items():
        if not isinstance(name, str):
            raise RequestError("", f"sampling option names are text, got {name!r}")
        options[name] = _plain(name, value, _MAX_DEPTH)
    return options


def _set_options(params: Any) -> dict[str, object]:
    """Return what was set on a ``SamplingParams``, by comparison with the defaults of its class."""
    import msgspec  # noqa: PLC0415 - comes with vLLM, as the object did

    plain = msgspec.to_builtins(params)  # leaves out what is as by default
    given = {field.name for field in msgspec.structs.fields(type(params)) if not field.name.startswith("_")}
    return {name: value for name, value in plain.items() if name in given and name not in _INTERNAL}


_INTERNAL = frozenset({"output_kind", "output_text_buffer_length", "skip_clone"})


def _plain(name: str, value: object, depth: int) -> object:
    if isinstance(value, _PLAIN):
        _check_value("", f"sampling option {name!r}", value, may_be_nan=name == "extra_args")
        return value
    if depth and isinstance(value, Mapping) and all(isinstance(key, _PLAIN) for key in value):
        return {key: _plain(name, inner, depth - 1) for key, inner in value.items()}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(name, inner, depth - 1) for inner in value]
    raise RequestError(
        "",
        f"sampling option {name!r} holds {type(value).__name__}: use plain numbers, text, lists and "
        "mappings, which can be sent to every engine and repeated on another one",
    )


def _check_value(request: str, what: str, value: object, *, may_be_nan: bool = False) -> None:
    """Refuse what has the right type, and can be sent to no engine all the same."""
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        raise RequestError(request, f"{what} is {value}: an engine's whole numbers have 64 bits")
    if isinstance(value, float) and math.isnan(value) and not may_be_nan:
        raise RequestError(request, f"{what} is not a number (NaN)")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RequestError(request, f"{what} is no text: {error}") from error
