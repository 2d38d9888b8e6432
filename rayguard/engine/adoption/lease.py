"""The lease of an engine: what its owner leaves for an heir, in one small file beside the engine's life.

``<home>/engines/engine-<boot>-<pid>-<started>.json``, named after the engine's core. As long as the file is
there the engine may outlive its owner: who ends it on purpose, or must not have it adopted, takes it away
first. Plain values, no pickle: whoever reads it is another process of the same user.

Waiting for an heir is ``rayguard.engine.vllm.adoption.ties``, in the core; taking over is ``heirs``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayguard.private import closed_after, open_private, read_regular, replace_file
from rayguard.process import owned_files
from rayguard.process.identity import ProcessId, owner_mark, owner_of
from rayguard.process.pid_namespace import world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER, KIND, ENDING = "engines", "engine", "json"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLease:
    """One engine, its owner now, and all that another process needs to go on with it.

    ``arguments`` is a digest of what it was built with, ``devices`` the accelerators of its owner.
    ``wanted_by``: the next life of its actor, which has come and will take it over. ``pool``: of which pool's
    actors it is, and ``pool_life`` in which life of that pool's owner.
    """

    core: ProcessId
    owner: ProcessId
    actor_id: str
    arguments: str
    applied: tuple[str, ...]
    devices: str
    input_address: str
    output_address: str
    ready: bytes  # what the core said when it was ready, which it says once
    keep_s: float  # how long it waits for an heir
    gcs_address: str = ""
    prefork: str = ""  # where the server listens from which it was forked
    raylet: ProcessId | None = None  # without it Ray starts nothing on this node
    wanted_by: ProcessId | None = None
    world: str = ""
    pool: str = ""
    pool_life: int = 0

    def write(self, home: Path) -> None:
        """Put it in the place of what was written before; raises ``OSError``."""
        values: dict[str, object] = {
            name: getattr(self, name)
            for name in ("actor_id", "arguments", "devices", "input_address", "output_address", "pool")
        }
        values |= {"gcs_address": self.gcs_address, "prefork": self.prefork, "pool_life": self.pool_life}
        values |= {
            "core": owner_mark(self.core),
            "owner": owner_mark(self.owner),
            "applied": list(self.applied),
            "ready": base64.b64encode(self.ready).decode(),
            "keep_s": self.keep_s,
            "wanted_by": "" if self.wanted_by is None else owner_mark(self.wanted_by),
            "raylet": "" if self.raylet is None else owner_mark(self.raylet),
            "world": world(),
        }
        path = path_of(home, self.core)
        replace_file(path.parent, path.name, json.dumps(values).encode())

    def pool_owner(self) -> tuple[str, ...]:
        """Return the actor that owns the pool and which life of it that was; nothing where there is none."""
        owner = self.pool.partition("-")[0]
        return (owner, str(self.pool_life)) if owner else ()

    def awaited(self) -> bool:
        """Say whether an heir has come, and will take it over."""
        return self.wanted_by is not None and self.wanted_by.alive()

    def usable(self) -> bool:
        """Say whether its pids mean something here and its core runs; a stopped one does not."""
        return bool(self.world) and self.world == world() and self.core.state() not in {"", "Z", "X", "x"}


def path_of(home: Path, core: ProcessId) -> Path:
    """Return where the lease of an engine lies."""
    return owned_files.path_of(home / FOLDER, KIND, ENDING, core)


def read(home: Path, core: ProcessId) -> EngineLease | None:
    """Return the lease of the engine with this core; None for none."""
    return _read(path_of(home, core))


def remove(home: Path, core: ProcessId) -> None:
    """Take away the lease of an engine, which then ends with its owner. Raises ``OSError``."""
    path = path_of(home, core)
    with (
        contextlib.suppress(FileNotFoundError),
        closed_after(open_private(path.parent)) as folder,
    ):
        os.unlink(path.name, dir_fd=folder)


def leases(home: Path) -> Iterator[EngineLease]:
    """Yield the leases of this boot, the newest engines last; takes away those of engines that are gone."""
    folder = home / FOLDER
    try:
        names = sorted(os.listdir(folder), key=_started)  # noqa: PTH208 - names only
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        core = owned_files.writer_of(name, KIND, ENDING)
        found = None if core is None else _read(folder / name)
        if core is None or found is None or found.world != world():
            continue
        if found.usable():
            yield found
        else:
            with contextlib.suppress(OSError):
                remove(home, core)


def _started(name: str) -> int:
    core = owned_files.writer_of(name, KIND, ENDING)
    return 0 if core is None else core.started


def _read(path: Path) -> EngineLease | None:
    try:
        data: dict[str, Any] = json.loads(read_regular(path, _MAX_BYTES))
        core, owner = owner_of(data["core"]), owner_of(data["owner"])
        if core is None or owner is None:
            return None
        return EngineLease(
            core=core,
            owner=owner,
            actor_id=str(data["actor_id"]),
            arguments=str(data["arguments"]),
            applied=tuple(map(str, data["applied"])),
            devices=str(data["devices"]),
            input_address=str(data["input_address"]),
            output_address=str(data["output_address"]),
            ready=base64.b64decode(data["ready"]),
            keep_s=float(data["keep_s"]),
            gcs_address=str(data["gcs_address"]),
            prefork=str(data["prefork"]),
            wanted_by=owner_of(data["wanted_by"]),
            raylet=owner_of(data["raylet"]),
            world=str(data["world"]),
            pool=str(data["pool"]),
            pool_life=int(data["pool_life"]),
        )
    except (OSError, ValueError, KeyError, TypeError):  # gone, or torn
        return None
