"""A stand-in for the engine-core client of vLLM that outlives the core: what its two kinds share.

vLLM's frontend (``AsyncLLM``, ``LLM``) talks to its core through one object, ``engine_core``, and holds
everything a caller waits for: the tokens received, their text, log-probabilities, stop-string state and
the caller's queue. This stand-in takes that object's place. When the core dies it reports the fault, waits
for the next core, sends it ``prompt + tokens so far`` of every unanswered request (``continuation``), and
the frontend never notices: same ``generate`` call, same stream, nothing twice.

Written against vllm/v1/engine/core_client.py (0.32): ``get_output(_async)``, ``add_request(_async)``,
``abort_requests(_async)``, ``utility_results``, ``outputs_queue``; everything else is passed through.
The two kinds are ``sync_client`` and ``async_client``. What does *not* stand here: building cores
(``engine``) and deciding (``rayguard.engine.supervisor``).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from rayguard.engine.continuation import PLAIN, Exact, continued, spent, why_not
from rayguard.engine.protocol import Carried, Progress, Verdicts
from rayguard.engine.vllm import tap
from rayguard.engine.vllm.inflight import InFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future


PUT_DOWN_S = 5.0  # for what the frontend has in hand: milliseconds, unless somebody steps it by hand
# What may change the weights past us: sleep(level=2), and anything that is called in the workers.
_TOUCHING = frozenset({"sleep", "sleep_async", "collective_rpc", "collective_rpc_async"})


class _Resources:
    """vLLM's ``resources`` of the current core, but never dead while a new core is on its way."""

    def __init__(self, client: HealingClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client.core.resources, name)

    @property
    def engine_dead(self) -> bool:
        return self._client.given_up


class HealingClient:
    """What both clients share: the book of unanswered requests and what a new core is sent.

    Invariant: an id is in ``_requests`` from the moment it was handed in until its last output was handed
    out or it was aborted; so every request is answered exactly once, whatever the number of cores.
    """

    exact: Exact = PLAIN  # what the core that is sent to continues as if nothing had happened

    def __init__(
        self, core: Any, processor: Any, report: Callable[[Exception, Any], Future[None]], patience_s: float
    ) -> None:
        self.core = core
        self.patience_s = patience_s  # a recovery always ends sooner; this only bounds a bug in it
        self.given_up = False
        self.turns = 0
        self.tokens = 0
        self.logprobs = False  # some caller asked for them: their first computation takes a core seconds
        self.touched = False  # since the last push: weights may be others than were pushed
        self._processor = processor  # the frontend's output processor: tokens so far by request id
        self.inflight = InFlight(processor)
        self.weight_version = ""  # of the engine now, for what was begun elsewhere
        self._report = report
        self._requests: dict[str, Any] = {}
        self._held: deque[str] = deque()  # suspects that wait for their turn
        self._suspect: str | None = None
        # Held while a request is booked and while a new core takes over: a request is either in the book
        # that the new core is sent, or goes to the new core itself; never neither.
        self._taking_over = threading.Condition()
        # Outputs were handed out and the frontend may still be at them: its books are not yet complete, and
        # a new core that was sent what they say would make those tokens a second time.
        self._in_hand = False
        self._ready: list[Any] = []  # outputs made here: quarantined requests, ends that were lost
        self.resources = _Resources(self)

    def __getattr__(self, name: str) -> Any:
        """Pass everything else through to the current core."""
        if name == "core":  # unpickled or half-built: no core to ask
            raise AttributeError(name)
        if name in _TOUCHING:
            self.touched = True
        return getattr(self.core, name)

    def progress(self) -> Progress:
        """Return what came out of all cores so far."""
        held = tuple(self._held)
        running = tuple(r for r in list(self._requests) if r not in held)
        return Progress(turns=self.turns, tokens=self.tokens, running=running, held=held)

    def _see(self, outputs: Any) -> bool:
        """Book what came out; return whether a suspect's turn came to its end."""
        self.turns += 1
        ended, longest, came = False, 0, 0
        for output in outputs.outputs:
            count = len(output.new_token_ids)
            came += count
            longest = max(longest, count)
            if output.finish_reason is not None:
                request = self._requests.pop(output.request_id, None)
                if request is not None:
                    self.inflight.answered(request, output, outputs.weight_version)
                ended = ended or output.request_id == self._suspect
        self.tokens += came
        self.inflight.came(longest)
        return ended

    def _take(self, request: Any) -> Any:
        """Book a request that comes in; return it as the core must get it: after what is there already."""
        self._requests[request.request_id] = request
        if not self.logprobs:
            params = getattr(request, "sampling_params", None)
            self.logprobs = getattr(params, "logprobs", None) is not None
        self.inflight.began(request)
        prior = self.inflight.prior_of(request, self.weight_version)
        if prior is None or self._tokens_of(request.request_id) is None:
            return request
        if reason := why_not(request, self.exact):
            self.inflight.afresh(request, reason)
            return request
        room = self._room_for(request)
        end = tap.ending(request.sampling_params, prior, room)
        tap.give(self._processor, request.request_id, prior, end)
        self.inflight.cut(request, len(prior), self.exact)
        tokens = self._tokens_of(request.request_id)
        if tokens is None:  # it was a whole answer, or there was a stop string in it
            self._requests.pop(request.request_id, None)
            return None
        return continued(request, tokens, self.exact)

    def _room_for(self, request: Any) -> int:
        config = getattr(self.core, "vllm_config", None)
        longest = getattr(getattr(config, "model_config", None), "max_model_len", None)
        return (longest or 1 << 30) - len(request.prompt_token_ids)

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._requests.pop(request_id, None)
            self.inflight.aborted(request_id)
            with contextlib.suppress(ValueError):
                self._held.remove(request_id)

    def _next_suspect(self) -> list[Any]:
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
        state = self._processor.request_states.get(request_id)
        if state is None:
            return None
        return [] if state.detokenizer is None else list(state.detokenizer.output_token_ids)

    def _plan(self, verdicts: Verdicts) -> tuple[list[Any], Carried]:
        """Return what the new core must be sent, and what that saves and loses."""
        send: list[Any] = []
        saved = lost = 0
        afresh: dict[str, str] = {}
        self._held, self._suspect = deque(verdicts.suspects), None
        for request_id, request in list(self._requests.items()):
            tokens = self._tokens_of(request_id)
            if tokens is None:
                self._requests.pop(request_id)
            elif request_id in verdicts.quarantined:
                self._end(request_id, "ERROR", verdicts.quarantined[request_id])
            elif reason := why_not(request, self.exact) if tokens else "":
                lost += len(tokens)
                afresh[request_id] = reason
                self.inflight.afresh(request, reason)
                if self._begin_afresh(request_id, request):
                    send.append(request)
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

    def _end(self, request_id: str, reason: str, why: str | None) -> None:
        from vllm.v1.engine import EngineCoreOutput, FinishReason  # noqa: PLC0415 - vLLM only where it runs

        self._requests.pop(request_id, None)
        self.inflight.aborted(request_id)
        self._ready.append(
            EngineCoreOutput(
                request_id=request_id,
                new_token_ids=[],
                finish_reason=FinishReason[reason],
                stop_reason=why,
            )
        )

    def _begin_afresh(self, request_id: str, request: Any) -> bool:
        """Reset what the frontend holds for a request; False when its caller already saw tokens of it."""
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415
        from vllm.v1.engine.output_processor import RequestState  # noqa: PLC0415

        processor = self._processor
        state = processor.request_states[request_id]
        if state.output_kind != RequestOutputKind.FINAL_ONLY:
            # What was streamed cannot be taken back: the caller gets an error and may ask again.
            self._end(request_id, "ERROR", "interrupted; it cannot be continued exactly")
            return False
        processor.request_states[request_id] = RequestState.from_new_request(
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

    def _made_here(self) -> Any:
        from vllm.v1.engine import EngineCoreOutputs  # noqa: PLC0415

        ready, self._ready = self._ready, []
        return EngineCoreOutputs(outputs=ready)
