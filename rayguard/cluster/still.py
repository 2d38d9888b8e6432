"""When a living process counts as standing still: stopped by a signal, or silent against its pace. Pure.

Ray notices neither. A false alarm is worse than a late one: a call counts as silent only where its method
has often been seen to end, in a process that makes one call at a time, that uses no processor, and whose
stack does not wait for others. Who looks is ``stillness``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.process.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rayguard.process.stacks import Place, Thread

STOPPED_S = 5.0  # the pool ends its own actors after two
USUALLY = 8.0  # times the usual length of the method
LONGEST = 4.0  # times the longest one seen
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
    """One method of a process, as its live words have it; times are monotonic seconds, 0 for never."""

    name: str
    begun: int
    ended: int
    begun_at: float
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What was learned of the calls of one process. ``moved_at``: when anything happened last."""

    methods: Mapping[str, Method] = field(default_factory=dict)
    paces: Mapping[str, Pace] = field(default_factory=dict)
    longest: Mapping[str, float] = field(default_factory=dict)
    together: bool = False  # two calls at once were seen: their lengths cannot be told
    cpu_s: float = 0.0
    moved_at: float = 0.0

    def after(self, methods: Iterable[Method], cpu_s: float, now: float) -> Calls:
        """Return what is known after another look at ``now``."""
        seen = {one.name: one for one in methods}
        paces, longest = dict(self.paces), dict(self.longest)
        for one in seen.values():
            took = _took(self.methods.get(one.name), one)
            if took is not None:
                paces[one.name] = paces.get(one.name, Pace()).after(took)
                longest[one.name] = max(longest.get(one.name, 0.0), took)
        running = sum(one.begun - one.ended for one in seen.values())
        calm = seen == self.methods and cpu_s - self.cpu_s <= IDLE_RATIO * max(0.0, now - self.moved_at)
        return Calls(
            methods=seen,
            paces=paces,
            longest=longest,
            together=self.together or running > 1,
            cpu_s=self.cpu_s if calm else cpu_s,
            moved_at=self.moved_at if calm else now,
        )

    def paused(self, pause_s: float) -> Calls:
        """Return it after a time in which nobody ran, neither the process nor who looks at it."""
        return replace(self, moved_at=self.moved_at + pause_s)

    def silent(self, now: float, least_s: float) -> tuple[str, float] | None:
        """Return the method that has been silent too long, and for how long; None as it should be.

        ``least_s``: shorter silences are none, however short the method's calls are.
        """
        running = [one for one in self.methods.values() if one.begun > one.ended]
        if len(running) != 1 or self.together:
            return None
        name = running[0].name
        pace = self.paces.get(name, Pace())
        silent_s = now - max(self.moved_at, running[0].begun_at)
        limit_s = max(least_s, USUALLY * pace.usual(), LONGEST * self.longest.get(name, 0.0))
        return (name, silent_s) if pace.seen >= SEEN and silent_s >= limit_s else None


def _took(before: Method | None, now: Method) -> float | None:
    """Return how long a call took that ended between two looks; None where none did, or it cannot be told."""
    if now.ended == (0 if before is None else before.ended):
        return None
    if now.begun == now.ended:
        return now.ended_at - now.begun_at if now.ended_at >= now.begun_at else None
    if before is None or not before.ended:
        return None
    return (now.ended_at - before.ended_at) / (now.ended - before.ended)  # with the gaps: rather too long


def of_the_call(threads: Iterable[Thread]) -> tuple[Place, ...]:
    """Return the frames of the call that runs, innermost first; none where no thread makes one."""
    for thread in threads:
        places = enumerate(thread.places)
        outside = next((n for n, place in places if _RUNS_CALLS.search(f"{place.file} {place.function}")), 0)
        if outside:
            return thread.places[:outside]
    return ()


def waits_for_others(call: Iterable[Place]) -> bool:
    """Say whether a call with these frames waits for another process."""
    return any(_WAITS.search(place.file) for place in call)


def in_a_collective(call: Iterable[Place]) -> bool:
    """Say whether a call with these frames waits for the other ranks of its group."""
    return any(_COLLECTIVE.search(place.file) for place in call)


def stands(stopped_at: float, now: float) -> bool:
    """Say whether a process that has been stopped since ``stopped_at`` counts as standing still."""
    return now - stopped_at >= STOPPED_S
