"""What an engine's supervisor needs from outside, as plain callables.

Tests hand in their own, with pieces that raise; the real ones are put together in ``rayguard.actors``.
Nothing in here may stop a recovery: each is called under ``rayguard.harmless``.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.home import home
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rayguard.faults.diagnosis import Diagnosis
    from rayguard.faults.fault import Fault
    from rayguard.process.identity import ProcessId
    from rayguard.recovery.incident import Incident


def _diagnose(fault: Fault) -> Diagnosis:
    from rayguard.faults.diagnose import diagnose  # noqa: PLC0415 - loads the catalog, only on failure

    return diagnose(fault)


def _write(incident: Incident) -> bool:
    from rayguard.recovery.journal import default_journal  # noqa: PLC0415

    return default_journal().write(incident)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPool:
    """Whose pool an actor is of: ``name``, by which its owner's next life knows the engines, or nothing.

    The name: the owner's actor id, a dash, a number. ``life`` is that of the owner which made this actor,
    ``owner`` its process, on ``node``.
    """

    name: str = ""
    life: int = 0
    node: str = ""
    owner: ProcessId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Who the engine belongs to, and the hands that are not the engine's."""

    target: str = "engine"  # what people call it: the actor's class
    actor_id: str = ""
    job_id: str = ""
    node: str = ""
    incarnation: int = 0
    gcs_address: str = ""  # of Ray's control process
    pool: OfPool = OfPool()
    home: Callable[[], Path] = home
    diagnose: Callable[[Fault], Diagnosis] = _diagnose
    write: Callable[[Incident], bool] = _write
    recall: Callable[[], dict[str, object]] = dict  # what an earlier incarnation remembered
    remember: Callable[[dict[str, object]], object] = field(default=lambda _state: None)
    changed: Callable[[], object] = field(default=lambda: None)  # tell the status page
    restartable: Callable[[], bool] = field(default=lambda: False)
    die: Callable[[], object] = field(default=lambda: os._exit(1))
    now: Callable[[], float] = time.time

    def noticed(self, incident: Incident) -> None:
        """Write and count an incident that is over as it is noticed: now."""
        now = self.now()
        incident = replace(self.signed(incident), detected_at=now, closed_at=now)
        self.write(incident)
        TALLY.closed(incident)

    def signed(self, incident: Incident) -> Incident:
        """Return ``incident`` with whose it is."""
        return replace(
            incident,
            target=self.target,
            actor_id=self.actor_id,
            job_id=self.job_id,
            node=self.node,
            pid=os.getpid(),
            incarnation=self.incarnation,
        )
