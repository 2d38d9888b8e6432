"""The references that this process was given by calls of groups, until their answers have been had.

Ray's references have no weak ones: they are known here by their ids, and those that were dropped are found by
Ray's own count. A reference whose call was made again stands for what that came to. A group is not kept by
them: its ranks end with its last copy, as ever.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from rayguard.frameworks.actor_groups.sent_call import SentCall
from rayguard.ray_internals import object_refs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rayguard.frameworks.actor_groups.sent_call import SentPart

_MANY = 256
Failed = list[tuple[SentCall, int]]


class WaitedFor(Protocol):
    """Whose calls they are."""

    def over(self, call: SentCall, *, dropped: bool) -> None:
        """Take note that a call's caller has all answers, or has ``dropped`` what he did not have yet."""

    def survived(self, error: Exception, failed: Failed, until: float | None) -> bool:
        """Say whether these calls, which came to nothing, are made again now.

        ``failed``: each with how often it had been made; ``until`` (monotonic) its caller waits.
        """


class Given:
    """The references of calls that are under way, by their ids."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._at: dict[str, tuple[weakref.ref[WaitedFor], SentCall, SentPart]] = {}
        # Of these, those that were had, and stand for what came of them later.
        self._standing: set[str] = set()
        self._looked_at = _MANY

    def __bool__(self) -> bool:
        return bool(self._at)

    def add(self, whose: WaitedFor, call: SentCall, part: SentPart) -> None:
        """Take note of one that was given out."""
        with self._lock:
            self._at[part.object_id] = weakref.ref(whose), call, part
        if self._standing or len(self._at) >= self._looked_at:
            self._sweep()

    def now_one(self, value: object) -> object:
        """Return what a reference stands for now; all else as it is."""
        found = self._at.get(value.hex()) if self._at and object_refs.is_reference(value) else None
        again = None if found is None else found[2].again
        return value if again is None else again

    def among(self, value: object) -> Iterator[tuple[WaitedFor, SentCall, SentPart, object]]:
        """Yield those of ours that are in ``value``, each with what it stands for now."""
        for one in value if isinstance(value, list) else [value]:
            found = self._at.get(one.hex()) if object_refs.is_reference(one) else None
            whose = None if found is None else found[0]()
            if found is not None and whose is not None:
                _, call, part = found
                yield whose, call, part, one if part.again is None else part.again

    def had(self, value: object) -> None:
        """Take note that their answers were had. One that was made again goes on to stand for that."""
        with self._lock:
            had = list(self.among(value))
            for _, _, part, _ in had:
                part.answered = True
                if part.again is None:
                    self._at.pop(part.object_id, None)
                else:
                    self._standing.add(part.object_id)
        self._over((one[:2] for one in had), dropped=False)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._at.clear()
            self._standing.clear()

    def _sweep(self) -> None:
        """Forget what nobody holds any more."""
        core = object_refs.core_worker()
        if core is None:
            return
        known = list(self._at)  # before Ray's count: whatever came since then is not in that
        held = object_refs.counts(core)
        gone = []
        with self._lock:
            for object_id in known:
                found = self._at.get(object_id)
                if found is None or (object_id in held and found[0]() is not None):
                    continue
                del self._at[object_id]
                whose, (_, call, part) = found[0](), found
                part.answered, part.again = True, None
                if whose is not None:
                    gone.append((whose, call))
            self._standing &= self._at.keys()
            self._looked_at = max(_MANY, 2 * len(self._at))
        self._over(gone, dropped=True)

    @staticmethod
    def _over(these: Iterable[tuple[WaitedFor, SentCall]], *, dropped: bool) -> None:
        """Tell whose they are; without a lock of ours, they have their own."""
        for whose, call in {id(call): (whose, call) for whose, call in these}.values():
            if call.is_answered:
                whose.over(call, dropped=dropped)


given = Given()
