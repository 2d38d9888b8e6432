"""Who ended a process: evidence in, verdict out. Pure.

Gathering the evidence is ``evidence``. A process that was killed cannot say by whom, and Ray guesses;
so the strong signs come first (a word of who did it, the kernel's log, an exit code), and a person's SIGKILL
is what is left when memory was far from every limit and nobody has said anything.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RAYGUARD = "rayguard: "  # how a word of ours begins
FULL_RATIO = 0.9  # of memory in use: less is far from every limit
FRESH_S = 5.0  # a recording that ends earlier before the death says little about it
_SILENT = "died without a word: by SIGKILL"
HOST_OOM, ACTOR_DIED = "host_oom", "actor_died"  # of rayguard.faults.diagnosis.Kind

_LOW_MEMORY = re.compile(r"running low on memory|NODE_OUT_OF_MEMORY|OOM kill reason")
_RATIO = re.compile(r"limit \((\d\.\d+)\)")
_EXIT_CODE = re.compile(r"\bexit code (\d+)")
_OOM = re.compile(r"Killed process (\d+)")
_CRASHES = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)
# Written by Ray's handler, by Python's faulthandler, and by the C++ library.
_CRASH_SAID = re.compile(
    r"\*\*\* (SIG[A-Z]+) received at time=|Fatal Python error: (Segmentation fault|Aborted|Bus error|"
    r"Illegal instruction|Floating-point exception)|(terminate called)"
)
_PYTHONS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating-point exception": "SIGFPE",
    "terminate called": "SIGABRT",
}


class Killer(str, Enum):
    """Who ended it."""

    KERNEL = "kernel"  # out of memory
    RAY_MEMORY = "ray_memory_monitor"
    RAY = "ray"  # on somebody's request
    OUTSIDE = "outside"  # a person or another program
    ITSELF = "itself"
    RAYGUARD = "rayguard"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathEvidence:
    """What is known about one death; a field that nobody could fill is empty or None.

    ``exitcode`` is as in ``multiprocessing``. ``group_kills`` and ``node_kills`` count the kernel's
    out-of-memory kills from the last moment that the process saw to now. ``silent_s`` is the time from the
    last sign of life in its recording to its death. Where its own recorder did not run (not ``recorded``),
    that it said nothing of its end means nothing.
    """

    pid: int
    exitcode: int | None = None
    ray_kind: str = ""  # Ray's WorkerExitType
    ray_said: str = ""
    ending: str = ""  # what the process said of its end
    stderr: tuple[str, ...] = ()
    kernel_log: tuple[str, ...] = ()
    group_kills: int | None = None
    node_kills: int | None = None
    node_ratio: float | None = None  # of memory in use when it was last seen
    private_bytes: int | None = None
    silent_s: float | None = None
    recorded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseOfDeath:
    """The verdict. ``how`` goes on from "process 12": "was killed by ... at 95.2 %"."""

    killer: Killer
    kind: str
    how: str
    confidence: float
    evidence: tuple[str, ...] = ()

    @property
    def of_memory(self) -> bool:
        """Say whether memory was why."""
        return self.kind == HOST_OOM


def who_killed(evidence: DeathEvidence) -> CauseOfDeath:
    """Return who ended the process, surest sign first."""
    return next(verdict for look in _LOOKS if (verdict := look(evidence)) is not None)


def _ray_memory(seen: DeathEvidence) -> CauseOfDeath | None:
    if seen.ray_kind != "NODE_OUT_OF_MEMORY" and not _LOW_MEMORY.search(seen.ray_said):
        return None
    ratio = _RATIO.search(seen.ray_said)
    at = f" at {100 * float(ratio[1]):.1f} %" if ratio else ""
    first = seen.ray_said.strip().splitlines()[:2]
    return CauseOfDeath(
        killer=Killer.RAY_MEMORY,
        kind=HOST_OOM,
        how=f"was killed by Ray's memory monitor{at}",
        confidence=0.99,
        evidence=tuple(f"Ray: {line[:300]}" for line in first),
    )


def _rayguard(seen: DeathEvidence) -> CauseOfDeath | None:
    if not seen.ending.startswith(RAYGUARD):
        return None
    return _itself(seen, Killer.RAYGUARD, f"was ended by {seen.ending}", 0.99)


def _kernel_log(seen: DeathEvidence) -> CauseOfDeath | None:
    named = [line for line in seen.kernel_log if (pid := _OOM.search(line)) and int(pid[1]) == seen.pid]
    if not named:
        return None
    return _kernel(seen, 0.99, *(f"kernel: {line}" for line in named[-2:]))


def _exit(seen: DeathEvidence) -> CauseOfDeath | None:
    if "receives a SIGTERM" in seen.ray_said or seen.exitcode == -signal.SIGTERM:
        how = "was told to go (SIGTERM) by a person, a scheduler or another program"
        return _itself(seen, Killer.OUTSIDE, how, 0.95)
    said = _EXIT_CODE.search(seen.ray_said)
    code = seen.exitcode if seen.exitcode is not None or said is None else int(said[1])
    if code is None or code == -signal.SIGKILL:
        return None
    if code >= 0:
        how = seen.ending or "sys.exit or the end of its program"
        return _itself(seen, Killer.ITSELF, f"ended itself with exit code {code} ({how})", 0.97)
    name = _signal(-code)
    if -code in _CRASHES:
        return _itself(seen, Killer.ITSELF, f"was killed by signal {-code} ({name}), its own crash", 0.97)
    return _itself(seen, Killer.OUTSIDE, f"was killed by signal {-code} ({name}), which somebody sent", 0.9)


def _own_word(seen: DeathEvidence) -> CauseOfDeath | None:
    if not seen.ending:
        return None
    return _itself(seen, Killer.ITSELF, f"ended itself: {seen.ending}", 0.97)


def _crash(seen: DeathEvidence) -> CauseOfDeath | None:
    for line in reversed(seen.stderr):
        said = _CRASH_SAID.search(line)
        if said:
            words = next(filter(None, said.groups()))
            name = _PYTHONS.get(words, words)
            return _itself(seen, Killer.ITSELF, f"crashed ({name})", 0.95)
    return None


def _ray(seen: DeathEvidence) -> CauseOfDeath | None:
    if seen.ray_kind == "INTENDED_USER_EXIT":
        return _itself(seen, Killer.ITSELF, "ended itself as it wished (exit_actor or sys.exit(0))", 0.95)
    if seen.ray_kind == "INTENDED_SYSTEM_EXIT":
        return _itself(seen, Killer.RAY, "was ended by Ray, which was asked to", 0.95)
    return None


def _kernel_counts(seen: DeathEvidence) -> CauseOfDeath | None:
    if seen.group_kills:
        said = f"its memory cgroup counts more than before: oom_kill event, {seen.group_kills} times"
        return _kernel(seen, 0.9, said)
    if seen.node_kills and (seen.node_ratio is None or seen.node_ratio >= FULL_RATIO):
        said = f"the machine counts more than before: oom_kill event, {seen.node_kills} times"
        return _kernel(seen, 0.75, said)
    return None


def _outside(seen: DeathEvidence) -> CauseOfDeath | None:
    known = seen.silent_s is not None and seen.silent_s <= FRESH_S and seen.node_ratio
    if not known and seen.exitcode is None:
        return None
    if not known:
        return _itself(seen, Killer.OUTSIDE, f"{_SILENT}, nobody knows whose", 0.6)
    assert seen.node_ratio is not None
    share = f"memory was at {100 * seen.node_ratio:.0f} %"
    counts = [count for count in (seen.group_kills, seen.node_kills) if count is not None]
    kernel = "the kernel killed nobody for memory" if counts and not any(counts) else ""
    signs = ", ".join(filter(None, (share, kernel, "it said nothing itself" if seen.recorded else "")))
    if seen.node_ratio >= FULL_RATIO:
        how = f"{_SILENT}, likely of a program that guards memory ({signs})"
        return CauseOfDeath(killer=Killer.OUTSIDE, kind=HOST_OOM, how=how, confidence=0.6, evidence=(signs,))
    if not seen.recorded and seen.exitcode is None:
        return _itself(seen, Killer.UNKNOWN, f"{_SILENT} or os._exit ({signs})", 0.4, signs)
    sure = 0.95 if seen.exitcode == -signal.SIGKILL else 0.85
    how = f"{_SILENT} of a person or another program ({signs})"
    return _itself(seen, Killer.OUTSIDE, how, sure, signs)


def _unknown(seen: DeathEvidence) -> CauseOfDeath:
    how = f"{_SILENT} (also of the kernel, out of memory) or os._exit"
    return _itself(seen, Killer.UNKNOWN, how, 0.3)


_LOOKS: tuple[Callable[[DeathEvidence], CauseOfDeath | None], ...] = (
    _ray_memory,
    _rayguard,
    _kernel_log,
    _ray,
    _exit,
    _own_word,
    _crash,
    _kernel_counts,
    _outside,
    _unknown,
)


def _kernel(seen: DeathEvidence, confidence: float, *evidence: str) -> CauseOfDeath:
    at = f" at {100 * seen.node_ratio:.1f} %" if seen.node_ratio else ""
    return CauseOfDeath(
        killer=Killer.KERNEL,
        kind=HOST_OOM,
        how=f"was killed by the kernel, out of memory{at}",
        confidence=confidence,
        evidence=evidence,
    )


def _itself(seen: DeathEvidence, killer: Killer, how: str, confidence: float, *more: str) -> CauseOfDeath:
    said = [f"Ray: {seen.ray_kind} {seen.ray_said}".strip()[:300]] if seen.ray_kind or seen.ray_said else []
    return CauseOfDeath(
        killer=killer, kind=ACTOR_DIED, how=how, confidence=confidence, evidence=(*more, *said)
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "no signal of this system"
