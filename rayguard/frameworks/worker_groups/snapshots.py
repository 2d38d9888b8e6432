"""The state of roles kept in memory by their owner, saved by the workers themselves; and found.

A checkpoint of the user's own serves as well, where all of its files can be seen from here. What cannot be
proved to be a whole state is none: then updates are kept and made again.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.frameworks.worker_groups import held_state, in_worker, snapshot_pace
from rayguard.frameworks.worker_groups.calls import SAVE
from rayguard.frameworks.worker_groups.held_state import HeldState
from rayguard.frameworks.worker_groups.history import MadeCall, loads
from rayguard.frameworks.worker_groups.pending_call import KeptCall
from rayguard.frameworks.worker_groups.snapshot_pace import SnapshotPace
from rayguard.ray_internals.actor_classes import run_in_actor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rayguard.frameworks.worker_groups.calls import GroupMethod
    from rayguard.frameworks.worker_groups.pending_call import PendingCall
    from rayguard.frameworks.worker_groups.policy import GroupPolicy
    from rayguard.frameworks.worker_groups.snapshot_pace import WorkerLook
    from rayguard.frameworks.worker_groups.workers import Workers

_log = logging.getLogger("rayguard")
_LOOK_S = 60.0
_CLOCKS_S = 2.0  # file systems round


class Snapshots:
    """The last snapshot of each role, and when the next is due."""

    def __init__(self, workers: Workers, policy: GroupPolicy) -> None:
        self._workers, self._policy = workers, policy
        self._held: dict[str, tuple[Path, HeldState]] = {}
        self._pace: dict[str, SnapshotPace] = {}
        self._off: set[str] = set()
        self._looks: dict[str, Sequence[WorkerLook]] = {}

    def is_due(self, method: GroupMethod) -> bool:
        """Say whether an update by ``method`` is followed by a snapshot."""
        if method.role in self._off or not self._policy.snapshot_ratio:
            return False
        pace = self._pace.setdefault(method.role, SnapshotPace(ratio=self._policy.snapshot_ratio))
        return pace.is_due(time.monotonic())

    def taken(self, method: GroupMethod) -> MadeCall | None:
        """Keep the state of a role now, after ``method``; None where it cannot be, which is said once."""
        from ray.exceptions import RayActorError  # noqa: PLC0415 - only where a group was made

        save, load = replace(method, name=SAVE), self._workers.load(method)
        why = "it has no way to load what it saves"
        if load is not None:
            try:
                why = self._why_not(save)
                if not why:
                    return self._take(save, load)
            except RayActorError:
                return (
                    None  # a worker died: the next call finds it, and the one after that keeps a state again
                )
            except Exception as error:  # noqa: BLE001 - of Ray, of the workers' own code or of the disk
                why = f"{type(error).__name__}: {error}"
        self._off.add(method.role)
        _log.warning(
            "rayguard: %s: no snapshots of %s are kept in memory: %s. After a death it goes back to its last "
            "checkpoint, and its updates since then are made again",
            self._workers.name,
            method.role or "its state",
            why,
        )
        return None

    def saved(self, pending: PendingCall, began: float) -> MadeCall | None:
        """Return what loads a checkpoint that its user has just saved; None where it is not a whole state."""
        path, load = pending.path(), self._workers.load(pending.method)
        if path is None or load is None:
            return None
        files = [Path(path) / name for name in snapshot_pace.files_of(len(self._workers.handles))]
        if not all(one.is_file() and one.stat().st_mtime >= began - _CLOCKS_S for one in files):
            return None
        if not snapshot_pace.loads_all(self._looked(pending.method)):
            return None
        return MadeCall(loads(pending.method), KeptCall(load, (path,)))

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Let workers find the snapshots under the paths by which they are loaded."""
        try:
            for path, held in self._held.values():
                held.show(path)
            yield
        finally:
            for path, _ in self._held.values():
                shutil.rmtree(path, ignore_errors=True)

    def _why_not(self, save: GroupMethod) -> str:
        import ray  # noqa: PLC0415 - as above

        looks = self._looked(save)
        why = snapshot_pace.why_no_snapshots(looks, str(ray.get_runtime_context().get_node_id()))
        if why:
            return why
        if not snapshot_pace.loads_all(looks):
            return "its workers do not load all that they save"
        last = self._held.get(save.role)
        needed = snapshot_pace.largest(looks) if last is None else last[1].size_bytes
        if not snapshot_pace.fits(needed, held_state.free_bytes(), self._policy.memory_ratio):
            return f"about {needed / 2**30:.1f} GiB are too much for this node"
        return ""

    def _take(self, save: GroupMethod, load: Callable[..., object]) -> MadeCall:
        import ray  # noqa: PLC0415 - as above

        held_state.sweep()
        path, began = held_state.new_folder(), time.monotonic()
        workers = self._workers.handles
        try:
            made = [run_in_actor(one, in_worker.save, save.whole, str(path)) for one in workers]
            ray.get(made, timeout=self._policy.snapshot_s)
            held = HeldState.of(path, snapshot_pace.files_of(len(workers)))
        finally:
            shutil.rmtree(path, ignore_errors=True)
        before = self._held.get(save.role)
        self._held[save.role] = path, held
        if before is not None:
            before[1].close()
        now = time.monotonic()
        self._pace[save.role] = self._pace[save.role].after(now - began, now)
        return MadeCall(loads(save), KeptCall(load, (str(path),)))

    def _looked(self, save: GroupMethod) -> Sequence[WorkerLook]:
        import ray  # noqa: PLC0415 - as above

        if save.role not in self._looks:
            asked = [
                run_in_actor(one, in_worker.look, save.whole, save.role) for one in self._workers.handles
            ]
            self._looks[save.role] = ray.get(asked, timeout=_LOOK_S)
        return self._looks[save.role]
