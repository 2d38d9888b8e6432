"""A gang at work: all ranks answer a call, or all go back and make it again. For one thread at a time.

What became of each rank is ``rank_watch``, what follows from it ``verdict``; who sits where, and how a
generation begins, is ``seats``.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rayguard.errors import GangCallError, GaveUpError, StateLostError
from rayguard.trainers.gang import checkpoint, gang_incidents
from rayguard.trainers.gang.call_pace import CallPace
from rayguard.trainers.gang.rank_group import StateOrigin
from rayguard.trainers.gang.rank_watch import Ended, RankWatch
from rayguard.trainers.gang.shares import shares_of
from rayguard.trainers.gang.verdict import GangVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ray import ObjectRef

    from rayguard.trainers.gang.hosts import GangHost
    from rayguard.trainers.gang.policy import GangPolicy
    from rayguard.trainers.gang.seats import GangSeats

_log = logging.getLogger("rayguard")
_CALL_ADVICE = "See `rayguard incidents`, and what this call does at that place"
_GANG_ADVICE = "read `rayguard incidents` and the ranks' logs; then make the gang anew"


class GangCore:
    """Runs the calls of a gang, and recovers it."""

    def __init__(self, name: str, seats: GangSeats, policy: GangPolicy) -> None:
        self.name, self.seats = name, seats
        self.number = 0  # calls whose effect all ranks have
        self.recoveries = 0
        self.causes: list[str] = []
        self._policy = policy
        self._pace = CallPace(policy.first_call_s, policy.call_s)
        self._restarts: tuple[float, ...] = ()
        self._doubtful = ""  # why the ranks may be in the midst of something: to be begun anew first
        self.over: BaseException | None = None  # the gang has given up

    def begin(self) -> None:
        """Let the ranks join for the first time.

        Raises:
            BaseException: What ``setup`` raised on a rank, or why there is no gang.
        """
        disk = self._on_disk()
        if disk is not None:
            _log.warning("rayguard: %s goes on from %s, after %d calls", self.name, disk.folder, disk.number)
            self.number = disk.number
        ended = self._joined(StateOrigin(self.number, disk=disk))
        verdict = ended.verdict
        if not verdict.ok:
            raise _error_of(verdict) or GaveUpError(self.name, verdict.cause, (), _GANG_ADVICE)

    def call(
        self,
        method: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        each: object,
        deadline_s: float | None,
    ) -> list[object]:
        """Return what each rank's method returned; after as many recoveries as it takes.

        Raises:
            BaseException: What the method raised on a rank; all are as they were before the call.
            GangCallError: It failed, each time that it was made, for another reason than its own error.
            GaveUpError: The gang cannot be kept alive.
        """
        import ray  # noqa: PLC0415 - only a gang's owner gets here

        def begin(host: GangHost, share: tuple[object, ...]) -> tuple[ObjectRef, ObjectRef]:
            call = host.actor.call.options(num_returns=2)
            reply, value = call.remote(self.number + 1, method, *args, *share, **kwargs)
            return reply, value

        values = self._made(method, begin, each, deadline_s)
        self.number += 1
        self.seats.copies.completed(self.number)
        if self._policy.checkpoint is not None and self.number % self._policy.checkpoint_every == 0:
            checkpoint.complete(str(self._policy.checkpoint), self.number, self.seats.size)
        found: list[object] = ray.get(values)
        return found

    def weights(self) -> tuple[str, ObjectRef]:
        """Return the version of all weights, and a reference to them.

        Raises:
            BaseException: As ``call``.
        """

        def begin(host: GangHost, _: tuple[object, ...]) -> tuple[ObjectRef, ObjectRef]:
            reply, value = host.actor.weights.options(num_returns=2).remote()
            return reply, value

        values = self._made("weights", begin, None, None)
        return str(self.number), values[0]

    def _made(
        self,
        method: str,
        begin: Callable[[GangHost, tuple[object, ...]], tuple[ObjectRef, ObjectRef]],
        each: object,
        deadline_s: float | None,
    ) -> list[ObjectRef]:
        """Make a call until all ranks answer; return references to what they returned."""
        if self.over is not None:
            raise self.over
        if self._doubtful:
            self.recover(GangVerdict(cause=self._doubtful))
        causes: list[str] = []
        while True:
            hosts, given = self.seats.taken(), shares_of(each, self.seats.size)
            self._doubtful = f"{method} was interrupted"
            calls = [begin(host, share) for host, share in zip(hosts, given, strict=True)]
            ended = self._watched(method, hosts, [reply for reply, _ in calls], deadline_s)
            verdict = ended.verdict
            if verdict.ok:
                self._pace.took(method, ended.waited_s)
                self._doubtful = ""
                self.seats.top_up()
                return [value for _, value in calls]
            causes.append(verdict.cause)
            self.recover(verdict, ended)
            if verdict.error is not None:
                raise _error_of(verdict) or GaveUpError(self.name, verdict.cause, (), _CALL_ADVICE)
            if len(causes) > self._policy.repeats:
                last = next((one.error for one in ended.outcomes if one.error is not None), None)
                raise GangCallError(f"{self.name}.{method}", tuple(causes), _CALL_ADVICE) from last

    def recover(self, verdict: GangVerdict, ended: Ended | None = None) -> None:
        """Begin a new generation in the state of the last call that all ranks completed.

        Raises:
            GaveUpError: It cannot be done, or was done too often.
        """
        incident = gang_incidents.opened(self.name, verdict, ended)
        self.seats.found_dead.clear()
        self._doubtful = verdict.cause or "the gang was interrupted"
        tried = 0
        try:
            while True:
                self._spend(verdict, tried)
                tried += 1
                verdict, origin = self._begun_anew(verdict.cause, replace_all=tried == _REPLACE_ALL)
                incident = gang_incidents.with_dead(incident, self.seats.found_dead)
                if verdict.ok:
                    incident = gang_incidents.from_origin(incident, origin)
                    break
        except BaseException as error:
            gang_incidents.closed(incident, error)
            if isinstance(error, GaveUpError):
                self.over = error
            raise
        self._doubtful = ""
        self.recoveries += 1
        gang_incidents.closed(incident, None)

    def _begun_anew(self, cause: str, *, replace_all: bool) -> tuple[GangVerdict, StateOrigin]:
        """Let all ranks join in the newest state that can be had; return what became of it, and which it is.

        Raises:
            StateLostError: Done, and it is of an older call; says which calls are to be made again.
            GaveUpError: There are too few ranks.
        """
        verdict, origin = GangVerdict(), StateOrigin(self.number)
        self.seats.fill(replace_all=replace_all)
        for attempt, origin in enumerate(self._origins()):
            if attempt:
                self.seats.fill()
            verdict = self._joined(origin).verdict
            if verdict.ok or not isinstance(_error_of(verdict), StateLostError):
                break
            cause = verdict.cause
        lost = self.number
        if verdict.ok and origin.number != lost:
            self.number, self._doubtful = origin.number, ""
            self.recoveries += 1
            raise StateLostError(
                f"{cause}. The gang of {self.name} has gone back to {origin} after {origin.number} calls: "
                f"make calls {origin.number + 1} to {lost} again, and then this one"
            )
        return verdict, origin

    def _origins(self) -> Iterator[StateOrigin]:
        """Return where the state may come from; when the next one is asked for, more is known of nodes."""
        kept, lost = StateOrigin(self.number), self.seats.has_lost_nodes()
        if not lost:
            yield kept
        copied, disk = self.seats.copied(self.number), self._on_disk()
        saved = None if disk is None else StateOrigin(disk.number, disk=disk)
        others = [one for one in (copied, saved) if one is not None]
        yield from sorted(others, key=lambda one: one.number, reverse=True)
        if lost and not others:
            yield kept  # cannot be: whose state is missing is told

    def _on_disk(self) -> checkpoint.DiskState | None:
        place = self._policy.checkpoint
        return None if place is None else checkpoint.newest(str(place))

    def resize(self, ranks: int) -> None:
        """Go on with another number of ranks, between two calls.

        Raises:
            RecoveryTimeoutError: There is no room for them; the gang stays as it is.
            GaveUpError: It cannot be kept alive.
        """
        if self.over is not None:
            raise self.over
        self.seats.resize(ranks)
        self._doubtful = "the gang was to get another size"
        ended = self._joined(StateOrigin(self.number))
        verdict = ended.verdict
        if verdict.ok:
            self._doubtful = ""
        else:
            self.recover(verdict, ended)

    def _watched(
        self, method: str, hosts: list[GangHost], replies: list[ObjectRef], deadline_s: float | None
    ) -> Ended:
        pace = self._pace
        return RankWatch(self.seats.orders, self.seats.room, hosts).wait(
            replies,
            generation=self.seats.generation,
            suspicious_s=deadline_s or pace.suspicious_s(method),
            over_s=deadline_s or pace.over_s(),
            leave_s=self._policy.leave_s,
        )

    def _joined(self, origin: StateOrigin) -> Ended:
        before = self.seats.size
        ended = self.seats.join(origin)
        if before != self.seats.size:
            self._pace.changed()
        return ended

    def _spend(self, verdict: GangVerdict, tried: int) -> None:
        now, budget = time.time(), self._policy.restarts
        self.causes.append(verdict.cause)
        del self.causes[:-_TOLD]
        error = verdict.error
        if tried and error is not None:  # `setup`, or the state, refuses: it would again
            raise GaveUpError(self.name, verdict.cause, tuple(self.causes), _GANG_ADVICE) from error.error
        if tried >= _ATTEMPTS or not budget.allows(self._restarts, now):
            raise GaveUpError(self.name, verdict.cause, tuple(self.causes), _GANG_ADVICE)
        self._restarts = (*budget.recent(self._restarts, now), now)


_REPLACE_ALL = 3  # the attempt at which no process of before is trusted any more
_ATTEMPTS = 4
_TOLD = 8


def _error_of(verdict: GangVerdict) -> BaseException | None:
    return None if verdict.error is None else verdict.error.error
