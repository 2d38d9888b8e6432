"""The vLLM adapter: ``AsyncLLM`` and the synchronous ``LLM`` behind the engine seam.

One ``VllmEngine`` is one core process (with its workers) and the frontend it was built with. Its successor
takes over the *first* frontend, which the user holds. How requests go on: ``client``; inside: ``plugin``.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from rayguard.engine.deadline import bounded
from rayguard.engine.protocol import SERVING, Carried, Engine, EngineProcess, Progress, Standing
from rayguard.engine.vllm import built_with, client_teardown, weight_push
from rayguard.engine.vllm.adoption import attach
from rayguard.engine.vllm.arguments import refuse_built
from rayguard.engine.vllm.async_client import AsyncHealingClient, run_on
from rayguard.engine.vllm.core_activity import CoreActivity
from rayguard.engine.vllm.core_processes import exits_of, processes_of
from rayguard.engine.vllm.exact.claims import exactness
from rayguard.engine.vllm.questions import audited, canary_request
from rayguard.engine.vllm.receiver import ASK, install_receiver
from rayguard.engine.vllm.sync_client import SyncHealingClient, send_one_at_a_time
from rayguard.engine.weights.changes import WeightChanges
from rayguard.engine.weights.proof import held_by
from rayguard.engine.weights.spill import sendable
from rayguard.harmless import harmless
from rayguard.home import home
from rayguard.process.cleanup import belongings, reaper
from rayguard.process.tree import end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rayguard.engine.audited_answer import AuditedAnswer, Auditor
    from rayguard.engine.protocol import AdoptableEngine, Report, Verdicts
    from rayguard.engine.vllm.inflight import InFlight
    from rayguard.engine.vllm.interfaces import LLM, EngineCoreClient, LLMEngine
    from rayguard.engine.vllm.questions.canary_answer import CanaryQuestion
    from rayguard.engine.weights.canary import Canary
    from rayguard.engine.weights.layout import Layout
    from rayguard.engine.weights.version import WeightReceipt, Weights
    from rayguard.faults.fault import ProcessExit

_SENT_AS_BYTES, _BESIDE_S = 64 << 20, 10.0  # seconds for a canary while callers may wait


class VllmEngine(Engine):
    """One life of a vLLM engine."""

    def __init__(
        self,
        built: LLM | LLMEngine,
        report: Report,
        *,
        mark: str,
        patience_s: float,
        predecessor: Engine | None,
        arguments: str = "",
    ) -> None:
        self._built = built  # kept: its finalizer would shut the core down
        self._report, self._mark, self._patience_s = report, mark, patience_s
        self._is_async = not (hasattr(built, "llm_engine") or hasattr(built, "step"))  # of an ``LLMEngine``
        self._own = built.llm_engine if hasattr(built, "llm_engine") else built
        self.core: EngineCoreClient = self._own.engine_core
        refuse_built(self._own)
        send_one_at_a_time(type(self.core))
        self._activity = CoreActivity(self.core)
        self._said = weight_push.receipts(attach.receipts_of(self.core))  # of a core that was taken over
        self._version = "" if (held := held_by(self._said)) is None else held.version  # that was pushed last
        self._changes, self._given = WeightChanges(), arguments
        self._auditor: Auditor | None = None
        self._spoiled: Callable[[Sequence[str]], object] | None = None
        self._handle: object = built  # with the next two, what outlives a core
        self.front = self._own
        self.client: AsyncHealingClient | SyncHealingClient | None = None
        old = predecessor if isinstance(predecessor, VllmEngine) else None
        if old is not None and old.client is not None and old.is_async == self._is_async:
            self._handle, self.front, self.client = old.handle, old.front, old.client
        manager = getattr(getattr(self.core, "resources", None), "engine_manager", None)
        self._cores = tuple(getattr(manager, "processes", ()))
        if not self._cores:  # it runs in this process, where no plugin was asked for
            install_receiver()
        self._known = processes_of(self._cores)
        with harmless("shm"):  # before it serves: what it is given later is not its own
            belongings.note([known.process for known in self._known], home())

    @property
    @override
    def handle(self) -> object:
        return self._handle

    @property
    @override
    def is_async(self) -> bool:
        return self._is_async

    @property
    @override
    def one_thread(self) -> bool:
        return not self._is_async

    @override
    def left(self, error: BaseException) -> None:
        if isinstance(self.client, SyncHealingClient):
            self.client.left(error)

    @property
    @override
    def life(self) -> object:
        return self.core

    @property
    @override
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self.client.loop if isinstance(self.client, AsyncHealingClient) else None

    @property
    def inflight(self) -> InFlight | None:
        """The requests in flight on the frontend, for who keeps their tokens elsewhere."""
        return None if self.client is None else self.client.inflight

    @property
    @override
    def frontend(self) -> object:
        return self._handle if self._serves() else self._built

    @override
    def facts(self) -> Mapping[str, object]:
        return built_with.facts(self._own.vllm_config)

    @override
    def adoptable(self) -> AdoptableEngine | None:
        return attach.adoptable(self.core, self._known, self._given) if len(self._cores) == 1 else None

    @override
    def layout(self) -> Layout:
        return built_with.layout(self._own.vllm_config)

    @override
    def processes(self) -> tuple[EngineProcess, ...]:
        return self._known

    @override
    def exits(self) -> tuple[ProcessExit, ...]:
        return exits_of(self._known, self._cores)

    @override
    def progress(self) -> Progress:
        return Progress() if self.client is None else self.client.progress()

    @override
    def closely(self) -> Progress:
        return self.progress() if self.client is None else self._activity.add_to(self.progress(), self.client)

    @override
    def standing(self) -> Standing:
        found = SERVING if self.client is None else self.client.kept.standing()
        asked = getattr(self.core, "utility_results", {}).values() if found is SERVING else ()
        return Standing(state="in a call") if any(not call.done() for call in list(asked)) else found

    @override
    def interrupt(self, error: Exception) -> None:
        if self.client is not None:
            self.client.interrupt(error)

    @override
    def close(self, *, polite_s: float, force_s: float) -> tuple[EngineProcess, ...]:
        if polite_s > 0:
            with contextlib.suppress(Exception):  # the polite part may fail in any way; force follows
                bounded(lambda: self.core.shutdown(timeout=polite_s), polite_s + 1.0)
        everyone = {known.process: known for known in (*self._known, *processes_of(self._cores))}
        left = end(tuple(everyone), polite_s=0.0, force_s=force_s, mark=self._mark)
        client_teardown.let_go(self.core, force_s, waits=self.can_push(), frontend=self._built)
        with harmless("shm"):  # Ray and vLLM leave it to the end of the owner: each killed core would leak
            reaper.free_after(tuple(everyone), home())
        return tuple(everyone[process] for process in left)

    @override
    def can_push(self) -> bool:
        return not self._is_async or (self.loop is not None and self.loop.is_running())

    @override
    def push(self, weights: Weights, *, deadline_s: float) -> Sequence[WeightReceipt]:
        # Large ones go through shared memory: three times faster than through the engine's sockets.
        client = self.client if self._serves() else None
        touched = contextlib.nullcontext() if client is None else client.own_calls.pushing()
        within = weight_push.told(weights, deadline_s)
        with touched, within, sendable(weights, limit_bytes=_SENT_AS_BYTES) as sent:
            if self._is_async:
                answers = run_on(self.loop, weight_push.push_async(self.core, sent), deadline_s)
            else:
                answers = bounded(lambda: weight_push.push(self.core, sent), deadline_s)
        self._version = weights.version
        if client is not None:
            client.weight_version = weights.version
            client.meetings.cache_dropped()
        return weight_push.receipts(answers)

    @override
    def replay(self, push: Callable[[Any], object], *, deadline_s: float) -> object:
        if not self._is_async:
            return super().replay(push, deadline_s=deadline_s)
        return run_on(self.loop, weight_push.replayed(push, self.frontend), deadline_s)

    @override
    def receipts(self, *, deadline_s: float) -> Sequence[WeightReceipt]:
        # An engine in this very process has no border at which changes would be seen.
        if self.client is None or not self._cores or (self._serves() and self.client.own_calls.touched):
            return self._said if self.client is None else ()
        if self._is_async:
            return weight_push.receipts(run_on(self.loop, weight_push.asked_async(self.core), deadline_s))
        ask = self.core.collective_rpc
        return weight_push.receipts(bounded(lambda: ask(ASK, None, (), None), deadline_s))

    @override
    def canary(self, *, deadline_s: float, closely: bool = False) -> Canary | None:
        if self.client is None or self._activity.paused:
            return None
        # Where no caller wants log-probabilities, a core would compile for seconds to tell them to us alone.
        logprobs = closely or self.client.logprobs
        limit_s = min(deadline_s, _BESIDE_S) if self._serves() else deadline_s
        return canary_request.of_each_rank(self.core, lambda q: self._asked(q, limit_s), logprobs=logprobs)

    @override
    def audited_by(self, auditor: Auditor) -> None:
        self._auditor = auditor

    @override
    def tells_of_spoiled(self, told: Callable[[Sequence[str]], object]) -> None:
        self._spoiled = told

    @override
    def answer_again(
        self, answer: AuditedAnswer, *, deadline_s: float, closely: bool = False
    ) -> Canary | None:
        if self.client is None or self._activity.paused or not self._serves():
            return None
        closely = closely or self.client.logprobs
        return self._asked(audited.question_for(self._own.vllm_config, answer, logprobs=closely), deadline_s)

    def _asked(self, question: CanaryQuestion, deadline_s: float) -> Canary | None:
        client = self.client if self._serves() else None  # None: nobody reads from this core yet
        run = partial(run_on, self.loop) if self._is_async else None
        return canary_request.ask(self.core, self.front, client, question, deadline_s, run)

    def _serves(self) -> bool:
        """Say whether what the user calls reaches this core; not while it is a standby or still to come."""
        return self.client is not None and self.client.core is self.core

    @override
    def serve(self, verdicts: Verdicts, *, deadline_s: float) -> Carried:
        client = self.client
        if client is None:
            kind = AsyncHealingClient if self._is_async else SyncHealingClient
            client = kind(self.core, self._own.output_processor, self._report, self._patience_s)
            client.exact = exactness(self._known, self._own.vllm_config)
            client.numeric.of_core(self._own.vllm_config, self._spoiled)
            client.own_calls.changes, client.weight_version = self._changes, self._version
            if self._auditor is not None:
                client.inflight.audited = audited.AuditedRequests(self._auditor, client)
            self._own.engine_core = cast("EngineCoreClient", client)  # which passes all else through
            self.client = client
            return Carried()
        # The frontend keeps its tokenizer and its queues: it is told what the new core was built with.
        self.front.vllm_config = self._own.vllm_config
        # Of the core before this one; that is put to sleep too, weights and all.
        client.own_calls.touched = client.kept.standing().state == "asleep"
        client.weight_version = self._version
        client.exact = exactness(self._known, self._own.vllm_config)  # of the core that takes over now
        client.numeric.of_core(self._own.vllm_config, self._spoiled)
        before = client.core
        if isinstance(client, SyncHealingClient):
            carried = bounded(lambda: client.adopt(self.core, verdicts), deadline_s)
        elif client.adopt_unused(self.core) or client.loop is None:
            return Carried()
        else:
            adopting = asyncio.run_coroutine_threadsafe(client.adopt(self.core, verdicts), client.loop)
            carried = adopting.result(deadline_s)
        # Once more: a call that came after the core before this one was interrupted waits for it still.
        client.interrupt(RuntimeError("the engine that this call was made on has died"), before)
        return carried

    @override
    def follow(self, changes: WeightChanges) -> None:
        self._changes = changes

    def bind(self) -> None:
        """Take the running loop as the one that the frontend lives on."""
        if isinstance(self.client, AsyncHealingClient):
            self.client.bind()

    @override
    def give_up(self) -> None:
        if self.client is not None:
            self.client.given_up = True
