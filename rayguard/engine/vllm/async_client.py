"""The stand-in for vLLM's engine-core client under an ``AsyncLLM``; what it shares is ``client``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from rayguard.engine.vllm.client import PUT_DOWN_S, HealingClient
from rayguard.engine.vllm.door.core_calls import LOOK_S, refused_at_its_end, wake
from rayguard.engine.vllm.door.unasked_ends import STAYS_S
from rayguard.engine.vllm.kept.condition import replay_async
from rayguard.errors import ConfigError, WeightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from rayguard.engine.protocol import Carried, Verdicts
    from rayguard.engine.vllm.interfaces import EngineCoreClient, EngineCoreOutputs, EngineCoreRequest
    from rayguard.engine.vllm.questions.canary_answer import CanaryQuestion

T = TypeVar("T")


class AsyncHealingClient(HealingClient):
    """In place of ``AsyncMPClient`` under an ``AsyncLLM``. Lives on the loop that first used it."""

    loop: asyncio.AbstractEventLoop | None = None
    _thread = ""  # that the loop ran in
    questions: tuple[CanaryQuestion, ...] = ()  # of ours that are on their way

    def bind(self) -> None:
        """Remember the loop that the frontend runs on; vLLM's sockets and queues belong to it.

        Raises:
            ConfigError: Another loop runs here.
        """
        running = asyncio.get_running_loop()
        if self.loop is None:
            with self._taking_over:  # a core that takes over while nobody waits must see who begins to
                self.loop, self._thread = running, threading.current_thread().name
        elif self.loop is not running:
            state = "is closed" if self.loop.is_closed() else f"runs in thread {self._thread}"
            raise ConfigError(
                f"an AsyncLLM belongs to the event loop that used it first, and that {state}: {self.loop!r}. "
                f"It was used from another one in thread {threading.current_thread().name}: {running!r}. "
                "Use it from one loop alone: methods of one concurrency group of an async actor share one, "
                "and each asyncio.run makes a new one"
            )

    def __getattr__(self, name: str) -> object:
        """Pass the call on, on its own loop: whoever waits for its answer is woken there."""
        if name.endswith("_async"):
            with contextlib.suppress(RuntimeError):  # no loop runs here
                self.bind()
        return super().__getattr__(name)

    def adopt_unused(self, core: EngineCoreClient) -> bool:
        """Go on with ``core`` if nothing was ever asked, or nobody can wait any more; from any thread."""
        with self._taking_over:
            unused = self.loop is None or self.loop.is_closed()
            if unused:
                self.go_to(core)
            return unused

    async def _healed(self, error: Exception, core: EngineCoreClient) -> None:
        # Shielded: a caller that is cancelled must not cancel the recovery that others wait for.
        healed = asyncio.shield(asyncio.wrap_future(self._report(error, core)))
        await asyncio.wait_for(healed, self.patience_s)

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return the next outputs; across the death of a core, from the next one."""
        self.bind()
        self._in_hand = False
        while True:
            self.inflight.save_if_due(self._requests)
            if self._ready:
                self._in_hand = True
                return self._own_outputs()
            core = self.core
            try:
                outputs = await core.get_output_async()
            except Exception as error:  # noqa: BLE001 - whatever the core raises is a fault to diagnose
                await self._healed(error, core)
                continue
            if core is not self.core:
                continue  # too late: its successor makes these tokens again
            for question in self.questions:
                question.take(outputs)
            self._in_hand = True
            await self._told_of_ends(core, suspect=self._received(outputs))
            return outputs

    async def _told_of_ends(self, core: EngineCoreClient, *, suspect: bool) -> None:
        """Tell ``core`` of requests that we ended; send the next suspect where the turn of one is over."""
        with contextlib.suppress(Exception):  # a dead core: the next get_output says so
            if spoiled := self.numeric.inside():
                await core.abort_requests_async(spoiled)
        for request in self._next_suspect() if suspect else ():
            with contextlib.suppress(Exception):
                await self._hand_over(request, core)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Book the request and send it.

        Raises:
            VLLMValidationError: It cannot be sent to an engine; nothing is booked for it.
        """
        self.bind()
        try:
            await self._add(request)
        except BaseException:  # also of a caller that was cancelled: nobody waits for the request
            await self.abort_requests_async(self._undo(request))
            raise

    async def _add(self, request: EngineCoreRequest) -> None:
        self._door.let_in(request, self.core)
        sent, core = self._accepted(request), self.core
        if sent is None:
            return
        try:
            await core.add_request_async(sent)
        except Exception as error:  # its own fault; or a dead core, and the next one gets it with the others
            refusal = self._door.own_fault(sent, core)
            if refusal is not None:
                raise refusal from error
            await self._healed(error, core)

    async def _gone(self, core: EngineCoreClient) -> bool:
        until = time.monotonic() + STAYS_S
        while not self._is_gone(core) and time.monotonic() < until:  # noqa: ASYNC110 - vLLM's own flag
            await asyncio.sleep(LOOK_S)
        return self._is_gone(core)

    def _call(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        if not name.endswith("_async"):
            return function

        @functools.wraps(function)
        async def call(*args: object, **kwargs: object) -> object:
            while True:
                core = self.core
                try:
                    return await self._method(core, name)(*args, **kwargs)
                except Exception as error:
                    if refused_at_its_end(error) and await self._gone(core):
                        continue  # to whom comes next, which a client that knows its core as dead waits for
                    if not self._made_again(name, args, error, core):
                        raise
                    await self._healed(error, core)

        return call

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Forget the requests, and tell the core if it lives."""
        following = self._forget(request_ids)
        if request_ids:
            with contextlib.suppress(Exception):  # a dead core has nothing left to abort
                self.bind()
                await self.core.abort_requests_async(request_ids)
        for request in following:
            with contextlib.suppress(Exception):  # a dead core: the next get_output says so
                await self._hand_over(request, self.core)

    async def adopt(self, core: EngineCoreClient, verdicts: Verdicts) -> Carried:
        """Go on with ``core``, on the frontend's loop."""
        await replay_async(self.kept, core)
        until = time.monotonic() + PUT_DOWN_S
        while self._in_hand and self._requests and time.monotonic() < until:  # noqa: ASYNC110 - a flag of ours
            await asyncio.sleep(0)  # vLLM's output handler lets others run between parts of one batch
        send, carried = self._plan(verdicts)
        # In the same turn: what comes from now on goes to this core, and the one before is heard no more.
        self.go_to(core)
        for request in send:
            if request.request_id in self._requests:  # not aborted meanwhile
                await self._hand_over(request, core)
        return carried

    async def _hand_over(self, request: EngineCoreRequest, core: EngineCoreClient) -> None:
        try:
            await core.add_request_async(request)
        except Exception:
            if not self._end_unsent(request, core):
                raise
            for following in self._forget((request.request_id,)):
                await self._hand_over(following, core)

    async def ask(self, question: CanaryQuestion, deadline_s: float, *, room: int) -> None:
        """Let the core answer beside what runs.

        Not where ``room`` requests do, as it would wait behind others; one that gives way to them may wait.

        Raises:
            TimeoutError: The deadline passed.
        """
        if len(self._requests) >= room and not question.gives_way:
            return
        core = self.core
        self.questions = (*self.questions, question)
        try:
            await core.add_request_async(question.request)
            await asyncio.wait_for(question.ended.wait(), deadline_s)
        finally:
            self.questions = tuple(other for other in self.questions if other is not question)
            if not question.ended.is_set():
                with contextlib.suppress(Exception):  # a dead core has nothing left to abort
                    await core.abort_requests_async([question.id])

    def interrupt(self, error: Exception, core: EngineCoreClient | None = None) -> None:
        """Wake whoever waits for ``core``, by default the current one. From any thread."""
        self._interrupts.append(error)
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(wake, core or self.core, error)

    def _put(self, core: EngineCoreClient, outputs: EngineCoreOutputs) -> None:
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(core.outputs_queue.put_nowait, outputs)


def run_on(
    loop: asyncio.AbstractEventLoop | None, call: Coroutine[object, object, T], deadline_s: float
) -> T:
    """Run ``call`` on ``loop``, from another thread.

    Raises:
        WeightsError: There is no loop yet.
        TimeoutError: The deadline passed.
    """
    if loop is None:
        call.close()
        raise WeightsError("an AsyncLLM takes weights only once its event loop runs: use it first")
    running = asyncio.run_coroutine_threadsafe(call, loop)
    try:
        return running.result(deadline_s)
    finally:
        running.cancel()  # a loop that stood still must not do it later, unasked
