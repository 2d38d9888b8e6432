"""What the keeper of a standby knows: the engine that waits, what is wished for, what is under way.

Who changes it, and when, is ``rayguard.engine.standby.keeper``.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.engine.build.footprint import Footprint, wait_for_memory
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.engine.protocol import Engine
    from rayguard.engine.weights.proof import Proof
    from rayguard.engine.weights.version import Weights

_log = logging.getLogger("rayguard")
_FORCE_S = 5.0
NO_STANDBY: dict[str, object] = {"standby": "none", "standby_bytes": 0, "standby_device_bytes": 0}


@dataclass(slots=True, eq=False)
class Spare:
    """A standby engine. Invariant: whoever uses ``engine`` holds it: ``Standby`` until it is taken."""

    engine: Engine
    applied: tuple[str, ...]
    footprint: Footprint
    since: float
    proof: Proof | None = None  # what it proved to have; None: not known
    prepared_for: Proof | None = None  # what the engine that served had when it was last prepared
    spoiled: bool = False  # by a push that failed in the middle

    def why_unfit(self) -> str:
        """Say what is wrong with it; an empty string when it could serve."""
        with harmless("standby"):
            if self.spoiled:
                return "it did not take its weights"
            if self.engine.exits():
                return "it died"
            stopped = [p.process.pid for p in self.engine.processes() if p.process.state() in {"T", "t"}]
            return f"its processes are stopped: {stopped}" if stopped else ""
        return "it cannot be looked at"

    def status(self, *, ready: bool) -> dict[str, object]:
        """Return what it costs, in plain types."""
        return {
            "standby": "ready" if ready else "building",
            "standby_bytes": self.footprint.host_bytes,
            "standby_device_bytes": self.footprint.device_bytes,
        }


@dataclass(frozen=True, slots=True)
class Wish:
    """A standby with these settings, beside this engine, writing its failures here."""

    applied: tuple[str, ...]
    serving: Engine
    records: Path


@dataclass(slots=True)
class SpareState:
    """Read and written under the keeper's lock alone."""

    wish: Wish | None = None
    spare: Spare | None = None
    building: tuple[str, ...] | None = None  # with these settings
    called_off: threading.Event = field(default_factory=threading.Event)
    leaving: list[Engine] = field(default_factory=list)  # were replaced, and are to be ended
    busy: bool = False  # the thread is at a step
    pushed: Weights | None = None  # what the engine that serves got last, until the standby has it
    failures: int = 0
    not_before: float = 0.0
    closed: bool = False


def end_engine(engine: Engine) -> None:
    """End an engine that serves nobody, by force, and wait for its memory; what fails is counted."""
    with harmless("standby"):
        left = engine.close(polite_s=0.0, force_s=_FORCE_S)
        wait_for_memory([known.process.pid for known in engine.processes()])
        if left:
            _log.warning("rayguard: engine processes that would not die: %s", [k.process.pid for k in left])
