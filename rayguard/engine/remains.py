"""What an engine leaves in shared memory and sockets: noted while it lives, freed when its processes end.

Ray and vLLM leave it to the end of the owner: each core that is killed would leak its segments until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.home import home
from rayguard.process import belongings, reaper
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayguard.process.identity import ProcessId


def note(processes: Iterable[ProcessId]) -> None:
    """Note what an engine's processes hold, before it serves: what it is given later is not its own."""
    with harmless("shm"):
        belongings.note(list(processes), home())


def free(processes: Iterable[ProcessId]) -> None:
    """Free what these dead processes held, where it is proved that nobody else does. Waits at most 0.5 s."""
    with harmless("shm"):
        reaper.free_after(tuple(processes), home())
