"""The vLLM adapter: ``AsyncLLM`` and the synchronous ``LLM`` behind the engine seam.

One ``VllmEngine`` is one core process (with its workers) and the frontend object it was built with. Its
successor takes over the *first* frontend, the one that the user's code holds. How requests go on is
``rayguard.engine.vllm.client``; what runs inside vLLM's processes is ``plugin`` and ``receiver``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from rayguard.engine import remains
from rayguard.engine.bounded import bounded
from rayguard.engine.protocol import Carried, Engine, EngineProcess, Progress
from rayguard.engine.vllm import asking
from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.doing import Doing
from rayguard.engine.vllm.ending import let_go
from rayguard.engine.vllm.exact import exactness
from rayguard.engine.vllm.receiver import install_receiver
from rayguard.engine.vllm.sync_client import SyncHealingClient, send_one_at_a_time
from rayguard.engine.weights.spill import sendable
from rayguard.engine.weights.version import WeightReceipt
from rayguard.errors import RecoveryTimeoutError, WeightsError
from rayguard.faults.fault import ProcessExit, Role
from rayguard.process.identity import ProcessId
from rayguard.process.tree import descendants, end

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from concurrent.futures import Future

    from rayguard.engine.protocol import Verdicts
    from rayguard.engine.vllm.inflight import InFlight
    from rayguard.engine.weights.canary import Canary
    from rayguard.engine.weights.version import Weights

    Report = Callable[[Exception, Any], Future[None]]

_SENT_AS_BYTES = 64 << 20
_BESIDE_S = 10.0  # for a canary while callers may wait
_IN_TIME_S = 1.0  # for a loop to say that a deadline passed
_ASK = ("rayguard_weights", None, (), None)
_kept: list[Any] = []  # frontends that must not be garbage-collected (see close)
_FACTS = (
    (
        "scheduler_config",
        ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill"),
    ),
    ("model_config", ("max_model_len", "enforce_eager")),
    ("cache_config", ("gpu_memory_utilization", "enable_prefix_caching")),
)


def is_vllm(built: object) -> bool:
    """Say whether ``built`` is a frontend that this adapter understands."""
    kind = type(built)
    return kind.__module__.partition(".")[0] == "vllm" and (
        hasattr(built, "llm_engine") or (hasattr(built, "engine_core") and hasattr(built, "output_processor"))
    )


def accepted_arguments() -> frozenset[str]:
    """Return the argument names that the installed vLLM's engine takes."""
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - seconds of import, only where it runs

    return frozenset(f.name for f in dataclasses.fields(AsyncEngineArgs))


def check_arguments(kwargs: Mapping[str, Any]) -> None:
    """Let the installed vLLM check engine arguments without building an engine.

    Raises:
        Exception: Whatever vLLM raises for them (pydantic's ValidationError, TypeError, ValueError).
    """
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415

    known = accepted_arguments()
    AsyncEngineArgs(**{k: v for k, v in kwargs.items() if k in known}).create_engine_config()


@dataclasses.dataclass(frozen=True, slots=True)
class Frontend:
    """What outlives a core: the object that the user holds, and the stand-in for its core client."""

    handle: Any  # the AsyncLLM or LLM
    engine: Any  # the AsyncLLM, or the LLM's LLMEngine: what has ``engine_core`` and ``output_processor``
    client: AsyncHealingClient | SyncHealingClient


class VllmEngine(Engine):
    """One life of a vLLM engine."""

    def __init__(
        self, built: Any, report: Report, *, mark: str, patience_s: float, predecessor: Engine | None
    ) -> None:
        self._built = built  # kept: its finalizer would shut the core down
        self._report = report
        self._mark = mark
        self._patience_s = patience_s
        self._is_async = not hasattr(built, "llm_engine")
        self._own = built if self._is_async else built.llm_engine
        self.core = self._own.engine_core
        send_one_at_a_time(type(self.core))
        self._doing = Doing(self.core)
        self._version = ""  # of the weights that were pushed last
        self.frontend: Frontend | None = None
        if isinstance(predecessor, VllmEngine) and predecessor.is_async == self._is_async:
            self.frontend = predecessor.frontend
        manager = getattr(getattr(self.core, "resources", None), "engine_manager", None)
        self._cores = tuple(getattr(manager, "processes", ()))
        if not self._cores:  # it runs in this process, where no plugin was asked for
            install_receiver()
        self._known = self._look()
        remains.note(known.process for known in self._known)

    @property
    @override
    def handle(self) -> Any:
        return self._built if self.frontend is None else self.frontend.handle

    @property
    @override
    def is_async(self) -> bool:
        return self._is_async

    @property
    @override
    def life(self) -> object:
        return self.core

    @property
    @override
    def loop(self) -> asyncio.AbstractEventLoop | None:
        client = None if self.frontend is None else self.frontend.client
        return client.loop if isinstance(client, AsyncHealingClient) else None

    @property
    @override
    def heals(self) -> bool:
        return True

    @property
    def inflight(self) -> InFlight | None:
        """The requests in flight on the frontend, for who keeps their tokens elsewhere."""
        return None if self.frontend is None else self.frontend.client.inflight

    @override
    def facts(self) -> Mapping[str, Any]:
        config, found = self._own.vllm_config, {}
        for part, names in _FACTS:
            for name in names:
                value = getattr(getattr(config, part, None), name, None)
                if value is not None:
                    found[name] = value
        return found

    def _look(self) -> tuple[EngineProcess, ...]:
        found: list[EngineProcess] = []
        for core in self._cores:
            process = ProcessId.of(core.pid)
            if process is not None:
                found.append(EngineProcess(Role.ENGINE_CORE, process))
                found.extend(EngineProcess(Role.ENGINE_WORKER, child) for child in descendants(process))
        return tuple(found)

    @override
    def processes(self) -> tuple[EngineProcess, ...]:
        return self._known

    @override
    def exits(self) -> tuple[ProcessExit, ...]:
        codes = {core.pid: core.exitcode for core in self._cores}
        return tuple(
            ProcessExit(role=role, pid=process.pid, exitcode=codes.get(process.pid) or process.exitcode())
            for role, process in ((known.role, known.process) for known in self._known)
            if not process.alive()
        )

    @override
    def progress(self) -> Progress:
        return Progress() if self.frontend is None else self.frontend.client.progress()

    @override
    def closely(self) -> Progress:
        client = None if self.frontend is None else self.frontend.client
        return Progress() if client is None else self._doing.add_to(client.progress(), client)

    @override
    def interrupt(self, error: Exception) -> None:
        if self.frontend is not None:
            self.frontend.client.interrupt(error)

    @override
    def close(self, *, polite_s: float, force_s: float) -> tuple[EngineProcess, ...]:
        if polite_s > 0:
            with contextlib.suppress(Exception):  # the polite part may fail in any way; force follows
                bounded(lambda: self.core.shutdown(timeout=polite_s), polite_s + 1.0)
        everyone = {known.process: known for known in (*self._known, *self._look())}
        left = end(tuple(everyone), polite_s=0.0, force_s=force_s, mark=self._mark)
        loop = self.loop
        waits = not self._is_async or (loop is not None and loop.is_running())
        if not waits:  # its sockets close on their loop; collected before, they wait for ever in __del__
            _kept.append(self._built)
        let_go(self.core, force_s, waits=waits)
        remains.free(everyone)
        return tuple(everyone[process] for process in left)

    @override
    def can_push(self) -> bool:
        return not self._is_async or (self.loop is not None and self.loop.is_running())

    @override
    def push(self, weights: Weights, *, deadline_s: float) -> Sequence[WeightReceipt]:
        try:
            # Large ones go through shared memory: three times faster than through the engine's sockets.
            with sendable(weights, limit_bytes=_SENT_AS_BYTES) as sent:
                arguments = (sent.payload, sent.path, sent.version, sent.digest)
                receipts = self._push(arguments, deadline_s)
        except (TimeoutError, FutureTimeoutError) as late:  # two types before Python 3.11
            raise RecoveryTimeoutError(
                f"pushing weights {weights.version!r} took over {deadline_s:.0f} s"
            ) from late
        self._version = weights.version
        if self.frontend is not None and self._serves():
            self.frontend.client.weight_version = weights.version
        return [WeightReceipt(**receipt) for receipt in receipts]

    @override
    def receipts(self, *, deadline_s: float) -> Sequence[WeightReceipt]:
        # An engine in this very process has no border at which changes would be seen.
        if self.frontend is None or not self._cores or (self._serves() and self.frontend.client.touched):
            return ()
        if not self._is_async:
            answers = bounded(lambda: self.core.collective_rpc(*_ASK), deadline_s)
        else:
            answers = self._on_loop(self.core.collective_rpc_async(*_ASK), deadline_s)
        return [WeightReceipt(**answer) for answer in answers]

    @override
    def canary(self, *, deadline_s: float) -> Canary | None:
        # Where no caller wants log-probabilities, a core would compile for seconds to tell them to us alone.
        if self.frontend is None or not self.frontend.client.logprobs or self._doing.paused:
            return None
        question = asking.asked(self._own.vllm_config)
        if question is None:
            return None
        frontend = self.frontend if self._serves() else None  # None: nobody reads from this core yet
        deadline_s = deadline_s if frontend is None else min(deadline_s, _BESIDE_S)
        if self._is_async:
            self._on_loop(asking.on_loop(self.core, frontend, question, deadline_s), deadline_s + _IN_TIME_S)
        else:
            asking.here(self.core, frontend, question, deadline_s)
        return question.answer()

    def _push(self, arguments: tuple[Any, ...], deadline_s: float) -> Any:
        if self.frontend is not None and self._serves():
            self.frontend.client.touched = False
        if not self._is_async:
            return bounded(lambda: self._push_sync(arguments), deadline_s)
        return self._on_loop(self._push_async(arguments), deadline_s)

    def _on_loop(self, call: Coroutine[Any, Any, Any], deadline_s: float) -> Any:
        loop = self.loop
        if loop is None:
            call.close()
            raise WeightsError("an AsyncLLM takes weights only once its event loop runs: use it first")
        asked = asyncio.run_coroutine_threadsafe(call, loop)
        try:
            return asked.result(deadline_s)
        finally:
            asked.cancel()  # a loop that stood still must not do it later, unasked

    def _serves(self) -> bool:
        """Say whether what the user calls reaches this core; not while it is a standby or still to come."""
        return self.frontend is not None and self.frontend.client.core is self.core

    def _push_sync(self, arguments: tuple[Any, ...]) -> Any:
        receipts = self.core.collective_rpc("rayguard_load_weights", None, arguments, None)
        self.core.reset_prefix_cache()  # what is cached was computed with other weights
        self.core.set_weight_version(arguments[2])
        return receipts

    async def _push_async(self, arguments: tuple[Any, ...]) -> Any:
        core = self.core
        await core.pause_scheduler_async(mode="keep", clear_cache=False)
        receipts = await core.collective_rpc_async("rayguard_load_weights", None, arguments, None)
        await core.reset_prefix_cache_async(reset_running_requests=True)
        await core.set_weight_version_async(arguments[2])
        await core.resume_scheduler_async()
        return receipts

    @override
    def serve(self, verdicts: Verdicts, *, deadline_s: float) -> Carried:
        if self.frontend is None:
            kind = AsyncHealingClient if self._is_async else SyncHealingClient
            client = kind(self.core, self._own.output_processor, self._report, self._patience_s)
            client.exact = exactness(self._known, self._own.vllm_config)
            self._own.engine_core = client
            self.frontend = Frontend(self._built, self._own, client)
            return Carried()
        # The frontend keeps its tokenizer and its queues; it is only told what the new core was built with.
        self.frontend.engine.vllm_config = self._own.vllm_config
        client = self.frontend.client
        client.touched = False  # of the core before this one
        client.weight_version = self._version
        client.exact = exactness(self._known, self._own.vllm_config)  # of the core that takes over now
        if isinstance(client, SyncHealingClient):
            return client.adopt(self.core, verdicts)
        if client.loop is None:  # never used: nothing waits, nothing belongs to a loop yet
            client.core = self.core
            return Carried()
        adopting = asyncio.run_coroutine_threadsafe(client.adopt(self.core, verdicts), client.loop)
        return adopting.result(deadline_s)

    def bind(self) -> None:
        """Take the running loop as the one that the frontend lives on."""
        if self.frontend is not None and isinstance(self.frontend.client, AsyncHealingClient):
            self.frontend.client.bind()

    @override
    def give_up(self) -> None:
        if self.frontend is not None:
            self.frontend.client.given_up = True
