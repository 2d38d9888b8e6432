"""Hearing Ray's control process: a subscription that notices its own end, and another try after an outage.

Uses Ray's private interfaces, as do those who use it: ``rayguard.actors.pool.gcs``, ``rayguard.cluster``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_log = logging.getLogger("rayguard")
CALL_S = 5.0
_BATCH = 100
_EMPTY_S = 1.0  # a poll that returns nothing before this has lost its connection
AGAIN_S = (1.0, 5.0, 30.0)


async def news(subscriber: Any, *, subscribed: bool = False) -> AsyncIterator[tuple[str, Any]]:
    """Subscribe and yield (id in hex, row) as they are published.

    Raises:
        ConnectionError: The subscription ended: rows may be missing, read the table after the next one.
    """
    if not subscribed:
        await asyncio.wait_for(subscriber.subscribe(), CALL_S)
    while True:
        began = time.monotonic()
        rows = await subscriber.poll(batch_size=_BATCH)
        if not rows and time.monotonic() - began < _EMPTY_S:
            raise ConnectionError("the subscription ended")
        for key, row in rows:
            yield key.hex(), row


async def kept_up(
    line: Callable[[], Awaitable[None]], lost: str, again_s: tuple[float, ...] | None = None
) -> None:
    """Run ``line()`` anew whenever it fails, until cancelled; ``lost`` says what that means, once."""
    waits = again_s or AGAIN_S
    failures = 0
    while True:
        began = time.monotonic()
        try:
            await line()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - private interfaces may do anything
            failures = 1 if time.monotonic() - began > AGAIN_S[-1] else failures + 1
            if failures == 1:  # once for each outage
                TALLY.guard_error("gcs")
                _log.warning("rayguard: %s: %r", lost, error)
        await asyncio.sleep(waits[max(0, min(failures, len(waits)) - 1)])


async def all_at_once(*parts: Awaitable[None]) -> None:
    """Run all parts until one of them fails or ends, then end the others."""
    running = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
    finally:
        for part in running:
            part.cancel()
        await asyncio.gather(*running, return_exceptions=True)
