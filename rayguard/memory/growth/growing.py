"""Which quantity of which process grows from step to step, how fast and since when. Pure.

Whether it will run out is ``rayguard.memory.forecast``; which line, object or mapping makes it grow,
``finder`` finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from rayguard.memory.history import Lows
from rayguard.memory.reading import MemorySample, Quantity
from rayguard.process.flight.growth import LEAST_BYTES, LEAST_ROUNDS, growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


MIB = 1 << 20
_MOST_COURSES = 256  # a node's worth of engines; those that were seen least recently go first
_AGAIN = 1 / 16  # of the steps so far must have passed before what did not grow is looked at again
_PART = 0.5  # of the growth of a process: what has this much of it is where it lies
_SHARES = (Quantity.HEAP, Quantity.NATIVE)  # of PRIVATE
# What says most about a cause comes first; the node is the sum of all, and has none of its own.
_ORDER = (
    *(Quantity.PRIVATE, Quantity.TORCH, Quantity.DEVICE, Quantity.SHM, Quantity.MAPPED),
    *(Quantity.STORE, Quantity.DISK, Quantity.NODE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """One quantity that grows by ``bytes_per_step`` from step ``since`` on. ``pid`` 0: of no single process.

    ``level`` names the shares that do not grow. ``bytes_per_step`` is 0 where only that it grows is known.
    """

    quantity: Quantity
    pid: int = 0
    who: str = ""
    bytes_per_step: float = 0.0
    since: int = -1
    level: tuple[Quantity, ...] = ()

    def sentence(self, own_pid: int = 0) -> str:
        """Say it: "heap of this process: 20 MiB a step since step 3; native does not grow"."""
        of = f" of {self._whose(own_pid)}" if self.pid else f" ({self.who})" if self.who else ""
        rate = f": {size(self.bytes_per_step)} a step" if self.bytes_per_step else " grows"
        since = f" since step {self.since}" if self.since >= 0 else ""
        level = "; " + " and ".join(one.value for one in self.level) if self.level else ""
        return f"{self.quantity.value}{of}{rate}{since}{level + ' does not grow' if level else ''}"

    def _whose(self, own_pid: int) -> str:
        if self.pid == own_pid:
            return "this process" + (f" ({self.who})" if self.who else "")
        return f"{self.who or 'process'} {self.pid}"


def size(used: float) -> str:
    """Return bytes for people, three digits at most after rounding: "20 MiB", "1.5 GiB", "640 B"."""
    value, units = float(used), ["B", "KiB", "MiB", "GiB"]
    while abs(value) >= 1024 and len(units) > 1:  # noqa: PLR2004 - binary units
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}" if 0 < abs(value) < 10 and units[0] != "B" else f"{value:.0f} {units[0]}"  # noqa: PLR2004


_Key = tuple[Quantity, int, str]


@dataclass(slots=True)
class _Course:
    lows: Lows = field(default_factory=Lows)
    low: float = 0.0  # the least since the start
    asked_at: int = -1  # the step at which it was looked at last
    found: Growing | None = None


class Courses:
    """Remembers what was read step by step, a few kilobytes a quantity, and says what grows.

    ``add`` costs 2 us a reading. ``growing`` looks closely (1-4 ms) only at what is 16 MiB above its lowest
    point, and not again until a sixteenth more steps have passed.
    """

    def __init__(self) -> None:
        self._courses: dict[_Key, _Course] = {}
        self._step = -1

    def add(self, sample: MemorySample) -> None:
        """Take one sample in. Before the first step has ended, and without steps, nothing can be said."""
        if sample.step < 0:
            return
        if sample.step < self._step:  # another life of the process
            self._courses = {}
        self._step = sample.step
        for reading in sample.readings:
            key = reading.quantity, reading.pid, reading.who
            course = self._courses.pop(key, None) or _Course(low=reading.used)
            self._courses[key] = course  # at the end: seen most recently
            course.lows.add(sample.at, sample.step, reading.used)
            course.low = min(course.low, reading.used)
        while len(self._courses) > _MOST_COURSES:
            del self._courses[next(iter(self._courses))]

    def growing(self) -> tuple[Growing, ...]:
        """Return what grows now: what says most about the cause first, then the fastest."""
        found = {key: one for key, course in self._courses.items() if (one := self._look(key, course))}
        kept = [self._in_shares(one, found) for key, one in found.items() if not _is_share(key, found)]
        return tuple(sorted(kept, key=lambda one: (_rank(one), -one.bytes_per_step)))

    def _look(self, key: _Key, course: _Course) -> Growing | None:
        steps = self._step - course.asked_at
        if course.lows.used - course.low < LEAST_BYTES:
            course.found = None
        elif steps >= max(1, self._step * _AGAIN):
            course.asked_at, course.found = self._step, _growing(key, course.lows)
        return course.found

    def _in_shares(self, one: Growing, found: dict[_Key, Growing]) -> Growing:
        """Say of a process's growth whether it is Python's heap or native, where only one of them grows."""
        if one.quantity is not Quantity.PRIVATE:
            return one
        shares = {
            share: found.get((share, one.pid, one.who))
            for share in _SHARES
            if (share, one.pid, one.who) in self._courses
        }
        level = tuple(share for share, its in shares.items() if its is None)
        most = [its for its in shares.values() if its and its.bytes_per_step >= _PART * one.bytes_per_step]
        if len(most) != 1 or len(shares) < len(_SHARES):
            return one
        (share,) = most
        return replace(one, quantity=share.quantity, level=level)


def _growing(key: _Key, lows: Lows) -> Growing | None:
    quantity, pid, who = key
    points: Sequence[tuple[int, int]] = [(round(bin_.step), round(bin_.low)) for bin_ in lows.bins()]
    found = growth(points) if len(points) >= LEAST_ROUNDS else None
    if found is None:
        return None
    return Growing(quantity=quantity, pid=pid, who=who, bytes_per_step=found.bytes_a_round, since=found.since)


def _is_share(key: _Key, found: Iterable[_Key]) -> bool:
    return key[0] in _SHARES and (Quantity.PRIVATE, *key[1:]) in found


def _rank(one: Growing) -> int:
    return _ORDER.index(Quantity.PRIVATE if one.quantity in _SHARES else one.quantity)


def rates(points: Sequence[tuple[int, float]]) -> float:
    """Return the growth a step over ``points`` (step, amount), 0 unless it rose between all of them."""
    if len(points) < 2 or any(b <= a for (_, a), (_, b) in pairwise(points)):  # noqa: PLR2004
        return 0.0
    return (points[-1][1] - points[0][1]) / max(1, points[-1][0] - points[0][0])
