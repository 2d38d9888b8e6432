"""A copy of a rank's state on another node, for whoever takes the state up: read part by part, and proved."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.errors import StateLostError

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from rayguard.trainers.gang.kept.copy_choice import CopyTag

PART_BYTES = 16 << 20
PART_S = 30.0  # for one part; a node that needs longer does not answer


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where a copy lies: with which keeper, and how long it is."""

    tag: CopyTag
    size: int
    node: str
    keeper: ActorHandle

    def read(self) -> bytes:
        """Return the state.

        Raises:
            StateLostError: The keeper is gone, or the copy is damaged.
        """
        import ray  # noqa: PLC0415 - a rank runs here

        parts = []
        for begin in range(0, self.size, PART_BYTES):
            try:
                asked = self.keeper.part.options(num_returns=2).remote(self.tag, begin // PART_BYTES)
                data, digest = ray.get(asked, timeout=PART_S)
            except Exception as error:
                raise StateLostError(f"{self} cannot be read: {error!r}") from error
            if digest_of(data) != digest or len(data) != min(PART_BYTES, self.size - begin):
                raise StateLostError(f"{self} is damaged")
            parts.append(data)
        return b"".join(parts)

    def __str__(self) -> str:
        tag = self.tag
        return f"the copy on node {self.node} of the state of rank {tag.rank} after {tag.number} calls"


def digest_of(data: bytes) -> bytes:
    """Return by what a part is known to be the one that was read at its source."""
    return hashlib.sha256(data).digest()
