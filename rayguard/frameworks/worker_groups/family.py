"""The groups that share one set of workers: all answer a call, or all are begun anew and asked again.

What new workers are told again is ``history``, who has died ``roll_call``; how workers are made, and what the
framework calls them, is the business of the adapter (``Workers``).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from rayguard.errors import RecoveryTimeoutError
from rayguard.frameworks.worker_groups import group_incidents, roll_call
from rayguard.frameworks.worker_groups.calls import Effect
from rayguard.frameworks.worker_groups.history import History
from rayguard.frameworks.worker_groups.pending_call import PendingCall, here
from rayguard.frameworks.worker_groups.snapshots import Snapshots
from rayguard.harmless import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.frameworks.worker_groups.calls import GroupMethod
    from rayguard.frameworks.worker_groups.policy import GroupPolicy
    from rayguard.frameworks.worker_groups.workers import Workers
    from rayguard.recovery.incident import Incident

_log = logging.getLogger("rayguard")
_EVERYTHING = "*"  # no role has this name: nothing settles such a doubt
_MARGIN_S = 120.0


class GroupFamily:
    """Makes the calls of some groups, and recovers their workers."""

    def __init__(self, workers: Workers, policy: GroupPolicy) -> None:
        self.workers, self._policy = workers, policy
        self.epoch = 1
        self.history = History(most_bytes=policy.kept_bytes)
        self.off = ""  # why the groups are left alone from now on
        self._snapshots = Snapshots(workers, policy)
        self._restarts: tuple[float, ...] = ()
        self._lock = threading.RLock()
        # Until another call, which brings them back, has come to its end.
        self._wait_s = policy.rebuild_s + policy.end_s * 2 + _MARGIN_S
        self._rebuilding = False

    def call(
        self, method: GroupMethod, bare: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        """Return what the workers answer.

        Raises:
            BaseException: What a worker raised, or Ray, as if nobody looked after them.
        """
        if self.off or here.rebuilding:
            return bare(*args, **kwargs)
        if self._rebuilding and self._lock.acquire(timeout=self._wait_s):
            self._lock.release()
        pending = PendingCall(method, bare, args, kwargs)
        epoch, began = self.epoch, time.time()
        try:
            answer = pending.make(keep=self._is_to_keep(method))
        except Exception as error:  # noqa: BLE001 - the user's call: judged, and handed on
            answer = self._survived(pending, error, epoch)
        if method.effect is not Effect.NONE:
            try:
                self._note(pending, began)
            except Exception as error:  # noqa: BLE001 - of ours: the user's call has its answer
                counted("group", error)
                self._doubt(method, f"what {method.whole} did could not be kept: {error!r}")
        return answer

    def __reduce__(self) -> tuple[type[Elsewhere], tuple[()]]:
        """Send a group to another process, or copy it: what is done there is not seen here."""
        self.doubt("a copy of the group was made, whose calls keep no account")
        return Elsewhere, ()

    def doubt(self, why: str) -> None:
        """Take note of something that was done to the workers, or with them, that cannot be made again."""
        with self._lock:
            if not any(one == why for _, one in self.history.doubts):
                self.history = self.history.with_doubt(_EVERYTHING, why)

    def _doubt(self, method: GroupMethod, why: str) -> None:
        with self._lock:
            self.history = self.history.with_doubt(method.role, why)

    def _is_to_keep(self, method: GroupMethod) -> bool:
        """Say whether a call is kept as it is sent: not where a snapshot will follow it at once."""
        if method.effect in {Effect.NONE, Effect.SAVE, Effect.END}:
            return False
        return not self._is_followed(method)

    def _is_followed(self, method: GroupMethod) -> bool:
        """Say whether a snapshot follows a call. One that is not waited for is not held up by one."""
        return method.effect is Effect.UPDATE and method.blocking and self._snapshots.is_due(method)

    def _note(self, pending: PendingCall, began: float) -> None:
        """Take note of a call that all workers answered."""
        method = pending.method
        with self._lock:
            state = None
            if method.effect is Effect.SAVE:
                state = self._snapshots.saved(pending, began)
                if state is None:
                    return
            elif self._is_followed(method):
                state = self._snapshots.taken(method)
            if state is not None:
                self.history = self.history.with_state(state)
                return
            made = pending.kept()
            if made is None:
                self._doubt(method, f"what {method.whole} was called with cannot be kept")
            else:
                self.history = self.history.with_call(made)

    def _survived(self, pending: PendingCall, error: Exception, epoch: int) -> object:
        """Return what the call answers once the workers are back.

        Raises:
            Exception: Nobody has died, or they could not be brought back: the caller's own error.
        """
        for _ in range(self._policy.repeats):
            incident = None
            if not self._lock.acquire(timeout=self._wait_s):
                break  # another call does it, and has not come to an end in time
            try:
                if self.epoch == epoch:
                    incident = self._recovered(pending, error)
                    if incident is None:
                        break
                epoch = self.epoch
            finally:
                self._lock.release()
            began = time.monotonic()
            try:
                answer = pending.make(keep=self._is_to_keep(pending.method))
            except Exception as again:  # noqa: BLE001 - as in `call`
                if incident is not None:
                    group_incidents.failed(incident, again, "the call that was interrupted failed again")
                error = again
                continue
            if incident is not None:
                told = f"{len(self.history.calls)} calls were told again"
                took = f"the interrupted one then took {time.monotonic() - began:.1f} s"
                group_incidents.recovered(incident, f"{told}, {took}")
            return answer
        raise error

    def _recovered(self, pending: PendingCall, error: Exception) -> Incident | None:
        """Bring the workers back, and return the incident, still open; None where nothing is done."""
        incident, method = None, pending.method
        try:
            patience_s = roll_call.patience_s(error, self._policy.ask_s, self._policy.broken_s)
            dead = roll_call.dead_ranks(self.workers.handles, patience_s)
            if not dead:
                if pending.was_sent and method.effect not in {Effect.NONE, Effect.SAVE}:
                    self._doubt(
                        method, f"{method.whole} raised {type(error).__name__} in the midst of its work"
                    )
                return None
            incident = group_incidents.opened(self.workers.name, method.whole, dead, error)
            why_not = self._why_not()
            if not why_not:
                self._rebuild_or_try_again()
                return incident
        except Exception as failed:  # noqa: BLE001 - of ours, of Ray or of the framework: the caller has an error already
            counted("group", failed)
            why_not = f"new workers could not be brought to where the old ones were: {failed!r}"
            self.off = why_not
        if incident is not None:
            group_incidents.failed(incident, error, why_not)
        return None

    def _why_not(self) -> str:
        if self.history.doubt:
            return self.history.doubt
        now, budget = time.time(), self._policy.restarts
        if not budget.allows(self._restarts, now):
            return f"it was begun anew {budget.max_restarts} times within {budget.within_s:g} s"
        self._restarts = (*budget.recent(self._restarts, now), now)
        return ""

    def _rebuild_or_try_again(self) -> None:
        """Bring new workers to where the old ones were: once more where it fails, and the budget allows it.

        Raises:
            Exception: Whatever went wrong, the last time.
        """
        try:
            self._rebuild()
        except Exception as failed:
            if isinstance(failed, RecoveryTimeoutError) or self._why_not():
                raise
            counted("group", failed)
            self._rebuild()

    def _rebuild(self) -> None:
        """End all workers, make new ones and tell them all that the old ones were told.

        Raises:
            RecoveryTimeoutError: It took too long; the new ones are ended again.
            Exception: Whatever went wrong.
        """
        self._rebuilding = True
        try:
            roll_call.end_all(self.workers.handles, self._policy.end_s)
            self.epoch += 1
            failed: list[BaseException] = []
            done, over = threading.Event(), threading.Event()
            threading.Thread(
                target=self._rebuild_aside, args=(failed, done, over), name="rayguard-group", daemon=True
            ).start()
            if not done.wait(self._policy.rebuild_s):
                over.set()
                failed.append(RecoveryTimeoutError(f"not done within {self._policy.rebuild_s:g} s"))
            if failed:
                roll_call.end_all(self.workers.handles, self._policy.end_s)
                raise failed[0]
        finally:
            self._rebuilding = False

    def _rebuild_aside(
        self, failed: list[BaseException], done: threading.Event, over: threading.Event
    ) -> None:
        """Do what has no deadline of its own, in a thread that ends when its workers do."""
        here.rebuilding = True
        try:
            self.workers.make_again(self.epoch)
            if over.is_set():  # nobody waits any more: what was made since then ends too
                roll_call.end_all(self.workers.handles, self._policy.end_s)
                return
            if not roll_call.all_ready(self.workers.handles, self._policy.rebuild_s):
                raise RecoveryTimeoutError("the new workers did not come up in time")  # noqa: TRY301 - carried too
            with self._snapshots.shown():
                for made in self.history.calls:
                    made.kept.make()
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            failed.append(error)
        finally:
            done.set()


class Elsewhere:
    """What stands for a family where it is not at home: makes calls as they are."""

    @staticmethod
    def call(method: GroupMethod, bare: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Call the framework's own function."""
        del method
        return bare(*args, **kwargs)
