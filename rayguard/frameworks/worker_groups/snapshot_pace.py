"""When the state of a role is kept in memory, and whether that can be done at all. Pure.

Each snapshot costs what the last one took, so as many are made as cost a given share of the time; the updates
between two of them are kept instead, and made again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_STATES = 4  # parameters, and two numbers of Adam for each; and room for what else there is
_COPIES = 2  # the file, and what it is written from
_RETENTION = "max_ckpt_to_keep"
PARTS = ("model", "optim", "extra_state")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLook:
    """What a worker says of itself: how it saves, how large its parameters are, and on which node it is.

    ``loads``: what its checkpoints bring back, where that can be chosen; empty: all.
    """

    node_id: str
    parameters: tuple[str, ...]
    parameter_bytes: int
    loads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPace:
    """``ratio`` of the time for snapshots, of which the last took ``took_s`` and ended ``at`` (monotonic)."""

    ratio: float
    at: float | None = None
    took_s: float = 0.0

    def is_due(self, now: float) -> bool:
        """Say whether the next one may be made."""
        if not self.ratio:
            return False
        return self.at is None or now - self.at >= self.took_s / self.ratio

    def after(self, took_s: float, now: float) -> SnapshotPace:
        """Return the pace after one that took so long."""
        return replace(self, at=now, took_s=took_s)


def why_no_snapshots(looks: Sequence[WorkerLook], node_id: str) -> str:
    """Say why the state of these workers cannot be kept in memory on the node of their owner; '' if it can.

    A worker that counts the checkpoints it has saved would remove its user's for ours.
    """
    if any(look.node_id != node_id for look in looks):
        return "its workers are not all on the node of their driver"
    if any(_RETENTION in look.parameters for look in looks):
        return "its workers count what they save, and remove old checkpoints by that"
    if any(look.parameters[:1] != ("path",) for look in looks):
        return "its workers' save_checkpoint is not one that is known"
    return ""


def loads_all(looks: Sequence[WorkerLook]) -> bool:
    """Say whether a checkpoint brings all of the workers' state back."""
    return all(not look.loads or {"model", "optimizer", "extra"} <= set(look.loads) for look in looks)


def fits(needed_bytes: int, free_bytes: int, ratio: float) -> bool:
    """Say whether a snapshot of this size may be made where so much memory is free."""
    return needed_bytes * _COPIES <= free_bytes * ratio


def largest(looks: Sequence[WorkerLook]) -> int:
    """Return the most that the first snapshot can be expected to need."""
    return sum(look.parameter_bytes for look in looks) * _STATES


def files_of(world: int) -> tuple[str, ...]:
    """Return the files of a whole state, as the checkpoint managers of both frameworks call them."""
    return tuple(f"{part}_world_size_{world}_rank_{rank}.pt" for rank in range(world) for part in PARTS)
