"""Whether this process is a member of a group of torch.distributed: told to the actor's next life.

A member that died cannot be begun anew alone: the others wait in a collective for one that has joined.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rayguard.actors.life.incarnation import ActorMemory, Incarnation
from rayguard.faults.fault import Role
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from rayguard.actors.mark import Guarding

_PART = "group"
_led: list[bool] = []  # whether a gang looks after this process


class GroupNote:
    """Leaves word, once, that this actor is a member of a process group. Raises nothing."""

    def __init__(self, life: Incarnation) -> None:
        self._life, self._left = life, False

    def now(self) -> None:
        """Look: at the end of ``__init__`` and of each call, which may have joined a group. 0.2 us if not."""
        if not self._left and joined():
            with harmless("process group"):
                self._left = ActorMemory(self._life.actor_id, _PART).save({"joined": True})


def joined() -> bool:
    """Say whether this process has begun a collective of torch.distributed."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def lead() -> None:
    """Say that a gang looks after this process: what fails in it, the gang judges."""
    _led[:] = [True]


def is_led() -> bool:
    """Say whether a gang looks after this process."""
    return bool(_led)


def is_member(mark: Guarding) -> bool:
    """Say whether this actor is one that must not be begun anew alone: in fact, or by its user's word.

    Rollouts are not: their engine and weights are restored.
    """
    return (joined() or bool(mark.group)) and mark.role is not Role.ROLLOUT


def was_member(actor_id: str) -> bool:
    """Say whether an earlier life of the actor was one; asked once."""
    memory = ActorMemory(actor_id, _PART)
    found = bool(memory.load())
    if found:
        memory.delete()  # this life is none yet
    return found
