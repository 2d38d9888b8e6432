"""Who holds memory on a node: processes become rows, an engine's whole tree under the actor that owns it.

Pure: values in, rows out. Where the processes come from is ``rayguard.memory.probes.census``, how rows look
``rayguard.cli.memory``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ENGINE_TITLES = ("VLLM::", "rayguard::")
_RAY_PROGRAMS = frozenset({"raylet", "gcs_server"})
_RAY_FOLDERS = ("/ray/dashboard/", "/ray/_private/", "/ray/autoscaler/", "/ray/util/client/")
_CODE_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process and its bytes; None where nobody may know. ``objects`` are those of Ray's that it owns."""

    pid: int
    parent: int
    arguments: tuple[str, ...]
    started: int = 0  # clock ticks since boot
    private: int | None = None
    shared: int = 0
    pss: int | None = None
    device: int = 0
    objects: int = 0
    guarded: str = ""  # what rayguard's status page calls it
    watched: str = ""  # the same, where nothing in it is guarded
    driver: bool = False

    @property
    def name(self) -> str:
        """What people call it."""
        return spoken(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One row: a process with those that belong to it.

    ``private`` adds up what each holds alone, so pages that forked children still share count once for each;
    ``pss`` counts them right. ``shared`` is the largest one's: they mostly share the same pages.
    """

    name: str
    pid: int = 0  # of the head; 0 for the row of all others
    processes: int = 1
    private: int = 0
    pss: int | None = None
    shared: int = 0
    device: int = 0
    objects: int = 0
    guarded: str = ""
    watched: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows, largest first; ``others`` sums up those beyond the top, without ``unreadable`` ones."""

    rows: tuple[Holder, ...] = ()
    others: Holder | None = None
    unreadable: int = 0


def table(processes: Iterable[Process], *, top: int = 12) -> Table:
    """Return at most ``top`` rows, those that hold most first.

    Invariant: each process that can be read is counted in exactly one row, or in ``others``.
    """
    everybody = {process.pid: process for process in processes}
    readable = {pid: process for pid, process in everybody.items() if process.private is not None}
    groups: dict[int, list[Process]] = {}
    for process in readable.values():
        groups.setdefault(_head(process, readable).pid, []).append(process)
    rows = sorted((_row(readable[pid], members) for pid, members in groups.items()), key=_weight)
    return Table(
        rows=tuple(rows[:top]),
        others=_together(rows[top:]) if rows[top:] else None,
        unreadable=len(everybody) - len(readable),
    )


def spoken(arguments: Sequence[str]) -> str:
    """Return a short name for a command line: its title, its script, its program."""
    if not arguments or not arguments[0]:
        return "(no name)"
    if "::" in arguments[0]:
        return arguments[0].strip()
    program = PurePosixPath(arguments[0]).name
    if program.startswith("python"):
        return _python_program(program, list(arguments[1:]))
    return program.partition(" ")[0].rstrip(":") or arguments[0][:_CODE_CHARS]


def _python_program(program: str, words: list[str]) -> str:
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[2:] if words[0] in ("-X", "-W") else words[1:]
    if not words:
        return program
    if words[0] in ("-m", "-c"):
        return f"python {words[0]} {' '.join(words[1:2])[:_CODE_CHARS]}"
    of_ray = "ray " if any(folder in words[0] for folder in _RAY_FOLDERS) else "python "
    return of_ray + PurePosixPath(words[0]).name


def _head(process: Process, all_of_them: Mapping[int, Process]) -> Process:
    """Return whose row it is in: the nearest actor, driver or guarded process from it upwards, or itself."""
    if _is_head(process):
        return process
    above = _above(process, all_of_them)
    found = next((one for one in above if _is_head(one)), None)
    if found is not None and not _is_of_ray(found):
        return found
    # An engine without Ray belongs to the program that started it; one whose owner died (it is the kernel's
    # or the raylet's child then) to nobody.
    if _is_engine(process):
        owner = next((one for one in above if not _is_engine(one)), None)
        if owner is not None and not _is_of_ray(owner) and owner.name.startswith("python"):
            return owner
    return process


def _above(process: Process, all_of_them: Mapping[int, Process]) -> list[Process]:
    found: list[Process] = []
    seen = {process.pid}
    parent = all_of_them.get(process.parent)
    while parent is not None and parent.pid not in seen:  # a pid reused while we read can make a ring
        seen.add(parent.pid)
        found.append(parent)
        parent = all_of_them.get(parent.parent)
    return found


def _is_head(process: Process) -> bool:
    named = process.guarded or process.watched
    return bool(named) or process.driver or process.name.startswith("ray::") or _is_of_ray(process)


def _is_of_ray(process: Process) -> bool:
    return process.name in _RAY_PROGRAMS or process.name.startswith("ray ")


def _is_engine(process: Process) -> bool:
    return process.name.startswith(_ENGINE_TITLES)


def _row(head: Process, members: Sequence[Process]) -> Holder:
    known = [member.pss for member in members if member.pss is not None]
    orphan = _is_engine(head) and not head.guarded and not head.watched
    return Holder(
        name=f"{head.name} (no owner)" if orphan else head.name,
        pid=head.pid,
        processes=len(members),
        private=sum(one.private or 0 for one in members),
        pss=sum(known) if len(known) == len(members) else None,  # a part of the sum would be a wrong number
        shared=max(one.shared for one in members),
        device=sum(one.device for one in members),
        objects=sum(one.objects for one in members),
        guarded=head.guarded,
        watched=head.watched,
    )


def _together(rows: Sequence[Holder]) -> Holder:
    known = [row.pss for row in rows if row.pss is not None]
    return Holder(
        name="others",
        processes=sum(row.processes for row in rows),
        private=sum(row.private for row in rows),
        pss=sum(known) if len(known) == len(rows) else None,
        shared=max(row.shared for row in rows),
        device=sum(row.device for row in rows),
        objects=sum(row.objects for row in rows),
    )


def _weight(row: Holder) -> tuple[int, int]:
    return -(row.private + row.device + row.objects), row.pid
