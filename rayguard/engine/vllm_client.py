"""A stand-in for vLLM's engine-core client that outlives the core.

vLLM's frontend (``AsyncLLM``, ``LLM``) talks to its core through one object, ``engine_core``, and holds
everything a caller waits for: the tokens received, their text, log-probabilities, stop-string state and
the caller's queue. This stand-in takes that object's place. When the core dies it reports the fault, waits
for the next core, sends it ``prompt + tokens so far`` of every unanswered request (``continuation``), and
the frontend never notices: same ``generate`` call, same stream, nothing twice.

Written against vllm/v1/engine/core_client.py (0.32): ``get_output(_async)``, ``add_request(_async)``,
``abort_requests(_async)``, ``utility_results``, ``outputs_queue``; everything else is passed through.
What does *not* stand here: building cores (``rayguard.engine.vllm``) and deciding
(``rayguard.engine.supervisor``).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from rayguard.engine.continuation import continued, spent, why_not
from rayguard.engine.protocol import Carried, Progress, Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future


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

    def __init__(
        self, core: Any, processor: Any, report: Callable[[Exception, Any], Future[None]], patience_s: float
    ) -> None:
        self.core = core
        self.patience_s = patience_s  # a recovery always ends sooner; this only bounds a bug in it
        self.given_up = False
        self.turns = 0
        self.tokens = 0
        self.touched = False  # since the last push: weights may be others than were pushed
        self._processor = processor  # the frontend's output processor: tokens so far by request id
        self._report = report
        self._requests: dict[str, Any] = {}
        self._held: deque[str] = deque()  # suspects that wait for their turn
        self._suspect: str | None = None
        # Held while a request is booked and while a new core takes over: a request is either in the book
        # that the new core is sent, or goes to the new core itself; never neither.
        self._taking_over = threading.Lock()
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
        ended = False
        for output in outputs.outputs:
            self.tokens += len(output.new_token_ids)
            if output.finish_reason is not None:
                self._requests.pop(output.request_id, None)
                ended = ended or output.request_id == self._suspect
        return ended

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._requests.pop(request_id, None)
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
                return [continued(request, tokens)]
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
            elif reason := why_not(request) if tokens else "":
                lost += len(tokens)
                afresh[request_id] = reason
                if self._begin_afresh(request_id, request):
                    send.append(request)
            elif tokens and spent(request, tokens):
                saved += len(tokens)
                self._end(request_id, "LENGTH", None)
            else:
                saved += len(tokens)
                if request_id not in verdicts.suspects:
                    send.append(continued(request, tokens))
        send.extend(self._next_suspect())
        return send, Carried(
            requests=len(self._requests), tokens_saved=saved, tokens_lost=lost, afresh=afresh
        )

    def _end(self, request_id: str, reason: str, why: str | None) -> None:
        from vllm.v1.engine import EngineCoreOutput, FinishReason  # noqa: PLC0415 - vLLM only where it runs

        self._requests.pop(request_id, None)
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


class SyncHealingClient(HealingClient):
    """In place of ``SyncMPClient`` (or ``InprocClient``) under a synchronous ``LLM``."""

    def get_output(self) -> Any:
        """Return the next outputs; across the death of a core, from the next one."""
        while True:
            if self._ready:
                return self._made_here()
            core = self.core
            try:
                outputs = core.get_output()
            except Exception as error:  # noqa: BLE001 - whatever the core raises is a fault to diagnose
                self._report(error, core).result(self.patience_s)
                continue
            if self._see(outputs):
                for request in self._next_suspect():
                    with contextlib.suppress(Exception):  # a dead core: the next get_output says so
                        core.add_request(request)
            return outputs

    def add_request(self, request: Any) -> None:
        """Book the request and send it."""
        with self._taking_over:
            self._requests[request.request_id] = request
            core = self.core
        try:
            core.add_request(request)
        except Exception as error:  # noqa: BLE001 - a dead core; the next one gets it with the others
            self._report(error, core).result(self.patience_s)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Forget the requests, and tell the core if it lives."""
        self._forget(request_ids)
        if request_ids:
            self.core.abort_requests(request_ids)

    def adopt(self, core: Any, verdicts: Verdicts) -> Carried:
        """Go on with ``core``. Called by the supervisor's thread while every caller waits."""
        with self._taking_over:
            send, carried = self._plan(verdicts)
            for request in send:
                core.add_request(request)
            self.core = core
        return carried

    def interrupt(self, error: Exception) -> None:
        """Wake whoever waits for the current core (vLLM leaves them blocked when it is killed)."""
        for waiting in list(getattr(self.core, "utility_results", {}).values()):
            if not waiting.done():
                waiting.set_exception(error)
        queue = getattr(self.core, "outputs_queue", None)
        if queue is not None:
            queue.put_nowait(error)


class AsyncHealingClient(HealingClient):
    """In place of ``AsyncMPClient`` under an ``AsyncLLM``. Lives on the loop that first used it."""

    loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """Remember the loop that the frontend runs on; vLLM's sockets and queues belong to it."""
        if self.loop is None:
            self.loop = asyncio.get_running_loop()

    async def _healed(self, error: Exception, core: Any) -> None:
        # Shielded: a caller that is cancelled must not cancel the recovery that others wait for.
        healed = asyncio.shield(asyncio.wrap_future(self._report(error, core)))
        await asyncio.wait_for(healed, self.patience_s)

    async def get_output_async(self) -> Any:
        """Return the next outputs; across the death of a core, from the next one."""
        self.bind()
        while True:
            if self._ready:
                return self._made_here()
            core = self.core
            try:
                outputs = await core.get_output_async()
            except Exception as error:  # noqa: BLE001 - whatever the core raises is a fault to diagnose
                await self._healed(error, core)
                continue
            if self._see(outputs):
                for request in self._next_suspect():
                    with contextlib.suppress(Exception):  # a dead core: the next get_output says so
                        await core.add_request_async(request)
            return outputs

    async def add_request_async(self, request: Any) -> None:
        """Book the request and send it."""
        self.bind()
        self._requests[request.request_id] = request
        core = self.core
        try:
            await core.add_request_async(request)
        except Exception as error:  # noqa: BLE001 - a dead core; the next one gets it with the others
            await self._healed(error, core)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Forget the requests, and tell the core if it lives."""
        self._forget(request_ids)
        if request_ids:
            with contextlib.suppress(Exception):  # a dead core has nothing left to abort
                await self.core.abort_requests_async(request_ids)

    async def adopt(self, core: Any, verdicts: Verdicts) -> Carried:
        """Go on with ``core``, on the frontend's loop."""
        send, carried = self._plan(verdicts)
        planned = set(self._requests)
        while send:
            for request in send:
                await core.add_request_async(request)
            # Booked while we waited, and so sent to the core before this one only.
            send = [request for request_id, request in self._requests.items() if request_id not in planned]
            planned.update(self._requests)
        self.core = core
        return carried

    def interrupt(self, error: Exception) -> None:
        """Wake whoever waits for the current core. From any thread."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._interrupt, self.core, error)

    @staticmethod
    def _interrupt(core: Any, error: Exception) -> None:
        for waiting in list(core.utility_results.values()):
            if not waiting.done():
                waiting.set_exception(error)
        core.outputs_queue.put_nowait(error)
