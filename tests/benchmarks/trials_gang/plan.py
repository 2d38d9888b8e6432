"""What happens in which trial of a gang: drawn from a seed, the same for the same seed.

Pure. How a rank is struck is ``strikes``, how a trial is held ``arena``; what came of it is ``oracle``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RANKS = 3  # with two, neither an odd one out nor another order of sums can be seen
STEPS = 7
FIRST_STRUCK, LAST_STRUCK = 1, STEPS - 2  # what strikes after its step has ended still strikes a step
SEEDS = (11, 12, 13)  # of models and data; each has a reference of its own
LATEST = 1.1  # of a step's time: some instants lie between two calls


class Strategy(str, Enum):
    """How the ranks share the model."""

    FSDP2 = "fsdp2"
    DDP = "ddp"


class Kind(str, Enum):
    """A way to break a gang."""

    KILL = "kill"
    KILL_ZERO = "kill_rank_0"
    KILL_TWO = "kill_two"
    KILL_IN_SNAPSHOT = "kill_in_snapshot"
    KILL_IN_RECOVERY = "kill_in_recovery"
    STOP_INSIDE = "stop_inside"  # SIGSTOP while it stands in a collective
    STOP_OUTSIDE = "stop_outside"
    GIL = "gil"  # C code that keeps Python's lock
    LOOP = "endless_loop"
    DEADLOCK = "deadlock"
    ODD = "odd_collective"  # another one than the others
    SKIPPED = "skipped_collective"  # it returns, and the others wait for it
    RAISE = "raise"  # an ordinary error of its own: the caller's

    @property
    def by_driver(self) -> bool:
        """Say whether it strikes from outside, at any instant; else the rank strikes itself, at a place."""
        return self in {Kind.KILL, Kind.KILL_ZERO, Kind.KILL_TWO, Kind.KILL_IN_RECOVERY}

    @property
    def kills(self) -> bool:
        """Say whether a process ends at once."""
        return self.by_driver or self is Kind.KILL_IN_SNAPSHOT

    @property
    def hangs(self) -> bool:
        """Say whether the others wait."""
        return not self.kills and self is not Kind.RAISE

    @property
    def replaces(self) -> bool:
        """Say whether a rank's process is to be replaced; else all live on, and a spare is not needed."""
        return self not in {Kind.RAISE, Kind.ODD, Kind.SKIPPED}


@dataclass(frozen=True, slots=True)
class Place:
    """One gang, on which trials are held one after the other."""

    strategy: Strategy
    spares: int

    def __str__(self) -> str:
        """Name it, for people."""
        return f"{self.strategy.value}{' + spares' if self.spares else ''}"


# Two spares: two ranks may die at once, or one in the recovery of another.
PLACES = tuple(Place(strategy, spares) for strategy in Strategy for spares in (2, 0))


@dataclass(frozen=True, slots=True)
class Trial:
    """A fault: which, of which ranks, in which step; ``moment`` is a part of the step, or of what it hits."""

    number: int
    kind: Kind
    place: Place
    ranks: tuple[int, ...]
    step: int
    moment: float
    seed: int

    def __str__(self) -> str:
        """Tell it in a line."""
        who = " and ".join(map(str, self.ranks))
        return f"{self.number}: {self.kind.value} of rank {who} in step {self.step} ({self.place})"


def plan(count: int, seed: int, kinds: Sequence[Kind] = tuple(Kind)) -> tuple[Trial, ...]:
    """Return ``count`` trials: all kinds in turn, each at all places in turn."""
    dice = random.Random(f"gang {seed}")
    first = {kind: dice.randrange(len(PLACES)) for kind in kinds}
    trials: list[Trial] = []
    order: list[Kind] = []
    for number in range(count):
        if number % len(kinds) == 0:
            order = dice.sample(list(kinds), len(kinds))
        kind = order[number % len(kinds)]
        place = PLACES[(first[kind] + number // len(kinds)) % len(PLACES)]
        trials.append(
            Trial(
                number,
                kind,
                place,
                _struck(kind, dice),
                dice.randint(FIRST_STRUCK, LAST_STRUCK),
                dice.uniform(0.0, LATEST),
                dice.choice(SEEDS),
            )
        )
    return tuple(trials)


def _struck(kind: Kind, dice: random.Random) -> tuple[int, ...]:
    """Return the ranks that are struck, in their order in time."""
    if kind is Kind.KILL_ZERO:
        return (0,)
    if kind is Kind.KILL_TWO:
        return tuple(dice.sample(range(RANKS), 2))
    if kind is Kind.KILL_IN_RECOVERY:  # the second may be the one that took the first's place
        return dice.randrange(RANKS), dice.randrange(RANKS)
    return (dice.randrange(RANKS),)


# -- a part without faults, in compressed time

COMPRESSED = 20.0  # a second stands for so many
HOUR_S = 3_600.0 / COMPRESSED
STEP_S = 0.05
SLOW_S = 10 * STEP_S
BUSY_S = 3.0  # stands for a minute: twice the compiles that are promised, so that they are looked at


@dataclass(frozen=True, slots=True)
class QuietStep:
    """What one call does on each rank: ``act`` and seconds."""

    acts: tuple[tuple[str, float], ...]


def quiet_steps(seed: int) -> Iterator[QuietStep]:
    """Yield steps for ever: one in 20 ten times as slow (one rank, or all), one in 60 compiles or writes."""
    dice = random.Random(f"quiet {seed}")
    while True:
        acts = [("work", STEP_S)] * RANKS
        chance = dice.random()
        if chance < 1 / 20:
            act = ("work", SLOW_S)
        elif chance < 1 / 20 + 1 / 60:
            act = (dice.choice(("compile", "write")), BUSY_S)
        else:
            yield QuietStep(tuple(acts))
            continue
        for rank in dice.choice((range(RANKS), (dice.randrange(RANKS),))):
            acts[rank] = act
        yield QuietStep(tuple(acts))
