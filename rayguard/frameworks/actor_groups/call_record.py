"""What a group was told, in its order, as far as new ranks must be told it again.

An update stays as long as all of them can be made again; what leaves nothing behind stays until its caller
has the answer, and is made again in its place among the others if the ranks die before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.frameworks.worker_groups.calls import Effect

if TYPE_CHECKING:
    from rayguard.frameworks.actor_groups.sent_call import SentCall


class CallRecord:
    """The calls of a group since its ranks were made.

    ``doubt``: why the state cannot be made again; '' where it can.

    Invariant: in doubt, no answered update is kept.
    """

    def __init__(self, most_bytes: int, most_s: float) -> None:
        self._most_bytes, self._most_s = most_bytes, most_s
        self.calls: list[SentCall] = []
        self.doubt = ""

    @property
    def kept_bytes(self) -> int:
        """Return how much of the calls' arguments is kept."""
        return sum(call.size_bytes for call in self.calls)

    @property
    def took_s(self) -> float:
        """Return how long the updates took that would be made again."""
        return sum(call.took_s for call in self.calls if call.effect is Effect.UPDATE)

    def sent(self, call: SentCall) -> None:
        """Take note of a call; it is kept at least until it is answered."""
        self.calls.append(call)

    def weighed(self) -> None:
        """Give updates up where they have become too many to keep, or would take too long again."""
        if self.doubt:
            return
        if self.kept_bytes > self._most_bytes:
            self.in_doubt(f"its updates took more than {self._most_bytes / 2**30:.3g} GiB to keep")
        elif self.took_s > self._most_s:
            self.in_doubt(f"its updates took more than {self._most_s:g} s, too long to make them again")

    def in_doubt(self, why: str) -> None:
        """Take note of something that nobody can make again."""
        self.doubt = self.doubt or why
        self.calls = [call for call in self.calls if not (call.effect is Effect.UPDATE and call.is_answered)]

    def over(self, call: SentCall) -> None:
        """Take note that a call's caller has all answers, or wants none."""
        keeps = call.effect in {Effect.UPDATE, Effect.SETTING}
        if not keeps or (self.doubt and call.effect is Effect.UPDATE):
            self.left_out(call)

    def left_out(self, call: SentCall) -> None:
        """Forget a call."""
        if call in self.calls:
            self.calls.remove(call)
