"""Requests whose input is a stream (vLLM 0.32: ``generate`` with an async generator of ``StreamingInput``).

Each is a session in the core: parts come one by one under one id, each is answered by itself, and a last
request, which is not ``resumable``, ends it. A dead core takes along what it was told. So the parts are kept
until something of the answer came: up to then another core can be told all of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from rayguard.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from rayguard.engine.vllm.interfaces import EngineCoreRequest, FrontendRequest

BROKEN = (
    "its input is a stream, and the engine that had begun to answer it is dead: what was said cannot be "
    "taken back. Begin it anew"
)
_REMEMBERED = 1024  # of those that were broken: a part may be on its way


@dataclass(slots=True)
class _Session:
    sent: list[EngineCoreRequest] = field(default_factory=list)
    unanswered: int = 0  # parts
    last_came: bool = False


class InputStreams:
    """The sessions of one frontend. On the frontend's thread.

    Invariant: a session is here from its first part until it ended, was aborted or was broken.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._broken: deque[str] = deque(maxlen=_REMEMBERED)

    def __contains__(self, name: object) -> bool:
        return name in self._sessions

    def is_part(self, request: EngineCoreRequest) -> bool:
        """Say whether ``request`` is a part of a stream, or its end."""
        name = request.request_id
        return bool(getattr(request, "resumable", False)) or name in self._sessions or name in self._broken

    def add(self, request: EngineCoreRequest) -> bool:
        """Note a part; False where its session is broken, and no core is to see it."""
        if request.request_id in self._broken:
            return False
        session = self._sessions.setdefault(request.request_id, _Session())
        session.sent.append(request)
        if getattr(request, "resumable", False):
            session.unanswered += 1
        else:
            session.last_came = True
        return True

    def waits(self, name: str) -> bool:
        """Say whether a part is not answered yet."""
        return name in self._sessions and self._sessions[name].unanswered > 0

    def answered(self, name: str) -> bool:
        """Note that a part was answered to its end; say whether another one is not."""
        session = self._sessions.get(name)
        if session is None:
            return False
        session.unanswered -= 1
        if session.unanswered <= 0 and session.last_came:
            self.forget(name)
        return self.waits(name)

    def forget(self, name: str) -> None:
        """End a session."""
        self._sessions.pop(name, None)

    def without(self, requests: Mapping[str, EngineCoreRequest]) -> list[tuple[str, EngineCoreRequest]]:
        """Return those of ``requests`` that are no streams."""
        return [(name, request) for name, request in requests.items() if name not in self._sessions]

    def accept(
        self,
        request: EngineCoreRequest,
        requests: MutableMapping[str, EngineCoreRequest],
        states: Mapping[str, FrontendRequest],
    ) -> EngineCoreRequest | None:
        """Book a part in ``requests`` while it is unanswered; return what the core gets of it."""
        name = request.request_id
        if not self.add(request):
            return None
        if name not in states:  # all is answered: only the core is to know
            self.forget(name)
        if self.waits(name):
            requests[name] = request
        return request

    def cut(
        self,
        requests: MutableMapping[str, EngineCoreRequest],
        states: Mapping[str, FrontendRequest],
        quarantined: Mapping[str, str],
    ) -> tuple[list[EngineCoreRequest], int]:
        """Say what becomes of all sessions as their core is dead; those that cannot go on are ended here.

        Returns what the next core is to be sent, and how many tokens are lost.
        """
        send: list[EngineCoreRequest] = []
        lost = 0
        for name, session in list(self._sessions.items()):
            state = states.get(name)
            detokenizer = None if state is None else state.detokenizer
            tokens = 0 if detokenizer is None else detokenizer.num_output_tokens()
            why = quarantined.get(name, BROKEN if tokens else "")
            if state is not None and not why:
                send += session.sent
                continue
            self.break_off(name, requests, state, why)
            lost += tokens
        return send, lost

    def break_off(
        self,
        name: str,
        requests: MutableMapping[str, EngineCoreRequest],
        state: FrontendRequest | None,
        why: str,
    ) -> None:
        """End a session with an error; no core is to see what may yet come of it."""
        self.forget(name)
        self._broken.append(name)
        requests.pop(name, None)
        if state is not None:  # else nobody waits for it any more
            end_stream(state, why)

    def refuse(
        self,
        requests: MutableMapping[str, EngineCoreRequest],
        states: Mapping[str, FrontendRequest],
        why: str,
    ) -> None:
        """End all sessions: none may go on with the next core."""
        self.cut(requests, states, dict.fromkeys(self._sessions, why))


def end_stream(state: FrontendRequest, why: str) -> None:
    """Let the caller of a stream have an error: an output that ends is to vLLM the end of one part."""
    from vllm.v1.engine.async_llm import InputStreamError  # noqa: PLC0415 - vLLM only where it runs

    cast("Any", state.queue).put(InputStreamError(RequestError(state.external_req_id, why)))
