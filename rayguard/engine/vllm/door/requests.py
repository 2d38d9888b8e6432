"""Requests at the door of a core: what cannot be sent to it, not be read there, or spoils others, is refused.

vLLM's frontend checks values, not whether it can encode them; and what the core's input thread cannot decode
ends that thread, and with it the engine. So each request is encoded and decoded here, with vLLM's own encoder
and decoder, before anything is booked for it: 8 µs, and 0.4 ms with a prompt of 8,000 tokens. Images and
embeddings are left out: they may be large, and are made by vLLM itself; their numbers are looked at in
``finite``.

Option names and types of a pool's requests are checked before: ``rayguard.engine.vllm.request_checks``. What
makes the installed vLLM answer wrongly is in ``known_wrong``.
"""

from __future__ import annotations

import copy
import reprlib
import threading
from typing import TYPE_CHECKING

from rayguard.engine.vllm.door.meetings import Meetings
from rayguard.engine.vllm.inflight import name_of
from rayguard.errors import RequestError
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from rayguard.engine.vllm.interfaces import EngineCoreClient, EngineCoreRequest

_HEAVY = ("mm_features", "prompt_embeds")
_SAYS_NOTHING = {"request_id": "", "arrival_time": 0.0}  # all else may be None


class RequestDoor:
    """Says which requests a core cannot be sent, or must not be. For all threads.

    ``inside``: the ids of the requests that the core has.
    """

    def __init__(self, inside: Collection[str] = ()) -> None:
        self.meetings = Meetings(inside)
        self._there_and_back: Callable[[object], None] | None = None
        self._lock = threading.Lock()  # vLLM's encoder is for one thread

    def refusal(self, request: EngineCoreRequest, core: EngineCoreClient) -> Exception | None:
        """Return the error of a request that ``core`` cannot or must not be sent; None of one that it may."""
        if getattr(core, "encoder", None) is not None:  # else it runs in this process: nothing is encoded
            sent = copy.copy(request)
            for name in _HEAVY:
                setattr(sent, name, None)
            failed = self._fails(sent)
            if failed is not None:
                return refused(request, self._field(sent) or f"it cannot be sent to the engine: {failed}")
        reason = self.meetings.refusal(request, core)
        return refused(request, reason) if reason else None

    def let_in(self, request: EngineCoreRequest, core: EngineCoreClient) -> None:
        """Do nothing to a request that ``core`` can be sent.

        Raises:
            VLLMValidationError: It cannot.
        """
        error = self.refusal(request, core)
        if error is not None:
            raise error

    def own_fault(self, request: EngineCoreRequest, core: EngineCoreClient) -> Exception | None:
        """Return the error of a request that ``core`` did not take; None where it was not its own fault."""
        encoder = getattr(core, "encoder", None)
        if encoder is None or getattr(core.resources, "engine_dead", False):
            return None
        try:
            with self._lock:
                encoder.encode(request)
        except Exception as failed:  # noqa: BLE001 - it would have ended this request only
            return refused(request, f"it cannot be sent to the engine: {failed}")
        return None

    def _fails(self, request: EngineCoreRequest) -> Exception | None:
        """Take ``request`` to bytes and back, as on its way to the core; return what that raises."""
        try:
            with self._lock:
                if self._there_and_back is None:
                    self._there_and_back = _codec(request)
                self._there_and_back(request)
        except Exception as failed:  # noqa: BLE001 - whatever is raised there would end the engine
            return failed
        return None

    def _field(self, request: EngineCoreRequest) -> str:
        """Name the field that cannot be sent, and say why."""
        for name, value, alone in _one_by_one(request):
            failed = self._fails(alone)
            if failed is not None:
                return f"{name}={reprlib.repr(value)} cannot be sent to the engine: {failed}"
        return ""


def refused(request: EngineCoreRequest, reason: str) -> Exception:
    """Return the error of a refused request: vLLM's own for such, which its frontend hands on as it is."""
    try:
        from vllm.exceptions import VLLMValidationError  # noqa: PLC0415 - vLLM only where it runs
    except ImportError:
        return RequestError(name_of(request), reason)
    error: Exception = VLLMValidationError(f"request {name_of(request)!r}: {reason}")
    return error


def _codec(request: EngineCoreRequest) -> Callable[[object], None]:
    """Return what takes a request to bytes and back; in a vLLM that we do not know, the door stands open."""
    with harmless("door"):
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder  # noqa: PLC0415 - vLLM only where it runs

        encoder, decoder = MsgpackEncoder(), MsgpackDecoder(type(request))
        decoder.decode(encoder.encode(_blank(request)))
        return lambda request: decoder.decode(encoder.encode(request))
    return lambda _: None


def _one_by_one(request: EngineCoreRequest) -> Iterator[tuple[str, object, EngineCoreRequest]]:
    """Give each sampling option and each field of a request with its value, and a request of that alone."""
    blank, params = _blank(request), request.sampling_params
    for name in _names(params):
        option = type(params)()  # type: ignore[misc]
        setattr(option, name, getattr(params, name))
        alone = copy.copy(blank)
        alone.sampling_params = option
        yield name, getattr(params, name), alone
    for name in _names(request):
        if name != "sampling_params":
            alone = copy.copy(blank)
            setattr(alone, name, getattr(request, name))
            yield name, getattr(request, name), alone


def _blank(request: EngineCoreRequest) -> EngineCoreRequest:
    """Return a request that says nothing."""
    from msgspec.structs import fields  # noqa: PLC0415 - comes with vLLM

    needed = [field.name for field in fields(type(request)) if field.required]  # type: ignore[arg-type]
    return type(request)(**{name: _SAYS_NOTHING.get(name) for name in needed})


def _names(struct: object) -> tuple[str, ...]:
    return tuple(getattr(struct, "__struct_fields__", ()))
