"""The saved state of a role, held in memory: files without names, which end with the process that holds them.

They are written by the workers under a name in ``/dev/shm``, opened by their owner, and lose their names at
once: nobody has to remove them, however a job ends. Workers of the same node and user load them through the
owner's ``/proc/<pid>/fd``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
import weakref
from pathlib import Path

from rayguard.harmless import harmless
from rayguard.process.identity import ProcessId, owner_mark, owner_of
from rayguard.process.pid_namespace import world

SHM = Path("/dev/shm")  # noqa: S108 - memory
_NAME = "rayguard-group"
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class HeldState:
    """Open files by name. ``close`` frees their memory; so does the end of the process."""

    def __init__(self, files: dict[str, int]) -> None:
        self._files = files
        self.size_bytes = sum(os.fstat(file).st_size for file in files.values())
        _held.add(self)

    @classmethod
    def of(cls, folder: Path, names: tuple[str, ...]) -> HeldState:
        """Take the files of these names from ``folder``, and remove it.

        Raises:
            OSError: One is missing.
        """
        files: dict[str, int] = {}
        try:
            for name in names:
                files[name] = os.open(folder / name, _OPEN)
        except OSError:
            for file in files.values():
                os.close(file)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return cls(files)

    def show(self, folder: Path) -> None:
        """Give the files their names again, in ``folder``, for as long as it stays there."""
        folder.mkdir(mode=0o700, parents=True)
        for name, file in self._files.items():
            (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{file}")

    def close(self) -> None:
        """Let go of the files."""
        _held.discard(self)
        files, self._files = self._files, {}
        for file in files.values():
            with contextlib.suppress(OSError):
                os.close(file)


_held: weakref.WeakSet[HeldState] = weakref.WeakSet()


def _not_inherited() -> None:
    """In a forked child (of a data loader, say): it would keep the memory of files that its parent let go."""
    for one in list(_held):
        one.close()


os.register_at_fork(after_in_child=_not_inherited)


def new_folder() -> Path:
    """Return where workers may write next: nothing is there yet. Its name says whose it is."""
    return SHM / f"{_prefix()}{owner_mark(ProcessId.me())}-{uuid.uuid4().hex[:8]}"


def sweep() -> None:
    """Remove the folders of owners that ended while workers wrote into them."""
    with harmless("snapshot"):
        pattern = re.compile(rf"{re.escape(_prefix())}(\d+-\d+)-[0-9a-f]{{8}}")
        for path in SHM.glob(f"{_prefix()}*"):
            match = pattern.fullmatch(path.name)
            owner = None if match is None else owner_of(match[1])
            if owner is not None and not owner.alive() and path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def free_bytes() -> int:
    """Return how much memory is free for files on this node."""
    from rayguard.memory.probes.node import NodeProbe  # noqa: PLC0415 - only where a group keeps its state

    found = os.statvfs(SHM)
    free = found.f_bavail * found.f_frsize
    return min(free, NodeProbe().left(default=free))


def _prefix() -> str:
    where = hashlib.blake2s(world().encode(), digest_size=4).hexdigest()
    return f"{_NAME}-{where}-"
