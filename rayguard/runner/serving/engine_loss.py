"""Whether an engine of a server is gone for good, from looks at its processes. Pure.

An engine process is one that has vLLM's title. Beside it counts who stands between it and the command:
ms-swift has a worker there that has no title of its own. Helpers that come and go count for nothing.

Gone is: a living process had engines, and has none left; or an engine crashed and its parent has not even
noticed. An engine that went while its parent keeps others is the parent's own affair: it may be scaled down.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayguard.runner.serving.found import GONE, NotServing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rayguard.process.identity import ProcessId
    from rayguard.runner.serving.patience import ServingPatience

_IN_ORDER = frozenset({0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class LivingProcess:
    """A living process of a server. ``title``: of an engine, '' for another process."""

    parent: ProcessId | None
    title: str = ""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended. ``unnoticed``: its parent has not asked yet, so that it is a zombie."""

    exitcode: int | None = None  # as subprocess has it; None where nobody can tell
    unnoticed: bool = False

    @property
    def crashed(self) -> bool:
        """Say whether it is known that it did not end in order."""
        return self.exitcode is not None and self.exitcode not in _IN_ORDER

    def __str__(self) -> str:
        if self.exitcode is None:
            return "ended, nobody can tell how"
        if self.exitcode >= 0:
            return f"ended with exit code {self.exitcode}"
        number = -self.exitcode
        name = signal.Signals(number).name if number in signal.Signals.__members__.values() else number
        return f"was ended by {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """A process without which an engine cannot be reached."""

    parent: ProcessId
    name: str
    came_at: float
    lost_at: float | None = None


class EngineLoss:
    """What one life of a server has of engines. ``replaces``: it may make new ones, as far as is known."""

    def __init__(self, leader: ProcessId, patience: ServingPatience, *, replaces: bool) -> None:
        self._leader, self._patience, self._replaces = leader, patience, replaces
        self._needed: dict[ProcessId, _Needed] = {}
        self._story: list[str] = []  # what crashed, the first first

    def needed(self, living: Mapping[ProcessId, LivingProcess], now: float) -> tuple[ProcessId, ...]:
        """Take in who lives; return those that are needed, also those that went: how they ended is asked."""
        for engine in (one for one, standing in living.items() if standing.title):
            for process, standing in self._path(engine, living):
                if process not in self._needed and standing.parent is not None:
                    name = standing.title or f"the parent of {living[engine].title}"
                    self._needed[process] = _Needed(parent=standing.parent, name=name, came_at=now)
        for process, one in self._needed.items():
            if process in living:
                self._needed[process] = replace(one, lost_at=None)
            elif one.lost_at is None:
                self._needed[process] = replace(one, lost_at=now)
        return tuple(self._needed)

    def judge(
        self,
        living: Mapping[ProcessId, LivingProcess],
        ends: Mapping[ProcessId, ProcessEnd],
        now: float,
        *,
        served: bool,
    ) -> NotServing | None:
        """Return what was lost for good; None as long as it may be replaced.

        Args:
            living: The command and what descends from it.
            ends: Of those that ``needed`` named and that live no more.
            now: In seconds of a clock that never goes back.
            served: Whether it had begun to listen: a start that fails ends by itself, and says why.
        """
        self._note(ends)
        for parent in {one.parent for one in self._needed.values() if one.lost_at is not None}:
            self._forget_replaced(parent, alive=parent in living)
            lost = self._lost_for_good(parent, ends)
            crashed = [process for process in lost if ends[process].crashed]
            quick = crashed and served and not self._replaces
            since = max((self._needed[process].lost_at or now for process in lost), default=now)
            if lost and now - since >= (self._patience.crashed_s if quick else self._patience.lost_s):
                return self._found((crashed or lost)[0], ends, now - since)
        return None

    def _lost_for_good(self, parent: ProcessId, ends: Mapping[ProcessId, ProcessEnd]) -> list[ProcessId]:
        """Return what ``parent`` lost, unless it goes on with the others and knows of it."""
        its = {process: one for process, one in self._needed.items() if one.parent == parent}
        lost = [process for process, one in its.items() if one.lost_at is not None and process in ends]
        if len(lost) == len(its):
            return lost
        return [process for process in lost if ends[process].unnoticed and ends[process].crashed]

    def _note(self, ends: Mapping[ProcessId, ProcessEnd]) -> None:
        for process, end in ends.items():
            one = self._needed.get(process)
            if one is not None and end.crashed:
                said = f"{one.name} (process {process.pid}) {end}"
                self._story = [*dict.fromkeys((*self._story, said))][-_REMEMBERED:]

    def _forget_replaced(self, parent: ProcessId, *, alive: bool) -> None:
        """Leave out what another one came after, and what went with its parent: that one counts then."""
        newest = max(one.came_at for one in self._needed.values() if one.parent == parent)
        for process, one in [*self._needed.items()]:
            if one.parent == parent and one.lost_at is not None and (newest >= one.lost_at or not alive):
                del self._needed[process]

    def _path(
        self, engine: ProcessId, living: Mapping[ProcessId, LivingProcess]
    ) -> Iterator[tuple[ProcessId, LivingProcess]]:
        """Yield an engine and its ancestors below the command."""
        at: ProcessId | None = engine
        while at is not None and at != self._leader and at in living:
            yield at, living[at]
            at = living[at].parent

    def _found(self, process: ProcessId, ends: Mapping[ProcessId, ProcessEnd], for_s: float) -> NotServing:
        said = f"{self._needed[process].name} (process {process.pid}) {ends[process]}"
        cause = f"the server lives on without its engine: {said}, and nothing took its place in {for_s:.0f} s"
        return NotServing(GONE, cause, tuple(dict.fromkeys((*self._story, said))))
