"""A rollout actor's side of a pool: takes requests, lets its engine answer them, tells what came of it.

``PoolActor`` is put before the user's class by the pool. The engine's own faults are absorbed here, below
the pool (``RolloutMixin.with_engine``); the pool sees only that the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

import psutil

from rayguard.actors.guard.mixins import RolloutMixin
from rayguard.actors.life import current_life
from rayguard.actors.methods import leave
from rayguard.engine.spoiled_requests import SPOILED
from rayguard.errors import ConfigError, QuarantinedError, RayguardError, RequestError, WrongSessionError
from rayguard.harmless import harmless
from rayguard.pool.actors.messages import PROGRESS_S, ActorReport, CallFailed, Finished, Hello
from rayguard.pool.actors.outbox import Outbox
from rayguard.pool.values.result import Sample
from rayguard.preloading.ask import ask
from rayguard.process.identity import ProcessId
from rayguard.ray_internals import spare_workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.engine.vllm.inflight import InFlight, RequestNote
    from rayguard.engine.weights.proof import Doubt, Proof
    from rayguard.pool.values.request import Order

# Some more than run at once, so that the engine never waits for the pool.
_AHEAD = 1.25
ASYNC_ONLY = (
    "a RolloutPool works with vLLM's AsyncLLM: let build_engine return "
    "AsyncLLM.from_engine_args(AsyncEngineArgs(**settings.as_kwargs(...)))"
)
_REFUSED = frozenset({"VLLMClientError", "VLLMValidationError"})


class PoolActor(RolloutMixin):
    """What a pool calls on its actors (``messages.RolloutActor``)."""

    _serving: Serving | None = None

    async def rayguard_hello(self) -> Hello:
        """Say which life this is, once the engine serves with the current weights."""
        if self._serving is None:
            self._serving = Serving(self)
        hello = await self._serving.hello()
        asyncio.get_running_loop().run_in_executor(None, _let_others_import)
        return hello

    @leave
    async def rayguard_submit(self, session: str, orders: Sequence[Order]) -> None:
        """Take requests."""
        self._life(session).submit(orders)

    @leave
    async def rayguard_poll(
        self, session: str, taken: int, wait_s: float, pace_s: float = PROGRESS_S
    ) -> ActorReport:
        """Tell what happened since."""
        return await self._life(session).poll(taken, wait_s, pace_s)

    @leave
    async def rayguard_abort(self, session: str, ids: Sequence[str]) -> None:
        """Give up requests."""
        self._life(session).abort(ids)

    @leave
    async def rayguard_update_weights(self, session: str, doubt: Doubt | None = None) -> str:
        """Bring the engine to the current weights, also where it has them and there is ``doubt``."""
        self._life(session)
        if doubt is not None:
            return await asyncio.to_thread(self._slot().bring_weights, doubt)
        version: str = await self.update_weights()
        return version

    @leave
    async def rayguard_expect_push(self, session: str) -> None:
        """Answer nobody before the user's own push: other engines of the pool have one."""
        self._life(session)
        self._slot().changes.expect()

    @leave
    async def rayguard_proof(self, session: str) -> Proof:
        """Tell what the engine proved to hold, and what it answered with it."""
        self._life(session)
        return self._slot().proof

    @leave
    async def rayguard_start_spares(self, number: int) -> bool:
        """Have Ray start workers beside this one, for next lives of the pool's actors; whether it heard."""
        return await asyncio.to_thread(spare_workers.start, number)

    @property
    def rayguard_served(self) -> bool:
        """Whether a pool said hello to this process."""
        return self._serving is not None

    @leave
    def rayguard_leave(self, why: str) -> None:
        """Ask the pool to replace this actor, or with no ``why`` not to; from any thread."""
        if self._serving is not None:
            self._serving.leaving = why

    def _life(self, session: str) -> Serving:
        serving = self._serving
        if serving is None or serving.session != session:
            raise WrongSessionError(f"session {session} ended with its process; say hello first")
        return serving


class Serving:
    """One life of a rollout actor: its session, the requests it works on, and what it has to tell."""

    def __init__(self, owner: RolloutMixin) -> None:
        self.session = uuid.uuid4().hex
        self.leaving = ""  # why this actor asks to be replaced
        self._owner = owner
        self._outbox = Outbox()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._inflight: InFlight | None = None

    async def hello(self) -> Hello:
        """Wait for the engine; say what it can take."""
        facts = await self._owner.with_engine(self._meet)
        me = ProcessId.me()
        return Hello(
            session=self.session,
            pid=me.pid,
            started=me.started,
            age_s=time.time() - psutil.Process().create_time(),
            node_id=_here("get_node_id"),
            actor_id=_here("get_actor_id"),
            capacity=max(1, int(_AHEAD * int(facts.get("max_num_seqs", 64)))),
            weight_version=self._owner.engine_status()["weight_version"],
            own_push=self._owner._slot().changes.irreplaceable,  # noqa: SLF001
            lacks=self._owner._slot().changes.missing,  # noqa: SLF001
            death=current_life.state.told,
            token_log="" if self._owner._token_log is None else str(self._owner._token_log.path),  # noqa: SLF001
        )

    async def _meet(self, _handle: object) -> dict[str, Any]:
        engine = self._owner._slot().engine(0.0)  # noqa: SLF001 - one thing in two classes
        inflight = getattr(engine, "inflight", None)
        if inflight is None or not engine.is_async:
            raise ConfigError(ASYNC_ONLY)
        if self._inflight is not inflight:
            self._inflight = inflight
            inflight.keep(self._outbox)
        return dict(engine.facts())

    def submit(self, orders: Sequence[Order]) -> None:
        """Begin requests; those that are here already go on."""
        answered = set(self._outbox.answered(order.request.id for order in orders))
        for order in orders:
            name = order.request.id
            if name not in self._tasks and name not in answered:
                self._tasks[name] = asyncio.get_running_loop().create_task(self._serve(order))

    async def poll(self, taken: int, wait_s: float, pace_s: float) -> ActorReport:
        """Return what the pool has not acknowledged, waiting a while for something to tell."""
        answered = [event.id for event in self._outbox.acknowledge(taken) if isinstance(event, Finished)]
        if answered and self._inflight is not None:
            self._inflight.release(answered)
        first, events = await self._outbox.take(taken, wait_s, pace_s)
        status = self._owner.engine_status()
        return ActorReport(
            first=first,
            events=events,
            weight_version=status["weight_version"],
            at_s=time.monotonic(),
            tokens=status["tokens_generated"],
            leaving=self.leaving,
            own_push=self._owner._slot().changes.irreplaceable,  # noqa: SLF001
            lacks=self._owner._slot().changes.missing,  # noqa: SLF001
        )

    def abort(self, ids: Sequence[str]) -> None:
        """Cancel requests."""
        for name in ids:
            task = self._tasks.pop(name, None)
            if task is not None:
                task.cancel()

    async def _serve(self, order: Order) -> None:
        name, inflight = order.request.id, self._inflight
        assert inflight is not None  # hello comes before the first request
        try:
            self._outbox.expect(name, 0 if order.prior is None else len(order.prior))
            note = inflight.follow(name, order.prior, order.question)
            note.cuts.extend(order.cuts[: -1 if order.prior is not None else None])
            answer = await self._owner.with_engine(lambda engine: _answer(engine, order, note))
            if isinstance(answer, Sample):
                self._outbox.put(Finished(name, answer))
            else:
                self._outbox.put(CallFailed(name, answer, retry=not isinstance(answer, RequestError)))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - every request gets its answer, whatever went wrong
            self._outbox.put(CallFailed(name, portable(error), retry=True))
        finally:
            self._tasks.pop(name, None)
            self._outbox.done(name)
            inflight.unfollow(name)


async def _answer(engine: Any, order: Order, note: RequestNote) -> Sample | Exception:
    """Let ``engine`` (an ``AsyncLLM``) answer; an error of the request's own is returned, not raised."""
    from rayguard.engine.vllm.output_state import of_completion  # noqa: PLC0415
    from rayguard.engine.vllm.request_checks import sampling_params  # noqa: PLC0415 - vLLM only where it runs

    request, last = order.request, None
    try:
        params = sampling_params(request.id, request.sampling)
        prompt = request.prompt
        asked = prompt if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)}
        async for output in engine.generate(asked, params, request.id):
            last = output
    except RequestError as refused:
        return refused
    except Exception as error:
        if any(kind.__name__ in _REFUSED for kind in type(error).__mro__):
            return RequestError(request.id, str(error).removeprefix(f"request {request.id!r}: "))
        raise
    if last is None or not last.finished:
        return RayguardError(f"request {request.id!r} ended without an answer")
    completion = last.outputs[0]
    if completion.finish_reason == "error":
        why = str(completion.stop_reason or "the engine gave it up")
        return (RequestError if why.startswith(SPOILED) else QuarantinedError)(request.id, why)
    if completion.finish_reason == "abort":  # not by us: whoever aborts its requests still wants an answer
        return RayguardError(f"request {request.id!r} was aborted inside the actor")
    return Sample(
        id=request.id,
        index=request.index,
        prompt_token_ids=tuple(last.prompt_token_ids or ()) if isinstance(prompt, str) else (),
        generated=of_completion(completion, params),
        text=completion.text,
        finish_reason=completion.finish_reason or "",
        stop_reason=completion.stop_reason,
        cuts=tuple(dict.fromkeys(note.cuts)),
        restarted=tuple(note.afresh),
        drift=note.drift,
    )


def _let_others_import() -> None:
    with harmless("preloading"), contextlib.suppress(OSError):  # who listened is gone, and comes again
        ask("vllm")


def portable(error: Exception) -> Exception:
    """Return an error that another process can read: ours as they are, others by name and text."""
    if isinstance(error, RayguardError):
        return error
    return RayguardError(f"{type(error).__name__}: {error} (process {os.getpid()})")


def _here(what: str) -> str:
    import ray  # noqa: PLC0415 - an actor runs here, or a test without one

    with harmless("incarnation"):
        return str(getattr(ray.get_runtime_context(), what)() or "") if ray.is_initialized() else ""
    return ""
