"""The leases of the engines that this process owns: there while they serve, gone before they end."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.engine.adoption import heirs
from rayguard.engine.adoption.lease import EngineLease, remove
from rayguard.harmless import harmless
from rayguard.process.deaths import ends
from rayguard.process.identity import ProcessId

if TYPE_CHECKING:
    from rayguard.engine.context import Surroundings
    from rayguard.engine.protocol import Engine

_OWNER_DIES_S = 0.2  # its connections are closed before it is gone
_OWNER_EXITS_S = 5.0


class OwnLeases:
    """Of one engine slot. Every method may be called from any thread, and none raises."""

    def __init__(self, keep_s: float, around: Surroundings) -> None:
        self._keep_s = keep_s
        self._around = around
        self._lock = threading.Lock()
        self._held: set[ProcessId] = set()
        _all.add(self)

    @property
    def home(self) -> Path:
        """Where they lie."""
        return self._around.home()

    def expected(self) -> EngineLease | None:
        """Return the engine that the actor's last life left, if any, and have it wait for this life."""
        with harmless("adoption"):
            return heirs.claimed(self.home, self._around)
        return None

    def inherited(self, applied: tuple[str, ...]) -> EngineLease | None:
        """Return the engine of the actor's last life that this one goes on with; ends others that it left."""
        if not self._keep_s:
            return None
        return heirs.inherited(self.home, self._around, applied)

    def unfit(self, lease: EngineLease, why: str) -> None:
        """End an engine that could not be gone on with."""
        with harmless("adoption"):
            heirs.end_engine(self.home, lease, why)

    def hand_in(self, engine: Engine, applied: tuple[str, ...], prefork: str) -> None:
        """Let ``engine``, which serves now, outlive this process, where it can be adopted."""
        with harmless("adoption"), self._lock:
            facts = engine.adoptable() if self._keep_s else None
            for gone in self._held - ({facts.core} if facts is not None else set()):
                remove(self.home, gone)
                self._held.discard(gone)
            if facts is None:
                return
            EngineLease(
                core=facts.core,
                owner=ProcessId.me(),
                actor_id=self._around.actor_id,
                arguments=facts.arguments,
                applied=applied,
                devices=heirs.devices(),
                input_address=facts.input_address,
                output_address=facts.output_address,
                ready=facts.ready,
                keep_s=self._keep_s,
                gcs_address=self._around.gcs_address,
                prefork=prefork,
                raylet=_raylet(),
                pool=self._around.pool.name,
                pool_life=self._around.pool.life,
            ).write(self.home)
            self._held.add(facts.core)

    def orphaned(self) -> bool:
        """Say whether the actor's pool has lost its owner, on this node. The next one may want the engine."""
        pool = self._around.pool
        if not self._held or pool.owner is None or pool.node != self._around.node:
            return False
        return ends(pool.owner, soon_s=_OWNER_DIES_S, limit_s=_OWNER_EXITS_S)

    def revoke(self) -> None:
        """Let no engine of this slot outlive this process."""
        with harmless("adoption"), self._lock:
            while self._held:
                remove(self.home, self._held.pop())


def _raylet() -> ProcessId | None:
    """Return the process that started this one where it is Ray's own on this node."""
    parent = ProcessId.of(os.getppid())
    with contextlib.suppress(OSError):
        program = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().partition(b"\0")[0]
        return parent if program.endswith(b"/raylet") else None
    return None


def revoke_all() -> None:
    """Let no engine outlive this process, which is about to end on purpose."""
    for own in list(_all):
        own.revoke()


def _at_exit() -> None:
    """Let no engine outlive a process that ends of its own accord; one that is killed runs nothing.

    Ray ends the actors of an owner that has died in two ways at once, whichever comes first:
    a kill, and a request to exit (SIGTERM). Both come to the same here.
    """
    if any(own.orphaned() for own in list(_all)):
        os._exit(1)
    revoke_all()


_all: weakref.WeakSet[OwnLeases] = weakref.WeakSet()
atexit.register(_at_exit)
