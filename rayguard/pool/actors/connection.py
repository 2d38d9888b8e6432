"""The pool's line to one rollout actor: through all its lives, whatever the actor's process goes through.

Knows nothing of other actors. What becomes of the requests is ``rayguard.pool.core``'s; whether silence means
anything is asked of ``freeze_verdict``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from rayguard.errors import WrongSessionError
from rayguard.faults.diagnosis import Kind
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.pool.actors.messages import Hello, RolloutActor
    from rayguard.pool.ports import PoolPort
    from rayguard.pool.values.request import Order

POLL_S = 1.0  # an actor answers at least this often: its sign of life
_HELLO_PAUSE_S = 0.2
_SEND_S = 60.0


class ActorConnection:
    """One actor. ``run`` goes on until ``close``, or until the actor has no further life."""

    def __init__(self, name: str, actor: RolloutActor, owner: PoolPort, *, hello_s: float) -> None:
        self.name = name
        self.actor = actor
        self.hello: Hello | None = None
        self.heard_at = time.monotonic()
        self.killed = False  # by us, for being frozen: its requests are not to blame
        self.kind = Kind.UNKNOWN  # of what ended the last life
        self._owner = owner
        self._hello_s = hello_s
        self._over: asyncio.Future[tuple[str, Kind]] | None = None
        self._closed = False

    @property
    def session(self) -> str:
        """The present life, empty while there is none."""
        return "" if self.hello is None else self.hello.session

    async def run(self) -> None:
        """Meet each life of the actor and listen to it until it ends."""
        while not self._closed:
            try:
                hello = await asyncio.wait_for(self.actor.hello(), self._hello_s)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - Ray's errors, told apart by name
                if _final(error):
                    self._owner.ended(self.name, error)
                    return
                await asyncio.sleep(_HELLO_PAUSE_S)
                continue
            await self._live(hello)

    async def _live(self, hello: Hello) -> None:
        self.hello, self.heard_at, self.killed = hello, time.monotonic(), False
        over = self._over = asyncio.get_running_loop().create_future()
        self._owner.joined(self.name, hello)
        listening = asyncio.ensure_future(self._listen(hello))
        try:
            await asyncio.wait({listening, over}, return_when=asyncio.FIRST_COMPLETED)
            why, self.kind = over.result() if over.done() else _said(listening)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        self._owner.left(self.name, why, blame=not self.killed and not self._closed)
        self.hello = None

    async def _listen(self, hello: Hello) -> None:
        taken = 0
        while True:
            report = await self.actor.poll(hello.session, taken, POLL_S, self._owner.pace_s(hello))
            self.heard_at = time.monotonic()
            fresh = report.events[max(0, taken - report.first) :]
            taken = max(taken, report.first + len(report.events))
            self._owner.heard(self.name, fresh, report)

    async def send(self, orders: Sequence[Order]) -> None:
        """Give the actor requests; where that fails this life is over (``left`` says so of all of them)."""
        session, sending = self.session, asyncio.current_task()

        def late() -> None:
            self.over(f"it took no requests in {_SEND_S:.0f} s", session, Kind.ACTOR_UNAVAILABLE)
            if sending is not None:
                sending.cancel()

        limit = asyncio.get_running_loop().call_later(_SEND_S, late)  # ``wait_for`` costs another task
        try:
            await self.actor.submit(session, orders)
        except Exception as error:  # noqa: BLE001 - a dead or wedged actor
            self.over(f"it did not take requests: {type(error).__name__}: {error}", session, kind_of(error))
        finally:
            limit.cancel()

    def over(self, why: str, session: str = "", kind: Kind = Kind.ACTOR_DIED) -> None:
        """End the present life here: the process is gone, or must be taken for gone."""
        if self._over is not None and not self._over.done() and session in {"", self.session}:
            self._over.set_result((why, kind))

    def close(self) -> None:
        """Listen no more."""
        self._closed = True
        self.over("the pool closed it")

    async def abort(self, ids: Sequence[str]) -> None:
        """Let the actor give up requests, if it still lives."""
        if self.session:
            with harmless("pool"), contextlib.suppress(WrongSessionError, asyncio.TimeoutError):
                await asyncio.wait_for(self.actor.abort(self.session, ids), _SEND_S)


def _said(listening: asyncio.Future[None]) -> tuple[str, Kind]:
    error = listening.exception()
    if error is None:
        return "it stopped answering", Kind.UNKNOWN
    return f"{type(error).__name__}: {error}", kind_of(error)


def kind_of(error: BaseException) -> Kind:
    """Return what an actor's error to its pool means for it. A call to another life means that one died."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"ActorDiedError", "WrongSessionError"}:
        return Kind.ACTOR_DIED
    return Kind.ACTOR_UNAVAILABLE if names & {"ActorUnavailableError", "TimeoutError"} else Kind.UNKNOWN


def _final(error: BaseException) -> bool:
    """Say whether Ray will not start the actor again, or it has given up itself."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ActorDiedError", "GaveUpError", "ConfigError", "ActorUnschedulableError"})
