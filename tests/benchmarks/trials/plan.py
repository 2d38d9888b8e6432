"""What happens in which trial: drawn from a seed, the same for the same seed.

Pure. How it is brought about is ``strike``; what came of it is ``score``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Fault(str, Enum):
    """A way to break a pool."""

    KILL_CORE = "kill_core"
    KILL_WORKER = "kill_worker"
    KILL_ACTOR = "kill_actor"
    STOP_CORE = "stop_core"
    STOP_WORKER = "stop_worker"
    STOP_ACTOR = "stop_actor"
    ASSERTION = "scheduler_assertion"
    PUSH_KILL_CORE = "push_kill_core"
    PUSH_KILL_ACTOR = "push_kill_actor"
    FORKED_CHILD = "forked_child_kill_actor"  # the child keeps Ray from seeing the death
    KILL_OWNER = "kill_owner"  # of the pool: an actor, with which its engines die

    @property
    def stops(self) -> bool:
        """Whether the process stays and does nothing: a hang."""
        return self.name.startswith("STOP_")

    @property
    def pushes(self) -> bool:
        """Whether it strikes in the middle of a weight push."""
        return self.name.startswith("PUSH_")

    @property
    def of_actor(self) -> bool:
        """Whether the actor's own process is hit."""
        return self.name.endswith("_ACTOR") or self is Fault.FORKED_CHILD


# An owner that can be killed is an actor, with a pool of its own.
DRAWN = tuple(fault for fault in Fault if fault is not Fault.KILL_OWNER)
# A standby engine takes over within its actor: an actor's own death is the same with and without one.
WITH_STANDBY = (
    Fault.KILL_CORE,
    Fault.KILL_WORKER,
    Fault.STOP_CORE,
    Fault.STOP_WORKER,
    Fault.ASSERTION,
    Fault.PUSH_KILL_CORE,
    Fault.KILL_ACTOR,
)
APIS = ("generate", "as_completed", "submit")
_STANDBY_SHARE = 1 / 3
_OWNER_SHARE = 1 / 15
_LATEST = 0.75  # of what the target will generate
_LATEST_PUSH = 0.25  # it waits for what runs, and then some must still be queued
_PUSH_S = 0.3  # about as long as a push takes
_CALLS = 25  # scheduler calls that hand out a block
_NEW_WEIGHTS = 0.3  # of the trials begin with an undisturbed push


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fault in one batch.

    ``part`` is the moment: of what the target is expected to generate of this batch. A fault in a push
    comes ``delay_s`` after it began, which is itself begun at ``part``.
    """

    number: int
    fault: Fault
    target: int
    standby: bool = False
    questions: tuple[int, ...] = ()
    api: str = "generate"
    part: float = 0.5
    delay_s: float = 0.0
    calls: int = 1  # of the scheduler, until its fuse has burnt down
    new_weights: bool = False

    def __str__(self) -> str:
        """Say what it is, for people."""
        moment = f"at {self.part:.2f} of its tokens"
        if self.fault.pushes:
            moment = f"{self.delay_s:.3f} s into a push begun {moment}"
        if self.fault is Fault.ASSERTION:
            moment += f" and scheduler call {self.calls}"
        beside = ", with a standby engine" if self.standby else ""
        of = "" if self.fault is Fault.KILL_OWNER else f" of engine {self.target}"
        return (
            f"trial {self.number}: {self.fault.value}{of} {moment}, {self.api}() of "
            f"{len(self.questions)} prompts{beside}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large trials are: engines, questions in the catalog, prompts in a batch."""

    engines: int = 2
    questions: int = 40
    batch: tuple[int, int] = (40, 60)


def plan(trials: int, seed: int, size: Size) -> tuple[Trial, ...]:
    """Return the trials: on a pool of the driver's, on one with standby engines, on one whose owner is killed.

    Invariants: every kind of fault comes equally often on each pool, but for one; the questions and the
    moment of trial n do not depend on how many trials there are after it on the same pool.
    """
    with_standby, owners = round(trials * _STANDBY_SHARE), round(trials * _OWNER_SHARE)
    kinds = [(fault, False) for fault in _dealt(DRAWN, trials - with_standby - owners, seed)]
    kinds += [(fault, True) for fault in _dealt(WITH_STANDBY, with_standby, seed + 1)]
    kinds += [(Fault.KILL_OWNER, False)] * owners
    return tuple(
        _drawn(number, fault, size, seed, standby=standby) for number, (fault, standby) in enumerate(kinds)
    )


def _dealt(faults: tuple[Fault, ...], count: int, seed: int) -> list[Fault]:
    """Deal from shuffled decks of one card each."""
    dice = random.Random(f"faults {seed}")
    dealt: list[Fault] = []
    while len(dealt) < count:
        dealt += dice.sample(faults, len(faults))
    return dealt[:count]


def _drawn(number: int, fault: Fault, size: Size, seed: int, *, standby: bool) -> Trial:
    dice = random.Random(f"trial {seed} {number}")
    return Trial(
        number=number,
        fault=fault,
        standby=standby,
        target=dice.randrange(size.engines),
        questions=tuple(dice.randrange(size.questions) for _ in range(dice.randint(*size.batch))),
        api=APIS[0] if fault is Fault.KILL_OWNER else dice.choice(APIS),
        part=dice.uniform(0.0, _LATEST_PUSH if fault.pushes else _LATEST),
        delay_s=dice.uniform(0.0, _PUSH_S),
        calls=dice.randint(1, _CALLS),
        new_weights=dice.random() < _NEW_WEIGHTS,
    )
