"""Hearing Ray's control process: a subscription that notices its own end, and another try after an outage.

Whom to hear is ``gcs_connection``; of the actors that this process calls, its own core worker has heard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, cast

from rayguard.errors import CapabilityOffError
from rayguard.harmless import count
from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_log = logging.getLogger("rayguard")
CALL_S = 5.0
PROCESS_OVER = ("RESTARTING", "DEAD")  # the states of an actor whose process has ended
_BATCH = 100
_EMPTY_S = 1.0  # a poll that returns nothing before this has lost its connection
AGAIN_S = (1.0, 5.0, 30.0)
_heard = Capability(
    "word on actors",
    "a pool learns of a death on another node by its next call, a second or two later",
    {
        "worker": "ray._private.worker:global_worker",
        "state": "ray._raylet:CoreWorker.get_local_actor_state",
        "states": "ray.core.generated.gcs_pb2:ActorTableData.ActorState",
    },
    parts=("core_worker", "gcs_client", "get_draining_nodes"),
    test=lambda found: _over(found["states"]),
)


class LocalActorStates:
    """What this process's core worker has heard of the actors that it calls: 0.3 us, and no connection.

    Raises:
        CapabilityOffError: Ray has moved it.
    """

    def __init__(self) -> None:
        from ray import ActorID  # noqa: PLC0415 - only where Ray runs

        found = _heard.found()
        worker = found["worker"]
        self._actor_id = ActorID.from_hex
        self._state_of = _heard.part(worker, "core_worker").get_local_actor_state
        self._draining = _heard.part(_heard.part(worker, "gcs_client"), "get_draining_nodes")
        self._over = _over(found["states"])

    def is_over(self, actor_id: str) -> bool:
        """Say whether the process of an actor has ended."""
        return self._state_of(self._actor_id(actor_id)) in self._over

    def draining(self) -> dict[str, int]:
        """Ask for the deadlines (wall clock, ms; 0: none) of the nodes that drain."""
        return cast("dict[str, int]", self._draining(CALL_S))


def _over(states: Any) -> set[int]:
    return {states.Value(name) for name in PROCESS_OVER}


async def news(subscriber: Any, *, subscribed: bool = False) -> AsyncIterator[tuple[str, Any]]:
    """Subscribe and yield (id in hex, row) as one of Ray's subscribers has them.

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
    """Run ``line()`` anew whenever it fails, until cancelled; ``lost`` says what that means, once.

    Returns only where Ray has moved what ``line`` needs.
    """
    waits = again_s or AGAIN_S
    failures = 0
    while True:
        began = time.monotonic()
        try:
            await line()
        except CapabilityOffError:
            return  # it was said, and trying again would not help
        except Exception as error:  # noqa: BLE001 - private interfaces may do anything
            failures = 1 if time.monotonic() - began > AGAIN_S[-1] else failures + 1
            if failures == 1:  # once for each outage
                count("gcs")
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
