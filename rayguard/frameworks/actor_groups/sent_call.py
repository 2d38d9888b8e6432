"""A call of a group as it was sent: what each rank was called with, and which references its caller has.

What lies in the object store, or cannot change, is kept as it is; all else is put there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from rayguard.frameworks.worker_groups.calls import Effect
from rayguard.frameworks.worker_groups.pending_call import is_plain
from rayguard.ray_internals import object_refs
from rayguard.ray_internals.object_refs import is_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray import ObjectRef


@dataclass(frozen=True, slots=True)
class Arguments:
    """What one rank's method is called with; ``stored``: where it lies instead."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    stored: ObjectRef | None = None

    @property
    def references(self) -> list[ObjectRef]:
        """Return the objects that are kept by this."""
        held = (self.stored, *self.args, *self.kwargs.values())
        return [cast("ObjectRef", one) for one in held if is_reference(one)]

    def are(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Say whether these are the very same objects."""
        if len(args) != len(self.args) or kwargs.keys() != self.kwargs.keys():
            return False
        both = [*zip(args, self.args, strict=True), *((kwargs[name], self.kwargs[name]) for name in kwargs)]
        return all(one is other for one, other in both)

    def kept(self) -> Arguments:
        """Return these where nobody changes them."""
        if all(is_plain(one) or is_reference(one) for one in (*self.args, *self.kwargs.values())):
            return self
        import ray  # noqa: PLC0415 - only where a group was made

        return Arguments((), {}, ray.put((self.args, self.kwargs)))

    def read(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return them: what lies in the store as values of one's own."""
        if self.stored is None:
            return self.args, dict(self.kwargs)
        import ray  # noqa: PLC0415 - as above

        args, kwargs = ray.get(self.stored)
        return args, kwargs


@dataclass(slots=True)
class SentPart:
    """One rank's part of a call. ``again``: the reference to what came of it, where it was made again.

    ``object_id``: of the reference that the caller was given.
    """

    rank: int
    method: str
    kept: Arguments
    object_id: str
    again: ObjectRef | None = None
    answered: bool = False


@dataclass(slots=True, eq=False)
class SentCall:
    """One call of a group. ``times``: how often it was made; ``epoch``: of the ranks that have it.

    ``took_s``: from its sending until its caller had all answers; where ranks died in between, as it was made
    again, without what making them took. ``whole``: all its parts were sent.
    """

    name: str
    effect: Effect
    epoch: int
    parts: list[SentPart] = field(default_factory=list)
    times: int = 1
    began: float = field(default_factory=time.monotonic)
    took_s: float = 0.0
    size_bytes: int = 0
    whole: bool = False
    _last: tuple[Arguments, Arguments] | None = None  # as it was given, and as it is kept

    @property
    def is_answered(self) -> bool:
        """Whether its caller has had all answers."""
        return self.whole and all(part.answered for part in self.parts)

    @property
    def changes_state(self) -> bool:
        """Whether it leaves something behind in the ranks."""
        return self.effect is not Effect.NONE

    def add(self, rank: int, method: str, given: Arguments, made: ObjectRef) -> SentPart:
        """Take note of what a rank was sent. What all ranks are given is kept once."""
        last = self._last
        kept = last[1] if last is not None and last[0].are(given.args, given.kwargs) else given.kept()
        if last is None or kept is not last[1]:
            known = set() if last is None else {one.hex() for one in last[1].references}
            self.size_bytes += _size_of([one for one in kept.references if one.hex() not in known])
        self._last = given, kept
        part = SentPart(rank, method, kept, made.hex())
        self.parts.append(part)
        return part

    def sealed(self) -> None:
        """Take note that no more parts come."""
        self.whole, self._last = True, None


def _size_of(references: Sequence[ObjectRef]) -> int:
    """Return how many bytes these take, as far as this process knows it."""
    core = object_refs.core_worker()
    return 0 if core is None or not references else sum(object_refs.sizes(core, references).values())
