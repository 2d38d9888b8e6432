"""What a group of workers was told, as far as its state depends on it: what new workers are told again. Pure.

A file of state that holds all of a role's state takes the place of all that changed that role before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from rayguard.frameworks.worker_groups.calls import ENDS, LOAD, Effect

if TYPE_CHECKING:
    from rayguard.frameworks.worker_groups.calls import GroupMethod

_CHANGES = frozenset({Effect.UPDATE, Effect.LOAD})


class Repeat(Protocol):
    """What makes a call again."""

    def make(self) -> object:
        """Make it, as it was made before."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """One call that was made. What ``kept`` holds of it takes ``size_bytes``."""

    method: GroupMethod
    kept: Repeat
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """The calls that bring new workers to where the old ones were, in their order.

    ``doubts``: of which roles that is not known any more, and why; a file of state settles it.
    ``most_bytes``: how much may be kept of what updates were made with.

    Invariant: of a role in doubt no update is kept.
    """

    most_bytes: int
    calls: tuple[MadeCall, ...] = ()
    doubts: tuple[tuple[str, str], ...] = ()

    @property
    def doubt(self) -> str:
        """Say why the state cannot be made again; '' where it can."""
        return "; ".join(dict.fromkeys(why for _, why in self.doubts))

    @property
    def kept_bytes(self) -> int:
        """Return how much of the calls' arguments is kept."""
        return sum(call.size_bytes for call in self.calls)

    def with_call(self, call: MadeCall) -> History:
        """Return the history after a call that all workers answered, but one that saves."""
        match call.method.effect:
            case Effect.NONE | Effect.SAVE:
                return self
            case Effect.LOAD:
                return self.with_state(call)
            case Effect.END:
                return self._without_begin(call.method)
            case Effect.SETTING | Effect.BEGIN:
                return replace(self, calls=(*self._without_same(call), call))
            case Effect.UPDATE:
                return self._with_update(call)

    def with_state(self, load: MadeCall) -> History:
        """Return the history after all of a role's state was saved or loaded; ``load`` brings it back."""
        role = load.method.role
        calls = tuple(call for call in self.calls if call.method.role != role or _stays(call))
        begun = tuple(call for call in calls if call.method.effect is Effect.BEGIN)
        settled = tuple(call for call in calls if call.method.effect is not Effect.BEGIN)
        doubts = tuple(one for one in self.doubts if one[0] != role)
        return replace(self, calls=(*settled, load, *begun), doubts=doubts)

    def with_doubt(self, role: str, why: str) -> History:
        """Return the history after something that nobody can make again."""
        calls = tuple(
            call for call in self.calls if call.method.role != role or call.method.effect is not Effect.UPDATE
        )
        return replace(self, calls=calls, doubts=(*self.doubts, (role, why)))

    def _with_update(self, call: MadeCall) -> History:
        role = call.method.role
        if any(one == role for one, _ in self.doubts):
            return self
        if self.kept_bytes + call.size_bytes > self.most_bytes:
            gib = self.most_bytes / 2**30
            return self.with_doubt(role, f"its updates since the last whole state took more than {gib:g} GiB")
        return replace(self, calls=(*self.calls, call))

    def _without_begin(self, end: GroupMethod) -> History:
        begin = end.of_role(ENDS[end.name])
        return replace(self, calls=tuple(call for call in self.calls if call.method.whole != begin))

    def _without_same(self, call: MadeCall) -> tuple[MadeCall, ...]:
        """Return the calls without earlier ones that this one replaces: alike, and nothing changed since."""
        changed = max((at for at, one in enumerate(self.calls) if one.method.effect in _CHANGES), default=-1)
        return tuple(
            one
            for at, one in enumerate(self.calls)
            if at < changed or (one.method, one.kept) != (call.method, call.kept)
        )


def _stays(call: MadeCall) -> bool:
    return call.method.effect not in _CHANGES


def loads(method: GroupMethod) -> GroupMethod:
    """Return the method that loads what ``method`` saves."""
    return replace(method, name=LOAD, effect=Effect.LOAD, blocking=True)
