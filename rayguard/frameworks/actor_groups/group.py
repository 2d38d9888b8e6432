"""A group whose calls are kept, and whose ranks come back together: for all copies of it in this process.

What must be told again is ``call_record``, who keeps it among processes ``shared_record``, how new ranks are
brought to where the old ones were ``recovery``; how they are made is the business of the adapter (``Ranks``).
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.frameworks.actor_groups.call_record import CallRecord
from rayguard.frameworks.actor_groups.effects import effect_of
from rayguard.frameworks.actor_groups.recording import RecordingHandle
from rayguard.frameworks.actor_groups.recovery import GroupRecovery
from rayguard.frameworks.actor_groups.references import given
from rayguard.frameworks.actor_groups.sent_call import Arguments, SentCall
from rayguard.frameworks.worker_groups.calls import Effect
from rayguard.harmless import counted, harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.frameworks.actor_groups.ranks import Ranks
    from rayguard.frameworks.actor_groups.references import Failed
    from rayguard.frameworks.actor_groups.shared_record import Head, SharedRecord
    from rayguard.frameworks.worker_groups.policy import GroupPolicy

_MARGIN_S = 120.0
_BLIND_S = 60.0  # until Ray's table is asked again after it did not answer
_BLIND = "what other processes did to it could not be asked"
_ELSEWHERE = "another process has updated its ranks, which nobody else can make again"
_AWAY = "it was sent to another process, whose calls are not known here"


class LookedAfterGroup:
    """Sends the calls of a group, and has its ranks recovered where they came to nothing."""

    def __init__(self, ranks: Ranks, shared: SharedRecord, me: str, policy: GroupPolicy) -> None:
        self.ranks, self.epoch = ranks, 1
        self._shared, self._me, self._policy = shared, me, policy
        self.record = self._new_record()
        self._head: Head | None = None
        self._away = False  # this process has sent it to another one
        self._untold = ""  # a doubt that the others do not know of yet
        self._blind_until = 0.0
        self._lock = threading.RLock()
        self._recovery = GroupRecovery(self, policy)
        self._wait_s = policy.rebuild_s + policy.end_s * 2 + _MARGIN_S

    def made(self, head: Head) -> None:
        """Take note that this process made it."""
        self._head = self._shared.lead(head)
        self._shared.ends_with_us()

    # -- calls

    def call(self, name: str, bare: Callable[[list[object]], object]) -> object:
        """Return what ``bare`` answers, which sends a call by the handles that it is given.

        Raises:
            BaseException: What it raises.
        """
        call = self._begun(name)
        if call is None:
            return bare(list(self.ranks.handles))
        send = PartSender(self, call)
        handles = [RecordingHandle(rank, one, send) for rank, one in enumerate(self.ranks.handles)]
        sent = False
        try:
            answer = bare(list(handles))
            sent = True
            return answer
        finally:
            try:
                self._sent(call, all_ranks=sent)
            except Exception as error:  # noqa: BLE001 - of ours: the user's call goes on
                counted("group", error)
                self.doubt(f"of what {call.name} was sent with no note could be taken")

    def send(self, call: SentCall, rank: int, method: str, arguments: Arguments) -> object:
        """Send a call's part to a rank; return the reference."""
        self._recovery.wait(self._wait_s)
        args = tuple(map(given.now_one, arguments.args))
        kwargs = {name: given.now_one(value) for name, value in arguments.kwargs.items()}
        with self._lock:
            reference = getattr(self.ranks.handles[rank], method).remote(*args, **kwargs)
            part = None
            with harmless("group"):
                part = call.add(rank, method, Arguments(args, kwargs), reference)
        if part is None:
            self.doubt(f"what {call.name} was called with cannot be kept")
        else:
            with harmless("group"):
                given.add(self, call, part)
        return reference

    def _begun(self, name: str) -> SentCall | None:
        """Take note of a call that is to be sent; None where no note is taken."""
        self._recovery.wait(self._wait_s)
        effect = effect_of(name)
        call = SentCall(name, effect or Effect.UPDATE, self.epoch)
        with self._lock:
            if time.monotonic() < self._blind_until:
                return None
            try:
                self.look()
                if call.changes_state:
                    self._take_over()
            except Exception as error:  # noqa: BLE001 - of Ray's table: the user's call goes on
                counted("group", error)
                self._blind_until = time.monotonic() + _BLIND_S
                self._untold = self._untold or _BLIND
                self.record.in_doubt(_BLIND)
                return None
            if effect is None:
                self.doubt(f"what {name} does to its ranks is not known")
            call.epoch = self.epoch
            self.record.sent(call)
        return call

    def _sent(self, call: SentCall, *, all_ranks: bool) -> None:
        with self._lock:
            call.sealed()
            if not call.parts:
                self.record.left_out(call)
                return
            self.record.weighed()
            if not all_ranks and call.changes_state:
                self.doubt(f"{call.name} was sent to some ranks only")
            if self._head is not None and call.changes_state and self._is_holder():
                self._head = self._shared.tell(self._head, call)

    # -- answers: ``references.WaitedFor``

    def over(self, call: SentCall, *, dropped: bool) -> None:
        """Take note that a call's caller has all answers, or wants none."""
        with harmless("group"):
            with self._lock:
                call.took_s = time.monotonic() - call.began
                self.record.over(call)
                self.record.weighed()
            if not dropped:
                self._recovery.answered(call)

    def survived(self, error: Exception, failed: Failed, until: float | None) -> bool:
        """Say whether these calls, which came to nothing, are made again now.

        Raises:
            ray.exceptions.GetTimeoutError: It is not known yet, and it is ``until`` (monotonic).
        """
        return self._recovery.survived(error, failed, until)

    # -- who keeps the record

    @property
    def lock(self) -> threading.RLock:
        """Return what is held while anything here changes."""
        return self._lock

    def look(self) -> None:
        """See what other processes have done: other ranks serve, or another keeps the record."""
        head = self._shared.head()
        if head is None:
            return
        if head.epoch > self.epoch:
            self.ranks.replace(self._shared.ranks(head.epoch))
            self.epoch = head.epoch
        if self._head is not None and self._is_holder() and head.holder != self._me:
            self._begin_record()  # ours is not the whole one any more
        self._head = head
        if self._untold:
            self.doubt(self._untold)

    def why_not(self) -> str:
        """Say why the state of its ranks cannot be made again by this process; '' where it can."""
        if self._head is None:
            return "nobody knows what other processes did to it"
        if self._away:
            return _AWAY
        if not self._is_holder():
            if self._head.more:
                return _ELSEWHERE
            self._take_over()
        return self._head.doubt or self.record.doubt

    def doubt(self, why: str) -> None:
        """Take note of something that was done to the ranks, or with them, that nobody can make again."""
        with self._lock:
            self.record.in_doubt(why)
            self._untold = self._untold or why
            with harmless("group"):
                if self._head is not None and not self._head.doubt:
                    self._head = self._shared.lead(replace(self._head, doubt=self._untold))
                if self._head is not None:
                    self._untold = ""

    def sent_away(self) -> None:
        """Take note that another process gets it: if that one keeps no account, nobody here knows of it."""
        self._away = True

    def claimed(self) -> bool:
        """Say whether this process makes the next ranks, and no other does."""
        return self._shared.claim(self.epoch + 1)

    def serve(self) -> None:
        """Let all processes know the ranks that were made."""
        self._shared.put_ranks(self.epoch, list(self.ranks.handles))
        if self._head is not None:
            self._head = self._shared.lead(replace(self._head, epoch=self.epoch, holder=self._me))

    def leave(self) -> None:
        """Forget all: this process lets go of Ray."""
        with self._lock:
            self.record, self._head = self._new_record(), None

    def _new_record(self) -> CallRecord:
        # Half of the time that new ranks may take: they have to be made, too.
        return CallRecord(self._policy.kept_bytes, self._policy.rebuild_s / 2)

    def _begin_record(self) -> None:
        before = self.record
        self.record = self._new_record()
        if before.doubt:
            self.record.in_doubt(before.doubt)

    def _is_holder(self) -> bool:
        return self._head is not None and self._head.holder == self._me

    def _take_over(self) -> None:
        """Keep the record from now on."""
        head = self._head
        if head is None or self._is_holder():
            return
        pending = self.record.calls
        self._begin_record()
        self.record.calls = [*self._shared.told(head), *pending]
        if head.more:
            self.record.in_doubt(_ELSEWHERE)
        self._head = self._shared.lead(replace(head, holder=self._me))


class PartSender:
    """Sends a call's parts."""

    def __init__(self, group: LookedAfterGroup, call: SentCall) -> None:
        self._group, self._call = group, call

    def __call__(self, rank: int, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Send one."""
        return self._group.send(self._call, rank, method, Arguments(args, kwargs))
