"""Large payloads as a file in shared memory for the time of a push.

Not here: the workers that read the file (``rayguard.engine.vllm.receiver``), and checkpoints that the user
keeps (``sources.CheckpointWeights``): those are never deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.engine.weights.version import Weights
from rayguard.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterator

PAYLOAD_LIMIT_BYTES = 1 << 30  # above this, bytes are copied too often on their way: use a file
_pushes = itertools.count()
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - shared on purpose: every worker of this machine reads it


def spill(weights: Weights, directory: str = SHARED_MEMORY) -> Weights:
    """Return the same weights as a file in ``directory``; whoever spills deletes it (see ``sendable``)."""
    if weights.payload is None:
        return weights
    # Each push has a file of its own: the same weights may be on their way to a standby as well.
    name = f"rayguard-{os.getpid()}-{weights.digest[:16]}-{next(_pushes)}.safetensors"
    target = Path(directory) / name
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".rayguard-", delete=False) as file:
            temporary = file.name
            file.write(weights.payload)
        Path(temporary).replace(target)  # a reader sees all of it or none of it
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)  # half a file would hold memory that nobody frees
        raise WeightsError(
            f"weights {weights.version!r} ({len(weights.payload) >> 20} MiB) do not fit into {directory}: "
            f"{error}. Enlarge it (containers: --shm-size) or push a checkpoint path."
        ) from error
    return Weights(weights.version, path=str(target))


@contextlib.contextmanager
def sendable(
    weights: Weights, directory: str = SHARED_MEMORY, limit_bytes: int = PAYLOAD_LIMIT_BYTES
) -> Iterator[Weights]:
    """Give weights that may be sent by a call: large payloads as a file, deleted at the end of the block."""
    if weights.payload is None or len(weights.payload) <= limit_bytes:
        yield weights
        return
    spilled = spill(weights, directory)
    try:
        yield spilled
    finally:
        Path(str(spilled.path)).unlink(missing_ok=True)
