"""What a trainer's setup is given: this rank's place among the others, in one generation of the gang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.trainers.gang.checkpoint import DiskState
    from rayguard.trainers.gang.kept.copy_place import CopyPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """One rank's place in its gang. torch's default process group is made: DDP, FSDP2 and collectives use it.

    ``rank`` counts from 0 to ``size - 1``; ``generation`` grows with each recovery. ``device`` is the rank's
    own GPU, or the CPU.
    """

    rank: int
    size: int
    generation: int
    device: Any

    def mesh(self, shape: Sequence[int] | None = None, names: Sequence[str] | None = None) -> Any:
        """Return a device mesh over all ranks: of one dimension, or of ``shape`` with ``names``.

        Raises:
            Exception: What torch raises where they do not fit.
        """
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - slow to load

        dimensions = tuple(shape or (self.size,))
        return init_device_mesh(
            self.device.type, dimensions, mesh_dim_names=None if names is None else tuple(names)
        )


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """The state that all ranks begin from, after ``number`` calls: what they keep, if nothing else is said.

    ``copies``: of each rank, None where its own is to be taken. ``disk``: a checkpoint.
    """

    number: int
    copies: tuple[CopyPlace | None, ...] = ()
    disk: DiskState | None = None

    def __str__(self) -> str:
        if self.disk is not None:
            return "its checkpoint"
        return "the copies of its states" if self.copies else "what its ranks keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOrder:
    """What the gang tells a rank that is to join: its place, and the state that it begins from.

    ``number``: of the calls whose effect the state has; None: there is none yet. ``kept_by``: the nodes on
    which the ranks of ``from_layout`` keep theirs, by rank. ``layout`` is another one where their number is.
    ``copies`` and ``disk``: as of ``StateOrigin``. ``checkpoint``: where to write one after how many calls.
    """

    gang: str
    rank: int
    size: int
    generation: int
    backend: str
    exact: bool
    layout: int = 0
    from_layout: int = 0
    number: int | None = None
    kept_by: tuple[str, ...] = ()
    copies: tuple[CopyPlace | None, ...] = ()
    meet_s: float = 60.0
    disk: DiskState | None = None
    checkpoint: str = ""
    checkpoint_every: int = 1
