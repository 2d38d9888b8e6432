"""What to do before memory runs out: the cheapest relief that has not failed yet, or why there is none.

Pure. What is measured is ``reading``, when it gets dangerous ``pressure`` and ``forecast``; carrying a relief
out, and measuring what it freed, is ``rayguard.actors.memory.relief_actions``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from rayguard.memory.pressure import Pressure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1 << 20
AGAIN_S = 60.0  # after which what did not help may be tried once more
_ENOUGH = 0.5  # of what is needed: a relief that freed less did not help
_WORTH = 0.25  # of what is needed must have grown in a process for its recycling to be worth it
_WORTH_BYTES = 32 * MIB


class Relief(str, Enum):
    """The ways to get memory back, gentle to harsh."""

    NONE = "none"
    COLLECT = "collect"  # Python's garbage, malloc's free pages, torch's cache
    FREE = "free"  # leaked object references of ended scopes
    REDUCE = "reduce"  # the user's own hook: less concurrency, smaller micro-batches
    ENGINE = "engine"  # a new engine in the place of the one this process owns; its requests go on
    RECYCLE = "recycle"  # a new process for this actor, at a step boundary


ORDER = (Relief.COLLECT, Relief.FREE, Relief.REDUCE, Relief.ENGINE, Relief.RECYCLE)
COSTLY = frozenset(
    {Relief.REDUCE, Relief.ENGINE, Relief.RECYCLE}
)  # in work done: not before memory is nearly out


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Why relief is needed, and how much.

    ``wanted``: bytes that must come back to be out of danger. ``grown``: bytes that this process has taken
    since it was warm: all that its recycling can be hoped to give back; ``engine_grown``: the same of the
    engine that it owns. ``soon``: a forecast says that it runs out within the policy's horizon.
    """

    pressure: Pressure = Pressure.OK
    soon: bool = False
    wanted: int = 0
    grown: int = 0
    engine_grown: int = 0

    @property
    def any(self) -> bool:
        """Whether something is to be done at all."""
        return self.soon or self.pressure > Pressure.OK

    @property
    def urgent(self) -> bool:
        """Whether it may cost something."""
        return self.soon or self.pressure is Pressure.HARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One relief and what it gave back. ``at`` is monotonic seconds; ``freed`` bytes, below 0 never."""

    relief: Relief
    at: float
    freed: int = 0
    took_s: float = 0.0

    def __str__(self) -> str:
        """Say it for an incident."""
        return f"{self.relief.value} freed {self.freed / MIB:.0f} MiB in {self.took_s:.2f} s"


class ReliefDecision(NamedTuple):
    """The next relief, or none and why."""

    relief: Relief
    reason: str = ""


def decide(need: Need, tried: Sequence[Tried], cannot: Mapping[Relief, str], now: float) -> ReliefDecision:
    """Return what to try next.

    ``cannot`` says for each relief that is not open to this process why it is not. A relief that freed less
    than half of what is needed is not tried again for a minute. What costs work waits until it is urgent;
    what costs none comes first all the same, since it takes milliseconds.
    """
    if not need.any:
        return ReliefDecision(Relief.NONE)
    refused = []
    for relief in ORDER:
        why = cannot.get(relief) or _useless(relief, need, tried, now)
        if not why:
            return ReliefDecision(relief)
        if relief is not Relief.ENGINE or need.engine_grown:
            refused.append(f"{relief.value}: {why}")
    return ReliefDecision(Relief.NONE, "; ".join(refused))


def _useless(relief: Relief, need: Need, tried: Sequence[Tried], now: float) -> str:
    if relief in COSTLY and not need.urgent:
        return "not before it is urgent"
    last = next((one for one in reversed(tried) if one.relief is relief), None)
    if last is not None and now - last.at < AGAIN_S and last.freed < need.wanted * _ENOUGH:
        return f"freed only {last.freed / MIB:.0f} of {need.wanted / MIB:.0f} MiB"
    worth = max(_WORTH_BYTES, need.wanted * _WORTH)
    if relief is Relief.RECYCLE and need.grown < worth:
        return f"this process has grown by {need.grown / MIB:.0f} MiB only since it was warm"
    if relief is Relief.ENGINE and need.engine_grown < max(worth, need.grown):
        return f"the engine has grown by {need.engine_grown / MIB:.0f} MiB only"
    return ""
