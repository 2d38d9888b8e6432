"""Where ranks keep their states on a node: the names of files that go with the gang, or with the job."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from rayguard.actors.life import snapshot_files

if TYPE_CHECKING:
    from pathlib import Path


def new_gang_name() -> str:
    """Return a name that no other gang has: 16 hexadecimal digits."""
    return f"{random.SystemRandom().getrandbits(64):016x}"


def path_of_rank(gang: str, layout: int, rank: int) -> Path:
    """Return where a rank keeps its state, on this node. ``layout`` grows when the gang changes its size.

    The name is as that of an actor's snapshot: whoever removes those of a job that is over, removes it too.
    """
    import ray  # noqa: PLC0415 - a rank or its owner runs here

    return snapshot_files.path_named(f"{gang}{layout:03x}{rank:05x}{ray.get_runtime_context().get_job_id()}")


def forget_gang(gang: str, *, but_layout: int | None = None) -> None:
    """Remove what ranks of a gang have kept on this node, but for those of one layout."""
    for path in snapshot_files.folder().glob(f"{gang}*.snapshot*"):
        if but_layout is None or path.name[len(gang) :][:3] != f"{but_layout:03x}":
            path.unlink(missing_ok=True)
