"""When a living process counts as standing still: stopped by a signal, or silent against its pace. Pure.

Ray notices neither. A false alarm is worse than a late one: a call counts as silent only where its method
has often ended, in a process that makes one call at a time, that uses no processor, and whose stack does not
wait for others. How long calls took the process itself knows (its flight recording). Who looks is
``stalled_workers``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayguard.process.stacks import CodePlace, Thread

STOPPED_S = 5.0  # the pool ends its own actors after two
LONGEST = 5.0  # times the longest call of the method
SEEN = 20  # calls that tell how long a method takes
IDLE_RATIO = 0.01  # of a core
PAUSED = 5.0  # rounds late: the machine slept, and with it everything that it judges
# What Ray, or an event loop, runs a call from: frames further out are in every worker.
_RUNS_CALLS = re.compile(
    r"ray/_private/(?:function_manager\.py actor_method_executor|worker\.py main_loop)$"
    r"|(?:^|/)asyncio/events\.py _run$"
)
# Who waits for another process is no hang, however long that takes.
_WAITS = re.compile(
    r"ray/_private/worker\.py|ray/_raylet|ray/experimental/channel/"
    r"|(?:^|/)(?:queue|selectors|select|socket|ssl|subprocess)\.py|multiprocessing/(?:connection|popen_\w+|pool)\.py"
)
_COLLECTIVE = re.compile(r"torch/distributed/(?:distributed_c10d|_functional_collectives|rendezvous)\.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of a process, as its live words have it; times are monotonic seconds, 0 for never.

    ``longest_s``: of its calls that have ended; None where two ran at once, so that it cannot be told.
    """

    name: str
    begun: int
    ended: int
    begun_at: float
    ended_at: float
    longest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCalls:
    """The calls of one process as they were seen last. ``moved_at``: when anything happened last."""

    methods: tuple[Method, ...] = ()
    cpu_s: float = 0.0
    moved_at: float = 0.0

    def after(self, methods: Iterable[Method], cpu_s: float, now: float) -> RunningCalls:
        """Return what is known after another look at ``now``."""
        seen = tuple(methods)
        calm = seen == self.methods and cpu_s - self.cpu_s <= IDLE_RATIO * max(0.0, now - self.moved_at)
        return self if calm else RunningCalls(methods=seen, cpu_s=cpu_s, moved_at=now)

    def paused(self, pause_s: float) -> RunningCalls:
        """Return it after a time in which nobody ran, neither the process nor who looks at it."""
        return replace(self, moved_at=self.moved_at + pause_s)

    def silent(self, now: float, least_s: float) -> tuple[str, float] | None:
        """Return the method that has been silent too long, and for how long; None as it should be.

        ``least_s``: shorter silences are none, however short the method's calls are.
        """
        running = [one for one in self.methods if one.begun > one.ended]
        if len(running) != 1:
            return None
        (one,) = running
        if one.begun - one.ended > 1 or one.ended < SEEN or one.longest_s is None:
            return None
        silent_s = now - max(self.moved_at, one.begun_at)
        return (one.name, silent_s) if silent_s >= max(least_s, LONGEST * one.longest_s) else None


def of_the_call(threads: Iterable[Thread]) -> tuple[CodePlace, ...]:
    """Return the frames of the call that runs, innermost first; none where no thread makes one."""
    for thread in threads:
        places = enumerate(thread.places)
        outside = next((n for n, place in places if _RUNS_CALLS.search(f"{place.file} {place.function}")), 0)
        if outside:
            return thread.places[:outside]
    return ()


def waits_for_others(call: Iterable[CodePlace]) -> bool:
    """Say whether a call with these frames waits for another process."""
    return any(_WAITS.search(place.file) for place in call)


def in_a_collective(call: Iterable[CodePlace]) -> bool:
    """Say whether a call with these frames waits for the other ranks of its group."""
    return any(_COLLECTIVE.search(place.file) for place in call)


def stands(stopped_at: float, now: float) -> bool:
    """Say whether a process that has been stopped since ``stopped_at`` counts as standing still."""
    return now - stopped_at >= STOPPED_S
