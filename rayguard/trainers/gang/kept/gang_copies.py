"""Copies of the states of a gang's ranks on other nodes: made in the background, one call's after the other.

A thread of the gang's owner has all ranks hold their states of the newest call that all completed, then has
each copied by a keeper on another node, and only then takes up the next: what all have is always of one call.
No rank waits for it; where calls are faster than copies, calls are passed over. On a cluster of one node
nothing of this is started.
"""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.harmless import counted, harmless
from rayguard.ray_internals.worker import before_leaving, connected_ray
from rayguard.trainers.gang.kept.copy_choice import Lineage, newest_of_all, receivers
from rayguard.trainers.gang.kept.copy_place import CopyPlace
from rayguard.trainers.gang.kept.copy_round import CopyRound, CopyScene
from rayguard.trainers.gang.kept.keepers import Keepers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rayguard.process.snapshot_slots import SlotPlace

_LOOK_S = 60.0  # between two looks for another node, where there is none
_ALIVE_S = 5.0  # for which it is believed which nodes live
_FOUND_S = 15.0  # for keepers to say what they have, when a node is lost
_AHEAD_S = 1.0  # for a call that is to be held once it comes
_AGAIN_S = 0.2
_REST_S = 2.0  # where nothing can be done for now
_IDLE_S = 10.0  # between two questions to keepers whether they live
_LEAVE_S = 5.0
_MOST_AHEAD = 64


@dataclass(frozen=True, slots=True)
class _Round:
    """All states of one call were copied; ``failures`` of keepers were known by then."""

    scene: CopyScene
    number: int
    failures: int


class GangCopies:
    """Has states copied, and says which there are."""

    def __init__(self, gang: str, *, on: bool) -> None:
        self._on, self._closed = on, False
        self._keepers = Keepers(gang)
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._looked = 0.0
        self._alive: tuple[float, frozenset[str]] = (0.0, frozenset())
        self._scene: CopyScene | None = None
        self._number = 0  # calls that all ranks completed
        self._lineage = Lineage()
        self._last: _Round | None = None
        self._ahead = 0  # calls by which quick ones are held before they come

    @property
    def copied(self) -> int | None:
        """Return the newest call of which the states of all ranks lie on another node; None: of none."""
        last, scene = self._last, self._scene
        if last is None or scene is None or self._keepers.failures != last.failures:
            return None
        return last.number if last.scene.homes == scene.homes else None

    # -- by the gang

    def begun(self, homes: tuple[str, ...], layout: int, generation: int, number: int) -> None:
        """Say that a generation has begun, from the state of so many calls: on which nodes its ranks are."""
        if not self._on:
            return
        with self._news:
            scene = CopyScene(homes, layout, generation)
            if self._last is not None and (self._last.scene.layout != layout or self._last.number > number):
                self._last = None
            self._scene, self._number = scene, number
            self._lineage = self._lineage.after(generation, number)
            self._news.notify_all()
        self._start()

    def completed(self, number: int) -> None:
        """Say that all ranks have completed one more call."""
        if not self._on:
            return
        with self._news:
            self._number = number
            self._news.notify_all()
        if self._thread is None and time.monotonic() - self._looked > _LOOK_S:
            self._start()

    def has_lost(self, homes: Collection[str]) -> bool:
        """Say whether one of these nodes is gone. False where nothing is copied, too."""
        with harmless("copies"):
            return self._thread is not None and not self._nodes(fresh=True).issuperset(homes)
        return False

    def newest(
        self, homes: Sequence[str], layout: int, number: int
    ) -> tuple[int, tuple[CopyPlace | None, ...]] | None:
        """Return the newest call up to ``number`` of which all states are there, and the copies to take.

        None where no node of the ranks is lost, or there is no such call.
        """
        if not self.has_lost(homes):
            return None
        with harmless("copies"):
            alive, has = self._nodes(), self._keepers.standing(layout, homes, _FOUND_S)
            kept = [
                has[home][1].numbers[rank] if home in has else {number} if home in alive else ()
                for rank, home in enumerate(homes)
            ]
            copied: list[dict[int, CopyPlace]] = [{} for _ in homes]
            for node, (keeper, standing) in has.items():
                for tag, size in standing.copies:
                    if tag.layout == layout and self._lineage.has(tag):
                        copied[tag.rank][tag.number] = CopyPlace(tag, size, node, keeper)
            return newest_of_all(kept, copied, number)
        return None

    def close(self) -> None:
        """End the thread and all keepers; what they hold goes with them."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        thread = self._thread
        with harmless("copies"):
            self._keepers.close()  # what the thread waits for ends with them
            if thread is not None and thread is not threading.current_thread():
                thread.join(_LEAVE_S)

    def _start(self) -> None:
        """Start the thread, where there is more than one node."""
        self._looked = time.monotonic()
        with harmless("copies"):
            if self._thread is None and len(self._nodes(fresh=True)) > 1:
                self._thread = threading.Thread(target=self._run, name="rayguard-copies", daemon=True)
                self._thread.start()
                _running.add(self)
                before_leaving(_end_all)

    # -- by the thread

    def _run(self) -> None:
        while True:
            with self._news:
                work = self._news.wait_for(self._has_work, _IDLE_S)
                scene = self._scene
            if self._closed or scene is None or connected_ray() is None:
                return
            try:
                if not work:
                    self._keepers.ask(self._keepers.nodes())
                elif not self._round(scene):
                    self._pause(_AGAIN_S)
            except Exception as error:  # noqa: BLE001 - the gang goes on without copies
                if self._closed or connected_ray() is None:
                    return
                counted("copies", error)
                self._pause(_LOOK_S)

    def _has_work(self) -> bool:
        last, failures = self._last, self._keepers.failures
        done = last and (last.scene, last.number, last.failures) == (self._scene, self._number, failures)
        return self._closed or not done

    def _pause(self, seconds: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._closed, seconds)

    def _round(self, scene: CopyScene) -> bool:
        """Copy the states of one call; say whether all could be copied."""
        alive = self._nodes()
        plan = receivers(scene.homes, alive, self._keepers.shunned())
        needed = {*scene.homes, *plan}
        if not alive.issuperset(needed) or self._keepers.rests(needed):
            self._pause(_REST_S)
            return False
        keep = None if self._last is None else self._last.number
        copying = CopyRound(self._keepers, scene, keep, lambda: self._closed or self._scene != scene)
        held = self._held(copying) if self._keepers.ready(needed) else None
        if held is None:
            return False
        number, places = held
        failures = self._keepers.failures
        whole = copying.copy(plan, number, places)
        if whole:
            self._keepers.only_on(needed)
        with self._news:
            whole = whole and self._scene == scene
            if whole:
                self._last, self._ahead = _Round(scene, number, failures), self._ahead // 2
        return whole

    def _held(self, copying: CopyRound) -> tuple[int, list[SlotPlace]] | None:
        """Have all ranks hold their state of one call; return which, and where it lies in their files.

        That is the newest one. Where calls are so quick that it is gone by then, one that comes.
        """
        number = self._number + self._ahead
        if self._ahead:
            copying.hold(number)
            with self._news:
                self._news.wait_for(lambda: self._number >= number or copying.is_over(), _AHEAD_S)
                number = min(number, self._number)
        found = copying.hold(number)
        if found is None:
            return None
        places = [place for place in found if place is not None]
        if len(places) == len(found):
            return number, places
        self._ahead = min(_MOST_AHEAD, 2 * self._ahead or 1)
        return None

    def _nodes(self, *, fresh: bool = False) -> frozenset[str]:
        """Return the nodes that live."""
        import ray  # noqa: PLC0415 - as above

        at, found = self._alive
        if fresh or time.monotonic() - at > _ALIVE_S:
            found = frozenset(row["NodeID"] for row in ray.nodes() if row["Alive"])
            self._alive = time.monotonic(), found
        return found


_running: weakref.WeakSet[GangCopies] = weakref.WeakSet()


def _end_all() -> None:
    """End the threads before this process lets go of Ray: afterwards a call would connect it anew."""
    for copies in list(_running):
        copies.close()
