"""Where guarded calls begin and end: counted, recorded, and told to those who act between calls.

The wrappers are pickled by value and find what stands here in every process. Who watches is
``rayguard.actors.memory.memory_guard``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, TypeAlias

from rayguard.process.flight import recorder
from rayguard.recovery import tally

if TYPE_CHECKING:
    from rayguard.actors.methods import Given


class Boundary(Protocol):
    """Told of each guarded call of this process. Neither may raise."""

    def begun(self) -> None:
        """A call begins."""

    def ended(self, instance: object, name: str) -> None:
        """A call has ended, well or not; its answer is not delivered yet."""


class SnapshotKeeper(Protocol):
    """Keeps the state of this process's actor; told of each guarded call. Neither may raise."""

    def begun(self, name: str, given: Given | None) -> int:
        """A call begins; what is returned is for ``ended``. ``given``: as in ``begin_call``."""

    def ended(self, place: int, name: str, answer: object) -> None:
        """A call has ended: with ``answer``, or with the error that is raised now."""


class MembershipNote(Protocol):
    """Leaves word that this actor is one of a group. May not raise."""

    def now(self) -> None:
        """Look whether it is."""


watch: Boundary | None = None
group: MembershipNote | None = None  # where an actor lives that is restarted
keeper: SnapshotKeeper | None = None  # where an actor lives that can say its state
Entered: TypeAlias = "tuple[Boundary | None, int, SnapshotKeeper | None, int]"


def begin_call(instance: object, name: str, given: Given | None = None) -> Entered:
    """Tell whoever wants to know that a call begins; what is returned is for ``end_call``.

    ``given``: its arguments, where it answers at once, and so can be made again.
    """
    owner = type(instance).__name__
    tally.TALLY.calls[owner] += 1  # no lock: see Tally
    watching = watch
    if watching is not None:
        watching.begun()
    keeping = keeper
    return (
        watching,
        recorder.begin(owner, name),
        keeping,
        -1 if keeping is None else keeping.begun(name, given),
    )


def end_call(instance: object, name: str, entered: Entered, answer: object = None) -> None:
    """Tell them that it has ended. Only those who were told of its begin: one may have come meanwhile."""
    watching, began, keeping, place = entered
    recorder.end(began)
    if group is not None:
        group.now()
    if keeping is not None:
        keeping.ended(place, name, answer)
    if watching is not None:
        watching.ended(instance, name)


def _forked() -> None:
    """Let a forked child act for itself alone: what it does is not the actor's state."""
    global watch, group, keeper  # noqa: PLW0603 - one process
    watch = group = keeper = None


os.register_at_fork(after_in_child=_forked)
