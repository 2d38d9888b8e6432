"""Calls at the door of a core: what it could not read is refused, and who is inside is known.

vLLM books a call before it encodes it, and leaves it in its book when that fails: it then looks like one that
is never answered. And what the core cannot decode, or puts into each of its outputs, ends the engine later.
Everything that a client sends goes through its ``encoder``, so that is where the door stands, one a core.

Whether a call is made again with the next engine is decided in ``rayguard.recovery.machine``.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING

from rayguard.engine.protocol import Progress
from rayguard.errors import RequestError
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rayguard.engine.vllm.interfaces import EngineCoreClient, MessageEncoder

# What only reads, or leaves a new core as it is: a second one does no harm.
_READS = frozenset(
    {
        "compute_weight_checksums",
        "get_kv_cache_group_metadata",
        "get_supported_tasks",
        "get_weight_version",
        "is_scheduler_paused",
        "is_sleeping",
        "list_loras",
        "reset_encoder_cache",
        "reset_mm_cache",
        "reset_prefix_cache",
    }
)
_ENDING = frozenset({"pause_scheduler", "sleep"})  # end what runs, where their mode says "abort"
_ENDING_S = 5.0  # so long after their answer, ends that they made may still wait to be handed out
_CALL_PARTS = 4  # client, id, method, arguments (vllm/v1/engine/core_client.py: call_utility)
_READ_BACK_BYTES = 1 << 20  # larger ones are weights, made of bytes


def only_reads(name: str) -> bool:
    """Say whether a call to an engine's client changes nothing."""
    return name.removesuffix("_async") in _READS


class CallDoor:
    """In the place of one core's encoder; knows which calls are inside. For the core's client's threads.

    ``turns`` says how much has come back from the core so far.
    """

    @classmethod
    def of(cls, core: EngineCoreClient, turns: Callable[[], int]) -> CallDoor | None:
        """Put a door before ``core``; None where nothing is encoded, as its core is in this process."""
        return None if getattr(core, "encoder", None) is None else cls(core, turns)

    def __init__(self, core: EngineCoreClient, turns: Callable[[], int]) -> None:
        self._core = core
        self._encoder: MessageEncoder = core.encoder
        self._turns = turns
        self._inside: dict[int, str] = {}
        self._ended: dict[str, int] = {}  # calls that were answered, and how much had come back by then
        self._ending: set[int] = set()  # calls of the owner that end what runs
        self._ends_until = (0.0, 0)  # monotonic and turns: what they ended is handed out by then
        core.encoder = self

    def __getattr__(self, name: str) -> object:
        """Pass everything else through to vLLM's encoder."""
        return getattr(self._encoder, name)

    def encode(self, message: object) -> Sequence[object]:
        """Encode a message; the booking of a call that cannot be sent is undone.

        Raises:
            RequestError: A call has an argument that the core could not read.
            Exception: What vLLM's encoder raises.
        """
        if not (isinstance(message, tuple) and len(message) == _CALL_PARTS and isinstance(message[2], str)):
            return self._encoder.encode(message)
        _, number, method, arguments = message
        try:
            frames = self._encoder.encode(message)
            _check(method, arguments, frames)
        except Exception:
            self._core.utility_results.pop(number, None)
            raise
        if _ends(method, arguments):
            self._ending.add(number)
        self._enter(number, named(method, arguments))
        return frames

    def _enter(self, number: int, name: str) -> None:
        for gone in [number for number in self._inside if number not in self._core.utility_results]:
            del self._inside[gone]
        self._inside[number] = name
        answer = self._core.utility_results.get(number)
        if answer is not None:
            answer.add_done_callback(lambda _: self._answered(number, name))

    def _answered(self, number: int, name: str) -> None:
        self._ended[name] = self._turns()
        if number in self._ending:
            # A core sends the ends before its answer: they are among what waits here, or in hand already.
            waiting = getattr(self._core, "outputs_queue", None)
            handed_out = self._turns() + 1 + (0 if waiting is None else waiting.qsize())
            self._ends_until = (time.monotonic() + _ENDING_S, handed_out)
            self._ending.discard(number)

    def _waiting(self) -> dict[int, str]:
        """Return the calls that are not answered yet, by vLLM's number for each."""
        waiting = {number for number, answer in list(self._core.utility_results.items()) if not answer.done()}
        return {number: name for number, name in list(self._inside.items()) if number in waiting}

    def ends_requests(self) -> bool:
        """Say whether the owner has the core end what runs, now or a moment ago."""
        moment, turns = self._ends_until
        just_now = time.monotonic() < moment and self._turns() <= turns
        return just_now or not self._ending.isdisjoint(self._waiting())

    def progress(self) -> Progress:
        """Return which calls are inside, or were until just now."""
        inside = self._waiting()
        return Progress(
            inside=inside,
            calls=tuple(call for call in inside.values() if not only_reads(call)),
            reads=tuple(call for call in inside.values() if only_reads(call)),
            just_ended=self._just_ended(),
        )

    def _just_ended(self) -> tuple[str, ...]:
        """Return the calls after whose answer next to nothing came: a death may still be of their making."""
        turns = self._turns()
        self._ended = {name: at for name, at in list(self._ended.items()) if turns - at <= 1}
        return tuple(self._ended)


def _ends(method: str, arguments: Sequence[object]) -> bool:
    """Say whether a call ends what runs: vLLM's "keep" and "wait" do not (core.py: pause_scheduler)."""
    mode = next((given for given in arguments if isinstance(given, str)), "abort")
    return method.removesuffix("_async") in _ENDING and mode == "abort"


def named(method: str, arguments: Sequence[object]) -> str:
    """Return a call as people are told of it."""
    method = method.removesuffix("_async")
    inner = arguments[0] if method == "collective_rpc" and arguments else None
    return method if inner is None else f"{method}({getattr(inner, '__name__', inner)!r})"


def _check(method: str, arguments: Sequence[object], frames: Sequence[object]) -> None:
    """Refuse what ends the core, or its client, after it was sent."""
    wrong = _misfit(method, arguments)
    if wrong:
        raise RequestError("", f"the call {method} was not made: {wrong}")
    if len(frames) == 1 and len(frames[0]) < _READ_BACK_BYTES:  # type: ignore[arg-type]
        from msgspec.msgpack import Decoder  # noqa: PLC0415 - comes with vLLM

        try:
            Decoder(ext_hook=_known_extension).decode(frames[0])  # type: ignore[arg-type]
        except Exception as unread:
            raise RequestError(
                "", f"the call {method} was not made: the engine could not read its arguments: {unread}"
            ) from unread


def _known_extension(code: int, data: memoryview) -> object:
    """Take what vLLM's decoder takes (vllm/v1/serial_utils.py: CUSTOM_TYPE_*), without unpickling it."""
    if code not in {1, 2, 3}:
        raise ValueError(f"extension type code {code} is not supported")
    return data


def _misfit(method: str, arguments: Sequence[object]) -> str:
    """Name an argument that must be text and is not: vLLM puts it into outputs, which are then unreadable."""
    with harmless("door"):  # in a vLLM that we do not know, it stands open
        from vllm.v1.engine.core import EngineCoreProc  # noqa: PLC0415 - vLLM only where it runs

        function = getattr(EngineCoreProc, method, None)
        wanted = list(inspect.signature(function).parameters.values())[1:] if callable(function) else []
        for parameter, value in zip(wanted, arguments, strict=False):
            if (parameter.annotation is str or parameter.annotation == "str") and not isinstance(value, str):
                return f"its {parameter.name} must be text, got {value!r}"
    return ""
