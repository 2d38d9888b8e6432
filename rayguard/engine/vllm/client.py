"""A stand-in for the engine-core client of vLLM that outlives the core: what its two kinds share.

vLLM's frontend (``AsyncLLM``, ``LLM``) talks to its core through one object, ``engine_core``, and holds
everything a caller waits for: the tokens received, their text, log-probabilities, stop-string state and
the caller's queue. This stand-in takes that object's place. When the core dies it reports the fault, waits
for the next core, sends it ``prompt + tokens so far`` of every unanswered request (``continuation``), and
the frontend never notices: same ``generate`` call, same stream, nothing twice.

Written against vllm/v1/engine/core_client.py (0.32): ``get_output(_async)``, ``add_request(_async)``,
``abort_requests(_async)``, ``utility_results``, ``outputs_queue``; everything else is passed through.
The two kinds are ``sync_client`` and ``async_client``. What does *not* stand here: building cores
(``engine``) and deciding (``rayguard.engine.supervision.supervisor``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayguard.engine.continuation import PLAIN, Exact, continued, spent, why_not
from rayguard.engine.protocol import Carried, Progress, Verdicts
from rayguard.engine.vllm import output_state
from rayguard.engine.vllm.door.core_calls import CoreCalls
from rayguard.engine.vllm.door.requests import RequestDoor
from rayguard.engine.vllm.inflight import InFlight
from rayguard.engine.vllm.kept.condition import NOTED, Call, EngineCondition, noting
from rayguard.engine.vllm.kept.input_streams import InputStreams
from rayguard.engine.vllm.numbers.ends import NumericEnds
from rayguard.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from rayguard.engine.protocol import Report
    from rayguard.engine.vllm.interfaces import (
        EngineCoreClient,
        EngineCoreOutput,
        EngineCoreOutputs,
        EngineCoreRequest,
        OutputProcessor,
        RequestQueue,
        SamplingParams,
    )


PUT_DOWN_S = 5.0  # for what the frontend has in hand: milliseconds, unless somebody steps it by hand


class _Resources:
    """vLLM's ``resources`` of the current core, but never dead while a new core is on its way."""

    def __init__(self, client: HealingClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> object:
        return getattr(self._client.core.resources, name)

    @property
    def engine_dead(self) -> bool:
        return self._client.given_up


class HealingClient(CoreCalls):
    """What both clients share: the book of unanswered requests and what a new core is sent.

    Invariant: an id is in ``_requests`` from the moment it was handed in until its last output was handed
    out or it was aborted; so every request is answered exactly once, whatever the number of cores.
    """

    exact: Exact = PLAIN  # what the core that is sent to continues as if nothing had happened

    def __init__(
        self, core: EngineCoreClient, processor: OutputProcessor, report: Report, patience_s: float
    ) -> None:
        super().__init__(core)
        self.patience_s = patience_s  # a recovery always ends sooner; this only bounds a bug in it
        self.given_up = False
        self.tokens = 0
        self.logprobs = False  # some caller asked for them: their first computation takes a core seconds
        self.processor = processor  # the frontend's output processor: tokens so far by request id
        self.inflight = InFlight(processor)
        self.streams = InputStreams()
        self.kept = EngineCondition()  # of its owner's making, also of the cores to come
        self.weight_version = ""  # of the engine now, for what was begun elsewhere
        self._report = report
        self._requests: dict[str, EngineCoreRequest] = {}
        self.numeric = NumericEnds(self._requests, self.streams, processor)
        self._door = RequestDoor(self._requests)
        self.meetings = self._door.meetings
        self._held: deque[str] = deque()  # suspects that wait for their turn
        self._suspect: str | None = None
        # Held while a request is booked and while a new core takes over: a request is either in the book
        # that the new core is sent, or goes to the new core itself; never neither.
        self._taking_over = threading.Condition()
        # Outputs were handed out and the frontend may still be at them: its books are not yet complete, and
        # a new core that was sent what they say would make those tokens a second time.
        self._in_hand = False
        self._refused: Exception | None = None  # what ran is answered with it
        self._ready: list[EngineCoreOutput] = []  # of our own: quarantined requests, ends that were lost
        self.resources = _Resources(self)

    def __getattr__(self, name: str) -> object:
        """Pass everything else through to the current core."""
        if name == "core":  # unpickled or half-built: no core to ask
            raise AttributeError(name)
        found: Any = self.passed_on(name)
        return noting(name, found, self._note) if name.removesuffix("_async") in NOTED else found

    def _note(self, call: Call, answer: object) -> None:
        self.meetings.noted(call, answer)
        self.kept = self.kept.after(call, answer)

    def progress(self) -> Progress:
        """Return what came out of all cores so far."""
        held = tuple(self._held)
        running = tuple(r for r in list(self._requests) if r not in held)
        calls = Progress() if self._calls is None else self._calls.progress()
        return replace(calls, turns=self.turns, tokens=self.tokens, running=running, held=held)

    def _received(self, outputs: EngineCoreOutputs) -> bool:
        """Book what came out; return whether a suspect's turn came to its end."""
        self.turns += 1
        ended, longest, came = False, 0, 0
        outputs.outputs = self.numeric.put_in(self._unasked_ends.without(outputs.outputs, self._requests))
        for output in outputs.outputs:
            count = len(output.new_token_ids)
            came += count
            longest = max(longest, count)
            if output.finish_reason is not None:
                request = self._requests.pop(output.request_id, None)
                if request is not None:
                    self.inflight.answered(request, output, outputs.weight_version)
                    if self.streams.answered(output.request_id):
                        self._requests[output.request_id] = request
                ended = ended or output.request_id == self._suspect
        self.tokens += came
        self.inflight.came(longest, came)
        return ended

    def _undo(self, request: EngineCoreRequest) -> list[str]:
        """Undo what was booked for a request that could not be sent, also in the frontend's own book.

        Returns those that the core may have: itself, and other completions of the same question.
        """
        booked = [request.request_id] if request.request_id in self._requests else []
        state = self.processor.request_states.get(request.request_id)
        parent = getattr(getattr(state, "parent_req", None), "request_id", None)
        gone = self.processor.abort_requests([parent or request.request_id], internal=True)
        self._forget({request.request_id, *gone})
        return [*booked, *(name for name in gone if name != request.request_id)]

    def _accepted(self, request: EngineCoreRequest) -> EngineCoreRequest | None:
        """Book a request that comes in; return it as the core must get it: after what is there already.

        Raises:
            WeightsError: The engine has not the weights that it must have.
        """
        if refusal := self.own_calls.changes.asked(time.monotonic()):
            self.processor.abort_requests([request.request_id], internal=True)
            raise WeightsError(refusal)
        if self.streams.is_part(request):
            return self.streams.accept(request, self._requests, self.processor.request_states)
        self._requests[request.request_id] = request
        params: SamplingParams | None = getattr(request, "sampling_params", None)
        self.logprobs = self.logprobs or getattr(params, "logprobs", None) is not None
        self.inflight.began(request)
        prior = self.inflight.prior_of(request, self.weight_version)
        if prior is None or params is None or self._tokens_of(request.request_id) is None:
            return request
        if reason := why_not(request, self.exact):
            self.inflight.afresh(request, reason)
            return request
        room = self._room_for(request)
        end = output_state.ending(params, prior, room)
        output_state.give(self.processor, request.request_id, prior, end)
        self.inflight.cut(request, len(prior), self.exact)
        tokens = self._tokens_of(request.request_id)
        if tokens is None:  # it was a whole answer, or there was a stop string in it
            self._requests.pop(request.request_id, None)
            return None
        return continued(request, tokens, self.exact)

    def _room_for(self, request: EngineCoreRequest) -> int:
        model = getattr(getattr(self.core, "vllm_config", None), "model_config", None)
        return (getattr(model, "max_model_len", None) or 1 << 30) - len(request.prompt_token_ids or ())

    def _forget(self, request_ids: Collection[str]) -> list[EngineCoreRequest]:
        """Forget requests; return what is to be sent now: it may have been the turn of one of them."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)
            self.streams.forget(request_id)
            self.inflight.aborted(request_id)
            with contextlib.suppress(ValueError):
                self._held.remove(request_id)
        return self._next_suspect() if self._suspect in request_ids else []

    def _next_suspect(self) -> list[EngineCoreRequest]:
        """Return the request of the suspect whose turn it is now; at most one runs at a time."""
        self._suspect = None
        while self._held:
            request_id = self._held.popleft()
            request, tokens = self._requests.get(request_id), self._tokens_of(request_id)
            if request is not None and tokens is not None:
                self._suspect = request_id
                return [continued(request, tokens, self.exact)]
        return []

    def _tokens_of(self, request_id: str) -> list[int] | None:
        """Return the tokens the frontend received for a request; None when it waits for it no more."""
        state = self.processor.request_states.get(request_id)
        if state is None:
            return None
        return [] if state.detokenizer is None else list(state.detokenizer.output_token_ids)

    def _plan(self, verdicts: Verdicts) -> tuple[list[EngineCoreRequest], Carried]:
        """Return what the new core must be sent, and what that saves and loses."""
        refusal = self.own_calls.changes.refusal
        return ([], self._refuse_all(WeightsError(refusal))) if refusal else self._carry_on(verdicts)

    def _carry_on(self, verdicts: Verdicts) -> tuple[list[EngineCoreRequest], Carried]:
        send: list[EngineCoreRequest] = []
        saved = 0
        afresh: dict[str, str] = {}
        self._not_again = verdicts.calls
        self._held, self._suspect = deque(s for s in verdicts.suspects if s not in self.streams), None
        parts, lost = self.streams.cut(self._requests, self.processor.request_states, verdicts.quarantined)
        send.extend(parts)
        for request_id, request in self.streams.without(self._requests):
            tokens = self._tokens_of(request_id)
            if tokens is None:
                self._requests.pop(request_id)
            elif request_id in verdicts.quarantined:
                self._end(request_id, "ERROR", verdicts.quarantined[request_id])
            elif reason := self._why_afresh(request, tokens, verdicts):
                lost += len(tokens)
                afresh[request_id] = reason
                self.inflight.afresh(request, reason)
                if output_state.begin_afresh(self.processor, request):
                    send.append(request)
                else:  # what was streamed cannot be taken back: its caller gets an error and may ask again
                    self._end(request_id, "ERROR", "interrupted; it cannot be continued exactly")
            elif tokens and spent(request, tokens):
                saved += len(tokens)
                self._end(request_id, "LENGTH", None)
            else:
                saved += len(tokens)
                self.inflight.cut(request, len(tokens), self.exact)
                if request_id not in verdicts.suspects:
                    send.append(continued(request, tokens, self.exact))
        send.extend(self._next_suspect())
        return send, Carried(
            requests=len(self._requests), tokens_saved=saved, tokens_lost=lost, afresh=afresh
        )

    def _why_afresh(self, request: EngineCoreRequest, tokens: list[int], verdicts: Verdicts) -> str:
        kind = getattr(self.processor.request_states[request.request_id], "output_kind", None)
        unseen = getattr(kind, "name", "") == "FINAL_ONLY"  # what was streamed cannot be taken back
        return (why_not(request, self.exact) or (verdicts.doubt if unseen else "")) if tokens else ""

    def _refuse_all(self, error: Exception) -> Carried:
        """Answer whatever runs with ``error``: the new core has other weights."""
        lost = 0
        self._held, self._suspect, self._refused = deque(), None, error if self._requests else None
        self.streams.refuse(self._requests, self.processor.request_states, str(error))
        for request_id in list(self._requests):
            lost += len(self._tokens_of(request_id) or ())
            state = self.processor.request_states.get(request_id)
            self._forget([request_id])
            self.processor.abort_requests([request_id], internal=True)
            queue: RequestQueue | None = getattr(state, "queue", None)
            if queue is not None:
                queue.put(error)  # over what the abort has put there
        return Carried(tokens_lost=lost)

    def _end_unsent(self, request: EngineCoreRequest, core: EngineCoreClient) -> bool:
        """End a request that ``core`` cannot be sent by its own error; False where that is not why."""
        if refusal := self._door.own_fault(request, core):
            self._end(request.request_id, "ERROR", str(refusal))
        return refusal is not None

    def _end(self, request_id: str, reason: str, why: str | None) -> None:
        self._requests.pop(request_id, None)
        self.inflight.aborted(request_id)
        self._ready.append(output_state.end_of(request_id, reason, why))

    def _own_outputs(self) -> EngineCoreOutputs:
        ready, self._ready = self._ready, []
        return output_state.as_from_a_core(ready)
