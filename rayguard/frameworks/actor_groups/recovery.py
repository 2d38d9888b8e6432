"""How the ranks of a group come back: all are ended, and new ones are told what the old ones were.

What cannot be proved to be where it was is not brought back: the caller has the error that he would have had,
and the incident says why. A caller that waits for a while only has its time, and the recovery goes on.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from rayguard.errors import RecoveryTimeoutError
from rayguard.frameworks.actor_groups.effects import NOT_TWICE
from rayguard.frameworks.actor_groups.references import given
from rayguard.frameworks.actor_groups.watched_get import bare_of
from rayguard.frameworks.worker_groups import group_incidents, roll_call
from rayguard.frameworks.worker_groups.calls import Effect
from rayguard.harmless import counted, harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.frameworks.actor_groups.call_record import CallRecord
    from rayguard.frameworks.actor_groups.ranks import Ranks
    from rayguard.frameworks.actor_groups.references import Failed
    from rayguard.frameworks.actor_groups.sent_call import SentCall
    from rayguard.frameworks.worker_groups.policy import GroupPolicy
    from rayguard.recovery.incident import Incident


class Recovered(Protocol):
    """The group whose ranks come back."""

    ranks: Ranks
    record: CallRecord
    epoch: int

    @property
    def lock(self) -> threading.RLock:
        """Return what is held while anything changes."""

    def look(self) -> None:
        """See what other processes have done."""

    def why_not(self) -> str:
        """Say why the state cannot be made again; '' where it can."""

    def doubt(self, why: str) -> None:
        """Take note of something that cannot be made again."""

    def claimed(self) -> bool:
        """Say whether no other process makes the next ranks."""

    def serve(self) -> None:
        """Let all processes know the ranks that were made."""


class RankRebuild:
    """One making of new ranks: ``done`` when it has come to its end, ``over`` when nobody wants it.

    ``until``: its deadline (monotonic).
    """

    def __init__(self, within_s: float) -> None:
        self.done, self.over = threading.Event(), threading.Event()
        self.until = time.monotonic() + within_s
        self.error: BaseException | None = None


class GroupRecovery:
    """Recovers the ranks of one group, one at a time."""

    def __init__(self, group: Recovered, policy: GroupPolicy) -> None:
        self._whose, self._policy = weakref.ref(group), policy  # a group's ranks end with its last copy
        self._judging, self._lock = threading.Lock(), threading.Lock()
        self._going: RankRebuild | None = None
        self._restarts: tuple[float, ...] = ()
        self._open: Incident | None = None
        self._off = ""

    @property
    def _group(self) -> Recovered:
        """Return the group: whoever asks has it from there."""
        found = self._whose()
        if found is None:
            raise ReferenceError("the group has gone")
        return found

    def wait(self, within_s: float) -> None:
        """Wait until ranks that are being made are there, or for so long."""
        going = self._going
        if going is not None:
            going.done.wait(within_s)

    def answered(self, call: SentCall) -> None:
        """Close the incident once the new ranks have answered a call."""
        with self._lock:
            incident, going = self._open, self._going
            if incident is None or call.epoch != self._group.epoch:
                return
            if going is not None and (not going.done.is_set() or going.error is not None):
                return
            self._open = None
        told = sum(one.times > 1 for one in self._group.record.calls)
        group_incidents.recovered(incident, f"{max(told, 1)} calls were told again")

    def survived(self, error: Exception, failed: Failed, until: float | None) -> bool:
        """Say whether calls that came to nothing are made again now; see ``references.WaitedFor``."""
        left = _left(until, self._policy.rebuild_s)
        if not self._judging.acquire(timeout=left):
            if left < self._policy.rebuild_s:
                raise _too_late() from error
            return False
        try:
            self._end_of_another(until, error)
            if any(call.times != times for call, times in failed):
                return True  # since then
            return not self._off and self._recovered(error, [call for call, _ in failed], until)
        finally:
            self._judging.release()

    def _end_of_another(self, until: float | None, error: Exception) -> None:
        """Wait for a recovery that a caller before had no time for."""
        why_not, incident = self._finished(until, error), self._open
        if why_not and incident is not None:
            self._open = None
            group_incidents.failed(incident, error, why_not)

    def _recovered(self, error: Exception, calls: Sequence[SentCall], until: float | None) -> bool:
        group, open_before = self._group, self._open
        incident = None
        try:
            with group.lock:
                group.look()
            patience_s = roll_call.patience_s(error, self._policy.ask_s, self._policy.broken_s)
            # Also one that polls: else nobody would ever find the death.
            left = max(_left(until, patience_s), min(patience_s, self._policy.ask_s))
            dead = roll_call.dead_ranks(group.ranks.handles, left)
            if not dead:
                if left >= patience_s:  # else nobody had the time to say
                    self._nobody_died(error, calls)
                return False
            if open_before is not None:
                self._open = None
                group_incidents.failed(open_before, error, "the call that was interrupted failed again")
            incident = group_incidents.opened(group.ranks.name, calls[0].name, dead, error)
            for one in dead.values():  # Ray's frames hold them, and would hold this one until a collection
                one.__traceback__ = None
            why_not = self._why_not(calls)
        except Exception as failed:  # noqa: BLE001 - of ours, or of Ray: the caller has an error already
            counted("group", failed)
            why_not = f"what was told to its ranks cannot be read: {failed!r}"
        if not why_not:
            self._open = incident
            why_not = self._rebuilt(until, error)
        if why_not and incident is not None:
            self._open = None
            group_incidents.failed(incident, error, why_not)
        return not why_not

    def _nobody_died(self, error: Exception, calls: Sequence[SentCall]) -> None:
        changing = [call.name for call in calls if call.effect in {Effect.UPDATE, Effect.SETTING}]
        if changing:
            self._group.doubt(f"{changing[0]} raised {type(error).__name__} in the midst of its work")

    def _why_not(self, calls: Sequence[SentCall]) -> str:
        group, policy = self._group, self._policy
        with group.lock:
            why = group.why_not() or group.ranks.why_not(group.record.calls)
            not_twice = [call.name for call in group.record.calls if call.name in NOT_TWICE]
        if not why and not_twice:
            why = f"they died in {not_twice[0]}, which is not made again: {NOT_TWICE[not_twice[0]]}"
        often = [call.name for call in calls if call.times > policy.repeats]
        if not why and often:
            why = f"{often[0]} was made {policy.repeats + 1} times, and ended them each time"
        now = time.time()
        if not why and not policy.restarts.allows(self._restarts, now):
            most = policy.restarts
            why = f"they were made anew {most.max_restarts} times within {most.within_s:g} s"
        if not why and not group.claimed():
            why = "another process makes them"
        if not why:
            self._restarts = (*policy.restarts.recent(self._restarts, now), now)
        return why

    # -- new ranks

    def _rebuilt(self, until: float | None, error: Exception) -> str:
        """Make new ranks; return why they are not there, '' if they are."""
        going = self._going = RankRebuild(self._policy.rebuild_s)
        threading.Thread(target=self._rebuild, args=(going,), name="rayguard-group", daemon=True).start()
        return self._finished(until, error)

    def _finished(self, until: float | None, error: Exception) -> str:
        """Wait for what is under way; return why it failed, '' if it did not.

        Raises:
            ray.exceptions.GetTimeoutError: It goes on, and it is ``until``.
        """
        going = self._going
        if going is None:
            return ""
        left = _left(until, going.until - time.monotonic())
        if not going.done.wait(left):
            if time.monotonic() < going.until:
                raise _too_late() from error
            with self._group.lock:  # from here on, nothing that is made late serves
                going.over.set()
            going.error = RecoveryTimeoutError(f"not done within {self._policy.rebuild_s:g} s")
            going.done.set()
        self._going = None
        if going.error is None:
            return ""
        if not isinstance(going.error, RecoveryTimeoutError):
            counted("group", RuntimeError(f"{type(going.error).__name__}: {going.error}"))
        self._off = f"new ranks could not be brought to where the old ones were: {going.error!r}"
        self._group.doubt(self._off)
        with harmless("group"):  # the old ones have ended; of the new ones nobody knows where they are
            roll_call.end_all(self._group.ranks.handles, self._policy.end_s)
        return self._off

    def _rebuild(self, going: RankRebuild) -> None:
        """Do what has no deadline of its own, in a thread that ends when its ranks do."""
        try:
            self._make_and_tell(going)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            going.error = going.error or error
        finally:
            going.done.set()

    def _make_and_tell(self, going: RankRebuild) -> None:
        group, policy = self._group, self._policy
        roll_call.end_all(group.ranks.handles, policy.end_s)
        made = group.ranks.make_again()
        try:
            if not roll_call.all_ready(made, policy.rebuild_s):
                raise RecoveryTimeoutError("the new ranks did not come up in time")  # noqa: TRY301 - as any other
            with group.lock:
                if going.over.is_set():
                    raise RecoveryTimeoutError("nobody waits any more")  # noqa: TRY301 - as above
                group.epoch += 1
                group.ranks.replace(made)
                group.serve()
                told = [again for call in group.record.calls for again in self._told(call)]
        except BaseException:
            roll_call.end_all(made, policy.end_s)
            raise
        import ray  # noqa: PLC0415 - only where a group was made

        bare_of(ray)(told, timeout=policy.rebuild_s)
        with group.lock:
            _begin_now(group.record.calls)

    def _told(self, call: SentCall) -> list[object]:
        """Make a call again; return the references that nobody else waits for."""
        group = self._group
        answers: list[object] = []
        call.times, call.epoch, call.began = call.times + 1, group.epoch, time.monotonic()
        for part in call.parts:
            args, kwargs = part.kept.read()
            handle = group.ranks.handles[part.rank]
            again = getattr(handle, part.method).remote(
                *map(given.now_one, args), **{name: given.now_one(value) for name, value in kwargs.items()}
            )
            if part.answered:
                answers.append(again)
            else:
                part.again = again
        return answers


def _begin_now(calls: Sequence[SentCall]) -> None:
    """Take note that all before the calls at the end that are not answered has been made again."""
    for call in reversed(calls):
        if call.is_answered:
            return
        call.began = time.monotonic()


def _left(until: float | None, most_s: float) -> float:
    most_s = max(0.0, most_s)
    return most_s if until is None else max(0.0, min(most_s, until - time.monotonic()))


def _too_late() -> Exception:
    from ray.exceptions import GetTimeoutError  # noqa: PLC0415 - as above

    late: Exception = GetTimeoutError(
        "rayguard: the ranks that died are being made again, which takes longer"
    )
    return late
