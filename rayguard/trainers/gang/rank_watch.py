"""Waits for all ranks of a gang; notices at once who died, soon who is stopped, and in time who hangs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.trainers.gang.orders import CUT, LOOK
from rayguard.trainers.gang.verdict import GangVerdict, RankEnd, RankOutcome, decide_gang
from rayguard.trainers.guilty_rank import STOPPED, RankEvidence, guilty_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ray import ObjectRef

    from rayguard.trainers.gang.hosts import GangHost, GangHosts
    from rayguard.trainers.gang.orders import Orders
    from rayguard.trainers.gang.rank_error import RankReply
    from rayguard.trainers.gang.rank_look import RankLook

_ROUND_S = 0.2
_STOPPED_S = 1.0  # a debugger or a snapshot of the machine may stop a process for a moment
_ANSWER_S = 1.5  # of a rank that is asked where it stands; later, its process runs no other thread
_BETWEEN_S = 1.0  # two looks: what moved meanwhile does not hang
_STALE_S = 60.0  # told as the age of a beat that did not come at all
_GUILTY_LEAVE_S = 0.3  # who keeps the others waiting mostly stands where no cut reaches it
_AGAIN = 1.25  # a call that was looked at is looked at again after so many times its age


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of all ranks. ``guilty``: which rank hung, and why. ``cut_s``: until the last was out."""

    outcomes: tuple[RankOutcome, ...]
    guilty: str = ""
    waited_s: float = 0.0
    cut_s: float = 0.0

    @property
    def verdict(self) -> GangVerdict:
        """What to do about it."""
        return decide_gang(self.outcomes, guilty=self.guilty)


class RankWatch:
    """Waits for one call of all ranks. ``hosts`` are in the order of their ranks."""

    def __init__(self, orders: Orders, room: GangHosts, hosts: Sequence[GangHost]) -> None:
        self._orders, self._room, self._hosts = orders, room, list(hosts)
        self._stopped_since: dict[int, float] = {}

    def wait(
        self,
        replies: Sequence[ObjectRef],
        *,
        generation: int,
        suspicious_s: float,
        over_s: float,
        leave_s: float,
    ) -> Ended:
        """Return once all ranks have ended; where one fails, the others are taken out, and ended at last.

        ``replies`` are references to a ``RankReply`` each. After ``suspicious_s`` ranks are asked where they
        stand; after ``over_s`` the call is over in any case.
        """
        began, pending = time.monotonic(), dict(zip(replies, range(len(replies)), strict=True))
        found: dict[int, RankOutcome] = {}
        try:
            guilty, ranks = self._waited(pending, found, suspicious_s, over_s)
        except BaseException:  # Ctrl-C: the next call finds no rank in the midst of this one
            self._cut(pending, found, generation, leave_s)
            raise
        waited_s = time.monotonic() - began
        if pending or any(one.end is not RankEnd.ANSWERED for one in found.values()):
            self._cut(pending, found, generation, leave_s, frozenset(ranks))
        outcomes = tuple(found[rank] for rank in sorted(found))
        cut_s = time.monotonic() - began - waited_s
        return Ended(outcomes=outcomes, guilty=guilty, waited_s=waited_s, cut_s=cut_s)

    def _waited(
        self,
        pending: dict[ObjectRef, int],
        found: dict[int, RankOutcome],
        suspicious_s: float,
        over_s: float,
    ) -> tuple[str, tuple[int, ...]]:
        """Wait until all have answered, one has failed, or one hangs: who, and why."""
        began, look_at_s = time.monotonic(), suspicious_s
        while pending:
            self._arrived(pending, found, _ROUND_S)
            if any(one.end is not RankEnd.ANSWERED for one in found.values()):
                break
            waited_s = time.monotonic() - began
            guilty, ranks = self._stopped(pending.values())
            if not guilty and pending and waited_s > min(look_at_s, over_s):
                guilty, ranks = self._hangs(pending.values(), waited_s, over=waited_s > over_s)
                look_at_s = _AGAIN * (time.monotonic() - began)
            if guilty:
                return guilty, ranks
        return "", ()

    def _arrived(self, pending: dict[ObjectRef, int], found: dict[int, RankOutcome], wait_s: float) -> None:
        """Take what has arrived, after at most ``wait_s``."""
        import ray  # noqa: PLC0415 - only a gang's owner gets here

        for patience in (wait_s, 0.0):  # then what came at the same time
            if pending:
                done, _ = ray.wait(
                    list(pending), num_returns=1 if patience else len(pending), timeout=patience
                )
                for ref in done:
                    rank = pending.pop(ref)
                    found[rank] = _outcome(rank, ref)

    def _cut(
        self,
        pending: dict[ObjectRef, int],
        found: dict[int, RankOutcome],
        generation: int,
        leave_s: float,
        guilty: frozenset[int] = frozenset(),
    ) -> None:
        self._orders.give(CUT, generation=generation)
        began = time.monotonic()
        while pending:
            patience = min(leave_s, _GUILTY_LEAVE_S) if guilty.issuperset(pending.values()) else leave_s
            if (left := began + patience - time.monotonic()) <= 0:
                break
            self._arrived(pending, found, min(left, _ROUND_S))
        for rank in pending.values():
            process, here = self._hosts[rank].process, self._hosts[rank].node == self._room.here
            if here and process is not None and not process.alive():  # Ray is slow to tell
                found[rank] = RankOutcome(rank=rank, end=RankEnd.DEAD, cause=f"rank {rank} died")
            else:
                found[rank] = RankOutcome(rank=rank, end=RankEnd.STUCK, cause=f"rank {rank} did not come out")
        pending.clear()
        for rank, outcome in found.items():
            if outcome.lost:
                self._room.end(self._hosts[rank])

    def _stopped(self, ranks: Collection[int]) -> tuple[str, tuple[int, ...]]:
        now, stopped = time.monotonic(), []
        for rank in ranks:
            host = self._hosts[rank]
            if host.process is None or host.node != self._room.here or host.process.state() not in STOPPED:
                self._stopped_since.pop(rank, None)
            elif now - self._stopped_since.setdefault(rank, now) >= _STOPPED_S:
                stopped.append(RankEvidence(rank=rank, state="T"))
        if not stopped:
            return "", ()
        others = [RankEvidence(rank=rank) for rank in range(len(self._hosts))]
        theirs = {one.rank: one for one in (*others, *stopped)}
        verdict = guilty_ranks(list(theirs.values()))
        return verdict.why, verdict.ranks

    def _hangs(self, ranks: Collection[int], waited_s: float, *, over: bool) -> tuple[str, tuple[int, ...]]:
        """Look twice at the ranks that have not answered; say which one the others wait for, if they do."""
        asked = sorted(ranks)
        first = self._look(asked)
        threading.Event().wait(_BETWEEN_S)
        second = self._look(asked)
        evidence = [self._evidence(rank, second.get(rank)) for rank in asked]
        moved = any(
            first[rank]["collectives"] != second[rank]["collectives"]
            or (first[rank]["operation"] != second[rank]["operation"])
            for rank in asked
            if rank in first and rank in second
        )
        at_work = any(one["busy"] for one in second.values())
        waiting = any(one.in_collective for one in evidence)  # else nobody is kept: a rank is slow, say
        if not over and (moved or at_work or not waiting):
            return "", ()
        answered = [
            RankEvidence(rank=rank, answered=True) for rank in range(len(self._hosts)) if rank not in asked
        ]
        verdict = guilty_ranks([*evidence, *answered])
        if verdict.ranks:
            return f"{verdict.why} (after {waited_s:.0f} s)", verdict.ranks
        places = "; ".join(f"rank {one.rank}: {one.where}" for one in evidence if one.where)
        return f"no answer after {waited_s:.0f} s, and {verdict.why}: {places}", ()

    def _look(self, ranks: Sequence[int]) -> dict[int, RankLook]:
        number = self._orders.give(LOOK)
        names = {self._hosts[rank].name: rank for rank in ranks}
        answers = self._orders.answers(number, names, deadline_s=_ANSWER_S)
        return {names[name]: answer for name, answer in answers.items() if answer is not None}

    def _evidence(self, rank: int, seen: RankLook | None) -> RankEvidence:
        host = self._hosts[rank]
        here = host.process is not None and host.node == self._room.here
        state = host.process.state() if here and host.process is not None else ""
        if seen is None:
            return RankEvidence(rank=rank, state=state, beat_age_s=_STALE_S)
        return RankEvidence(
            rank=rank,
            state=state,
            beat_age_s=0.0,
            in_collective=seen["in_collective"],
            collectives=seen["collectives"],
            operation=seen["operation"],
            where=seen["where"],
        )


def _outcome(rank: int, ref: ObjectRef) -> RankOutcome:
    import ray  # noqa: PLC0415 - only a gang's owner gets here

    try:
        reply: RankReply = ray.get(ref)
    except ray.exceptions.ActorDiedError as error:
        return RankOutcome(rank=rank, end=RankEnd.DEAD, cause=f"rank {rank} died", error=error)
    except ray.exceptions.ActorUnavailableError as error:
        return RankOutcome(rank=rank, end=RankEnd.DEAD, cause=f"rank {rank} is out of reach", error=error)
    except ray.exceptions.RayTaskError as error:  # an argument that the rank's process cannot make anew
        cause = error.cause if isinstance(error.cause, Exception) else error
        return RankOutcome(rank=rank, end=RankEnd.RAISED, cause=str(cause), error=cause)
    except ray.exceptions.RayError as error:  # an argument is lost, say
        return RankOutcome(rank=rank, end=RankEnd.RAISED, cause=str(error), error=error)
    cause = reply.cause and f"rank {rank} raised {reply.cause}"
    return RankOutcome(rank=rank, end=reply.end, cause=cause, error=reply.raised())
