"""The deaths of a pool's actors: what was left behind is taken, what was cut is given back, and all is told.

Why an actor died, its next life tells where it is guarded (``rayguard.actors.guard.restarts``); here what the
pool knows is added to that incident. Where no next life will come, the pool tells what there is. The books
are ``lost_lives``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.actors.token_logs import LeftBehind
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.harmless import harmless
from rayguard.pool.actors.messages import Hello
from rayguard.pool.lost_lives import LostLife, LostLives
from rayguard.ray_internals.worker import connected_ray
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.remedy import HIRED_ANEW, Action, Remedy

if TYPE_CHECKING:
    from collections.abc import Collection

    from rayguard.pool.actors.connection import ActorConnection
    from rayguard.pool.book import Book
    from rayguard.pool.entries import Lost
    from rayguard.pool.ports import ActorProvider
    from rayguard.pool.tickets import Tickets

_log = logging.getLogger("rayguard")
_RESTARTED = Remedy(action=Action.RESTART_PROCESS)  # by Ray
_ADVICE = "read the log of the actor's process (`ray logs`), and the kernel's (`dmesg`) for a kill for memory"
_SLOW_S = 3.0  # with a spare it would have been less
_SPARES = "`PoolPolicy(spares=1)` would have saved it the start of a process and the import of vLLM"
_CLOSED = "the pool was closed before another one served in its place"


class ActorDeaths:
    """The deaths of one pool's actors. Every method on its loop; what is written is written in a thread."""

    def __init__(self, book: Book, tickets: Tickets, provider: ActorProvider, *, spares: int = 0) -> None:
        """``spares``: how many workers wait on each node for the next life of an actor."""
        self._spares = spares
        self.losses = LostLives(tickets.tally, self._tell)
        self._book = book
        self._tickets = tickets
        self._provider = provider

    def take(self, connection: ActorConnection, why: str, *, blame: bool) -> Lost:
        """A life is over: take what its log has, and put its requests back into the queue."""
        name, hello, slot = connection.name, connection.hello, self._book.slots.get(connection.name)
        count = 0 if slot is None else len(slot.running)
        if blame:
            _log.warning("rayguard: %s is gone (%s); %d requests go on elsewhere", name, why, count)
        uncounted = 0 if not count else None
        with harmless("token_log"):
            left = None if hello is None else self._provider.left_behind(hello)
            if left is not None:
                uncounted = uncounted if left.lost is None else left.lost
                for request_id in left.tokens:
                    entry = self._book.entries.get(request_id)
                    generated = left.answer_to(request_id, "" if entry is None else entry.question)
                    if generated is not None and self._book.progressed(name, request_id, 0, generated):
                        self._tickets.ledger.progressed(request_id, 0, generated)
            self._tickets.ledger.flush()
        lost = self._book.lose(name, blame=blame)
        if hello is not None:
            loss = LostLife(
                name=name,
                hello=hello,
                kind=connection.kind,
                why=why,
                began_at=time.monotonic(),
                detected_at=time.time(),
                requests=count,
                saved=sum(len(self._book.entries[one].generated) for one in lost.requeued),
                lost=uncounted,
                cut=set(lost.requeued),
            )
            self.losses.began(loss)
        return lost

    def left_in(self, token_log: str, node: str) -> LeftBehind:
        """Return what a log has, by request id, of an actor of this pool's owner in its last life."""
        with harmless("token_log"):
            return self._provider.left_behind(Hello(session="", token_log=token_log, node_id=node))
        return LeftBehind()

    def look(self, known: Collection[str]) -> None:
        """Tell what is over; ``known`` are the requests that are here."""
        if self.losses.open:
            self.losses.look(self._serves, known, time.monotonic())

    def _serves(self, name: str) -> bool:
        slot = self._book.slots.get(name)
        return slot is not None and slot.open

    def for_good(self, name: str) -> None:
        """An actor comes back no more, so that no next life tells why: its story is opened here."""
        for loss in self.losses.open:
            if loss.name == name and loss.incident is None and loss.hello.actor_id:
                loss.incident = _own(loss, self._provider.target, HIRED_ANEW)
                asyncio.get_running_loop().run_in_executor(None, _write, loss.incident)

    def _tell(self, loss: LostLife) -> None:
        if loss.hello.actor_id:  # without Ray there is no journal to write into
            told = partial(_told, loss, self._provider.target, self._spares)
            asyncio.get_running_loop().run_in_executor(None, told)

    async def close(self) -> None:
        """Tell what is left: nobody will serve in the place of those that died."""
        left, target = self.losses.close(_CLOSED), self._provider.target
        loop = asyncio.get_running_loop()
        told = [
            loop.run_in_executor(None, _told, one, target, self._spares) for one in left if one.hello.actor_id
        ]
        await asyncio.gather(*told)


def _own(loss: LostLife, target: str, remedy: Remedy = _RESTARTED) -> Incident:
    """Return the incident of a death that only the pool knows of, still open."""
    ray = connected_ray()
    of_node = loss.kind is Kind.NODE_DIED
    return Incident(
        kind=loss.kind.value,
        scope=(Scope.NODE if of_node else Scope.PROCESS).value,
        cause=f"the pool lost its actor: {loss.why}",
        signature="rayguard.pool",
        confidence=0.9,
        advice=_ADVICE,
        target=target,
        actor_id=loss.hello.actor_id,
        job_id="" if ray is None else ray.get_runtime_context().get_job_id(),
        node=loss.hello.node_id,
        pid=loss.hello.pid,
        detected_at=loss.detected_at,
        remedy=remedy.label,
        requests=loss.requests,
        tokens_saved=loss.saved,
        tokens_lost=loss.lost,
    )


def _told(loss: LostLife, target: str, spares: int) -> None:
    """Write how it ended. Blocks for milliseconds."""
    with harmless("incident"):
        own = loss.incident or _own(loss, target)
        served_at = None if loss.serve_s is None else loss.detected_at + loss.serve_s
        where = ", ".join(f"{name} ({count})" for name, count in sorted(loss.went_to.items()))
        notes = [f"its requests went on at {where}"] if where else []
        if not spares and (loss.serve_s or 0.0) > _SLOW_S:
            notes.append(f"its next life served after {loss.serve_s:.1f} s: {_SPARES}")
        _write(
            replace(
                own,
                closed_at=time.time() if served_at is None else served_at,
                recover_s=None if served_at is None else max(0.0, served_at - own.detected_at),
                resume_s=loss.resume_s,
                requests=loss.requests,
                tokens_saved=loss.saved,
                tokens_lost=loss.lost,
                outcome=_outcome(loss) if own.outcome is Outcome.OPEN else own.outcome,
                notes=(*own.notes, *notes, *filter(None, [loss.over])),
            ),
            counted=own.outcome is not Outcome.OPEN,
        )


def _outcome(loss: LostLife) -> Outcome:
    return Outcome.FAILED if loss.failed or loss.cut else Outcome.RECOVERED


def _write(incident: Incident, *, counted: bool = False) -> None:
    """Write an incident; ``counted``: it is in somebody's numbers, as it is told elsewhere as well."""
    with harmless("journal"):
        if not counted:
            incidents.record(incident)
            return
        from rayguard.recovery.journal import default_journal  # noqa: PLC0415 - costs 0.2 s on first use

        default_journal().write(incident)
