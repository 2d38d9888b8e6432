"""From which checkpoint a command goes on: from one that is proved to be whole, or not at all.

Which checkpoint is whole and finite is ``checkpoint_look``'s to say; how a framework is told to go on from it
is its dialect's. A checkpoint that lay there before the run, and that the framework would not take by itself,
is another run's.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from rayguard.runner.checkpoint_look import CheckpointVerdict
from rayguard.runner.machine import NoStart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rayguard.dialects.dialect import CheckpointPlace, Command, Dialect
    from rayguard.runner.checkpoint_look import CheckpointLook

_STEP = re.compile(r"(\d+)\D*$")
_UNKNOWN_PLACE = (
    "it is not known where it keeps its checkpoints: started again, it would begin anew and overwrite what "
    "it made (--retry-unknown allows it)"
)


class FindsGood(Protocol):
    """Reads checkpoints, as ``rayguard.runner.checkpoint_look.newest_good`` does; changes nothing."""

    def __call__(self, place: CheckpointPlace, *, deadline_s: float) -> CheckpointVerdict:
        """Return the newest one that is whole, and what was passed over, within about ``deadline_s``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a command is started again."""

    command: Command
    checkpoint: Path | None = None
    notes: tuple[str, ...] = ()


def there(place: CheckpointPlace | None) -> dict[Path, int]:
    """Return the checkpoints that lie at a place, and when each was last changed."""
    found: dict[Path, int] = {}
    if place is not None:
        with contextlib.suppress(OSError, ValueError):
            for path in place.folder.glob(place.pattern):
                with contextlib.suppress(OSError):
                    found[path] = path.stat().st_mtime_ns
    return found


def own(place: CheckpointPlace | None, before: Mapping[Path, int]) -> dict[Path, int]:
    """Return the checkpoints that this run may go on from, given what lay there ``before`` it."""
    now = there(place)
    if place is None or place.resumes_newest:
        return now
    return {path: changed for path, changed in now.items() if before.get(path) != changed}


def furthest(checkpoints: Mapping[Path, int]) -> int | None:
    """Return the latest step of ``checkpoints``, by their names; None where there is none."""
    steps = (_STEP.search(path.name) for path in checkpoints)
    return max((int(step[1]) for step in steps if step is not None), default=None)


def own_good(
    find: FindsGood, place: CheckpointPlace, before: Mapping[Path, int], deadline_s: float
) -> CheckpointVerdict:
    """Return what ``find`` says of this run's own checkpoints, newest first."""
    mine = own(place, before)
    if len(mine) == len(there(place)):
        return find(place, deadline_s=deadline_s) if mine else CheckpointVerdict(None)
    passed_over: list[CheckpointLook] = []
    for path in sorted(mine, key=lambda one: mine[one], reverse=True):
        alone = replace(place, pattern=path.relative_to(place.folder).as_posix())
        seen = find(alone, deadline_s=deadline_s / len(mine))
        passed_over += seen.passed_over
        if seen.good is not None:
            return CheckpointVerdict(seen.good, tuple(passed_over))
    return CheckpointVerdict(None, tuple(passed_over))


def start(
    dialect: Dialect | None,
    command: Command,
    place: CheckpointPlace | None,
    seen: CheckpointVerdict | None,
    *,
    made_nothing: bool,
) -> Start | NoStart:
    """Return how ``command`` goes on.

    ``made_nothing``: it ended too soon to have made anything that would be lost, or may begin anew.
    """
    if dialect is None or place is None or seen is None:
        return Start(command=command) if made_nothing else NoStart(_UNKNOWN_PLACE)
    notes = tuple(f"{one.path} is not taken: {one.why}" for one in seen.passed_over)
    if seen.good is not None:
        return _from(dialect, command, seen.good, notes)
    if seen.undecided:
        one = seen.undecided[0]
        return NoStart(f"whether {one.path} is whole and finite could not be told ({one.why})")
    if not (seen.rejected and place.resumes_newest):
        return Start(command=command, notes=notes)
    changed = dialect.resumed(command, None)  # by itself it would take the broken one
    if changed.refused:
        return NoStart(_refused(changed.refused, "begin anew"))
    return Start(command=changed.command, notes=notes)


def _from(dialect: Dialect, command: Command, checkpoint: Path, notes: tuple[str, ...]) -> Start | NoStart:
    changed = dialect.resumed(command, checkpoint)
    if changed.refused:
        return NoStart(_refused(changed.refused, f"go on from {checkpoint}, which is whole"))
    return Start(command=changed.command, checkpoint=checkpoint, notes=notes)


def _refused(refused: Mapping[str, str], what: str) -> str:
    return f"it cannot be told to {what}: {'; '.join(refused.values())}"
