"""One round of copies: all ranks hold their states of one call, then each state is copied to another node."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.trainers.gang.kept.copy_choice import CopyTag
from rayguard.trainers.gang.kept.copy_keeper import COPYING, CopyEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ray import ObjectRef

    from rayguard.process.snapshot_slots import SlotPlace
    from rayguard.trainers.gang.kept.keepers import Keepers

_ASK_S = 10.0  # without any copy ending: then keepers are asked whether they live
_ROUND_S = 3_600.0


@dataclass(frozen=True, slots=True)
class CopyScene:
    """Of which ranks states are to be copied: one generation's. ``homes`` are their nodes."""

    homes: tuple[str, ...]
    layout: int
    generation: int


class CopyRound:
    """Asks keepers, and waits for them. ``keep``: the call of which all ranks have a copy until this is done.

    ``is_over`` says whether nobody waits for it any more.
    """

    def __init__(
        self, keepers: Keepers, scene: CopyScene, keep: int | None, is_over: Callable[[], bool]
    ) -> None:
        self.is_over = is_over
        self._keepers, self._scene, self._keep = keepers, scene, keep

    def hold(self, number: int) -> list[SlotPlace | None] | None:
        """Have all ranks hold their state of a call; return where each has it. None: not all nodes answer."""
        scene = self._scene
        ranks: dict[str, list[int]] = {}
        for rank, home in enumerate(scene.homes):
            ranks.setdefault(home, []).append(rank)
        asked = {
            node: self._keepers.on(node).hold.remote(scene.layout, mine, number, self._keep)
            for node, mine in ranks.items()
        }
        answers = self._keepers.answers(asked)
        found = {rank: place for answer in answers.values() for rank, place in answer.items()}
        return [found[rank] for rank in sorted(found)] if len(answers) == len(asked) else None

    def copy(self, plan: Sequence[str], number: int, places: Sequence[SlotPlace]) -> bool:
        """Have each rank's state copied to its node of ``plan``; say whether all are whole."""
        import ray  # noqa: PLC0415 - only a gang's owner gets here

        scene = self._scene
        asked: dict[ObjectRef, tuple[str, str]] = {}
        for rank, (home, node) in enumerate(zip(scene.homes, plan, strict=True)):
            tag = CopyTag(scene.layout, rank, scene.generation, number)
            copy = self._keepers.on(node).copy.options(concurrency_group=COPYING)
            asked[copy.remote(tag, places[rank], self._keepers.on(home), self._keep)] = node, home
        try:
            return self._are_whole(asked)
        finally:
            for ref in asked:  # of a generation that is over, say: what has not begun need not
                with contextlib.suppress(Exception):
                    ray.cancel(ref)

    def _are_whole(self, asked: dict[ObjectRef, tuple[str, str]]) -> bool:
        import ray  # noqa: PLC0415 - as above

        until = time.monotonic() + _ROUND_S
        while asked and not self.is_over():
            ready, _ = ray.wait(list(asked), timeout=_ASK_S)
            for ref in ready:
                if not self._is_whole(ref, *asked.pop(ref)):
                    return False
            if not ready:
                self._keepers.ask({node for both in asked.values() for node in both})
            if time.monotonic() > until:
                for node, _ in asked.values():
                    self._keepers.failed(node, f"no copy within {_ROUND_S:.0f} s")
                return False
        return not asked

    def _is_whole(self, ref: ObjectRef, node: str, home: str) -> bool:
        import ray  # noqa: PLC0415 - as above

        try:
            end = ray.get(ref)
        except Exception as error:  # noqa: BLE001 - it is dead, or has no room
            self._keepers.failed(node, repr(error))
            return False
        if end is CopyEnd.SILENT and self._keepers.ask({home}):
            self._keepers.failed(node, f"it does not reach node {home}")
        return end is CopyEnd.WHOLE
