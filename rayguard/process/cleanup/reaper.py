"""Finds what processes left behind, and frees what is provably ours and dead.

For ``rayguard reap``, for each start of a guarded actor, and for who has just ended an engine.

What is proved, and how, is ``verdict``. Everything here is bounded by a deadline, and what cannot be looked
at is left alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rayguard.process.cleanup import belongings, orphans, own_files
from rayguard.process.cleanup.noted_file import Remains
from rayguard.process.cleanup.verdict import Fate, Leftover, Sort
from rayguard.process.identity import ProcessId, owner_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_BESIDE_S = 30.0  # in a thread of its own: on a busy machine looking alone takes more than half a second
_OF_ENGINE_S = 0.5  # while callers wait for the next one
_AFTER_S = 2.0
_ROUNDS = 4  # an engine whose processes have each other for owners


@dataclass(frozen=True, slots=True)
class FoundLeftover:
    """One leftover, and how it is ended: by a call with a deadline (monotonic), after another look."""

    shown: Leftover
    end: Callable[[float], tuple[Fate, str]]


def find(home: Path, *, explain: bool = True) -> list[FoundLeftover]:
    """Return all leftovers of this machine that ``home`` and the processes' marks tell of; changes nothing.

    ``explain`` also looks for the processes that hold what is held, which takes up to a second.
    """
    found = [
        FoundLeftover(orphans.as_leftover(one), partial(orphans.end_orphan, one)) for one in orphans.find()
    ]
    for note in belongings.notes(home):
        noted = (Remains(one, note) for one in note.belongings)
        found += [FoundLeftover(one.shown(explain=explain), one.remove) for one in noted]
    found += [FoundLeftover(one.shown, partial(own_files.remove, one)) for one in own_files.find(home)]
    return [one for one in found if one.shown.why != "gone"]


def reap(found: Sequence[FoundLeftover], *, deadline_s: float = 30.0) -> list[Leftover]:
    """End what is to be reaped among ``found``, and return what became of all."""
    deadline = time.monotonic() + deadline_s
    return [_ended(one, deadline) for one in found]


def reap_home(home: Path, *, explain: bool = True, deadline_s: float = 30.0) -> list[Leftover]:
    """Find and reap, again while processes were ended: what they held is free only then. Return all."""
    deadline = time.monotonic() + deadline_s
    done: dict[str, Leftover] = {}
    found: list[Leftover] = []
    for _ in range(_ROUNDS):
        found = reap(find(home, explain=explain), deadline_s=deadline - time.monotonic())
        reaped = {one.name: one for one in found if one.fate is Fate.REAPED}
        done |= reaped
        if not any(one.sort is Sort.PROCESS for one in reaped.values()) or time.monotonic() >= deadline:
            break
    swept = own_files.sweep(home)
    return [*done.values(), *swept, *(one for one in found if one.name not in done)]


def _ended(one: FoundLeftover, deadline: float) -> Leftover:
    if one.shown.fate is not Fate.REAP:
        return one.shown
    if time.monotonic() >= deadline:
        return replace(one.shown, fate=Fate.FAILED, why="the deadline had passed")
    try:
        fate, why = one.end(deadline)
    except FileNotFoundError:
        fate, why = Fate.LEFT, "it went by itself"
    except OSError as error:
        fate, why = Fate.FAILED, str(error)
    return replace(one.shown, fate=fate, why=why)


def free_after(
    processes: Sequence[ProcessId], home: Path, *, left_by: ProcessId | None = None
) -> list[Leftover]:
    """Free what the ended ``processes`` of an engine of ours left; for their owner, which lives on.

    Or, by the heir that had no use for it, of an engine that was ``left_by`` a dead owner. And what earlier
    ones left that took too long to die. Only what nobody holds and all users of are dead; waits up to two
    seconds for the last of them. vLLM itself cleans up when the owner ends: until then each killed core would
    cost 400 MiB of shared memory.
    """
    deadline = time.monotonic() + _AFTER_S
    for process in processes:
        orphans.wait_until_dead(process, deadline)  # one that is dying has lost its mark: not waited for yet
    marks = {owner_mark(process) for process in processes}
    note = belongings.read(belongings.path_of(home, left_by))
    if note is None or note.owner != (left_by or ProcessId.me()):
        return []
    used = [one for one in note.belongings if marks.intersection(one.users) or _nobody_lives(one)]
    remains = [Remains(one, note, asked_by_owner=left_by is None) for one in used]
    return reap(
        [FoundLeftover(one.shown(explain=False), one.remove) for one in remains], deadline_s=_OF_ENGINE_S
    )


def _nobody_lives(one: belongings.Belonging) -> bool:
    return not any(user is None or user.state() for user in one.identities())


def reap_at_start(
    home: Path,
    report: Callable[[list[Leftover]], None],
    failed: Callable[[Exception], None],
    *,
    deadline_s: float = _BESIDE_S,
) -> threading.Thread:
    """Reap in a thread of its own, at most ``deadline_s`` long; ``report`` gets what was reaped.

    Never raises: what goes wrong is given to ``failed``, also what ``report`` raises.
    """

    def run() -> None:
        try:
            done = reap_home(home, explain=False, deadline_s=deadline_s)
            report([one for one in done if one.fate in (Fate.REAPED, Fate.FAILED)])
        except Exception as error:  # noqa: BLE001 - a guarded actor starts here, and must start as it would
            with contextlib.suppress(Exception):
                failed(error)

    thread = threading.Thread(target=run, name="rayguard-reap", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread to be had: the next start reaps
        thread.start()
    return thread
