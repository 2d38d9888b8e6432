"""One call of a group on its way: made by the framework's own function, and kept, to be made again.

What it is called with is put into the object store while the workers are at it: there nobody changes it
later. Plain values are kept as they are.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.frameworks.worker_groups.history import MadeCall
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ray import ObjectRef

    from rayguard.frameworks.worker_groups.calls import GroupMethod

_PLAIN = (str, int, float, bool, bytes, type(None))
_PLAIN_BYTES = 4_096  # of text


class _Here(threading.local):
    """Of this thread: which call is to be sent next, and whether one of ours is being sent."""

    pending: PendingCall | None = None
    within: bool = False
    rebuilding: bool = False


here = _Here()


@dataclass(frozen=True, slots=True)
class KeptCall:
    """What makes a call again: the framework's function, and what it is called with, or where that lies."""

    bare: Callable[..., object]
    args: tuple[object, ...] = ()
    kwargs: tuple[tuple[str, object], ...] = ()
    stored: ObjectRef | None = None

    def make(self) -> object:
        """Make it, as it was made before."""
        if self.stored is None:
            return self.bare(*self.args, **dict(self.kwargs))
        import ray  # noqa: PLC0415 - only where a group was made

        args, kwargs = ray.get(self.stored)
        return self.bare(*args, **kwargs)


class PendingCall:
    """A call that its caller waits for."""

    def __init__(
        self,
        method: GroupMethod,
        bare: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> None:
        self.method, self._bare, self._args, self._kwargs = method, bare, args, kwargs
        self.was_sent = False  # its workers may have begun it
        self._is_to_keep = False
        self._kept: MadeCall | None = None

    def make(self, *, keep: bool) -> object:
        """Make it; with ``keep``, what it is made with is kept as soon as it has been sent."""
        here.pending, self._is_to_keep = self, keep
        try:
            return self._bare(*self._args, **self._kwargs)
        finally:
            here.pending = None

    def kept(self) -> MadeCall | None:
        """Return what makes it again; None where that cannot be kept."""
        self._keep()
        return self._kept

    def path(self) -> str | None:
        """Return the folder that a call saves into; None where it saves only a part, or elsewhere."""
        values = (*self._args, *self._kwargs.values())
        first = values[0] if values else None
        return first if isinstance(first, str) and not any(one is True for one in values[1:]) else None

    def sent(self) -> None:
        """Take note that it was sent."""
        if self._is_to_keep:
            self._keep()

    def _keep(self) -> None:
        if self._kept is not None:
            return
        values = (*self._args, *self._kwargs.values())
        if all(map(is_plain, values)):
            kept = KeptCall(self._bare, self._args, tuple(self._kwargs.items()))
            self._kept = MadeCall(self.method, kept)
            return
        with harmless("group"):
            import ray  # noqa: PLC0415 - as above

            stored = ray.put((self._args, dict(self._kwargs)))
            kept = KeptCall(self._bare, stored=stored)
            self._kept = MadeCall(self.method, kept, _size_of(stored))


class Sending:
    """The function by which a framework sends a call to workers; tells when it has been sent."""

    def __init__(self, execute: Callable[..., object]) -> None:
        self._execute = execute

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """Send it."""
        before, here.within = here.within, True
        pending, here.pending = here.pending, None
        if pending is not None:
            pending.was_sent = True
        try:
            found = self._execute(*args, **kwargs)
        finally:
            here.within = before
        if pending is not None:
            pending.sent()
        return found


def is_plain(value: object) -> bool:
    """Say whether ``value`` is one that nobody can change, and not a large one."""
    return isinstance(value, _PLAIN) and (not isinstance(value, (str, bytes)) or len(value) <= _PLAIN_BYTES)


def _size_of(stored: ObjectRef) -> int:
    import ray.experimental  # noqa: PLC0415 - as above

    found = ray.experimental.get_object_locations([stored]).get(stored) or {}
    return int(found.get("object_size") or 0)
