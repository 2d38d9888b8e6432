"""Memory of the guarded processes, from their own flight recordings: what they used, what was relieved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.process.flight.reader import read_recording, recordings

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.process.flight.recording import Recording

_TOLD = "memory: "  # how events about memory begin


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Private bytes of one life of an actor, over the ``seconds`` that its recording goes back."""

    actor_id: str
    pid: int
    first: int
    most: int
    last: int
    seconds: float
    told: tuple[str, ...] = ()  # reliefs and what each freed, and what was found to grow

    @classmethod
    def of(cls, recording: Recording) -> ProcessMemory | None:
        """Return what ``recording`` says; None where it has no reading."""
        points = recording.memory
        if not points:
            return None
        return cls(
            actor_id=recording.actor_id,
            pid=recording.process.pid,
            first=points[0].private,
            most=max(point.private for point in points),
            last=points[-1].private,
            seconds=points[-1].at - points[0].at,
            told=tuple(e.line.removeprefix(_TOLD) for e in recording.events if e.line.startswith(_TOLD)),
        )


def memory_of_processes(home: Path) -> list[ProcessMemory]:
    """Read what the guarded processes of this machine left in ``home``, the oldest first."""
    read = [read_recording(path) for path in recordings(home)]
    found = [ProcessMemory.of(recording) for recording in read if recording is not None]
    return [one for one in found if one is not None]
