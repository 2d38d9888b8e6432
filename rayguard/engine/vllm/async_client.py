"""The stand-in for vLLM's engine-core client under an ``AsyncLLM``; what it shares is ``client``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from rayguard.engine.vllm.client import PUT_DOWN_S, HealingClient

if TYPE_CHECKING:
    from rayguard.engine.protocol import Carried, Verdicts
    from rayguard.engine.vllm.asking import Asked


class AsyncHealingClient(HealingClient):
    """In place of ``AsyncMPClient`` under an ``AsyncLLM``. Lives on the loop that first used it."""

    loop: asyncio.AbstractEventLoop | None = None
    asked: Asked | None = None  # a question of ours that is on its way

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
        self._in_hand = False
        while True:
            self.inflight.save_if_due(self._requests)
            if self._ready:
                self._in_hand = True
                return self._made_here()
            core = self.core
            try:
                outputs = await core.get_output_async()
            except Exception as error:  # noqa: BLE001 - whatever the core raises is a fault to diagnose
                await self._healed(error, core)
                continue
            if core is not self.core:
                continue  # too late: its successor makes these tokens again
            if self.asked is not None:
                self.asked.take(outputs)
            self._in_hand = True
            if self._see(outputs):
                for request in self._next_suspect():
                    with contextlib.suppress(Exception):  # a dead core: the next get_output says so
                        await core.add_request_async(request)
            return outputs

    async def add_request_async(self, request: Any) -> None:
        """Book the request and send it."""
        self.bind()
        sent = self._take(request)
        core = self.core
        if sent is None:
            return
        try:
            await core.add_request_async(sent)
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
        until = time.monotonic() + PUT_DOWN_S
        while self._in_hand and self._requests and time.monotonic() < until:  # noqa: ASYNC110 - a flag of ours
            await asyncio.sleep(0)  # vLLM's output handler lets others run between parts of one batch
        send, carried = self._plan(verdicts)
        # In the same turn: what comes from now on goes to this core, and the one before is heard no more.
        self.core = core
        for request in send:
            if request.request_id in self._requests:  # not aborted meanwhile
                await core.add_request_async(request)
        return carried

    async def ask(self, question: Asked, deadline_s: float, *, room: int) -> None:
        """Let the core answer beside what runs; not where ``room`` requests do: it would wait behind others.

        Raises:
            TimeoutError: The deadline passed.
        """
        if self.asked is not None or len(self._requests) >= room:
            return
        self.asked, core = question, self.core
        try:
            await core.add_request_async(question.request)
            await asyncio.wait_for(question.ended.wait(), deadline_s)
        finally:
            self.asked = None
            if not question.ended.is_set():
                with contextlib.suppress(Exception):  # a dead core has nothing left to abort
                    await core.abort_requests_async([question.id])

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
