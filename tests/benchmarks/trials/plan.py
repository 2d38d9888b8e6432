"""What happens in which trial: drawn from a seed, the same for the same seed.

Pure. How it is brought about is ``strike`` and ``acts``; what came of it is ``score``.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Fault(str, Enum):
    """A way to break a pool."""

    KILL_CORE = "kill_core"
    KILL_WORKER = "kill_worker"
    TERM_CORE = "terminate_core"  # SIGTERM: it answers what runs with what there is, and goes
    KILL_ACTOR = "kill_actor"
    STOP_CORE = "stop_core"
    STOP_WORKER = "stop_worker"
    STOP_ACTOR = "stop_actor"
    ASSERTION = "scheduler_assertion"
    PUSH_KILL_CORE = "push_kill_core"
    PUSH_KILL_ACTOR = "push_kill_actor"
    FORKED_CHILD = "forked_child_kill_actor"  # the child keeps Ray from seeing the death
    UNENCODABLE = "unencodable_request"
    KILLING_CALL = "killing_call"  # or one that would kill, and is refused
    HUNG_CALL = "hung_call"  # a call into the workers that never returns, under a deadline of its caller's
    MISFIT_PUSH = "misfit_push"  # a tensor is missing, foreign or misshapen
    KILL_ASLEEP = "kill_core_asleep"
    KILL_IN_SLEEP = "kill_core_in_sleep"  # while the call to sleep is under way
    KILL_IN_WAKE = "kill_core_in_wake"
    KILL_STREAM = "kill_core_in_stream"  # of input: a session of two parts
    KILL_ADAPTERS = "kill_core_with_adapters"  # LoRA requests are in flight
    KILL_RANK = "kill_rank"  # of two
    OWN_PUSH_KILL_CORE = "own_push_kill_core"  # after weights that the user's own code pushed
    OWN_PUSH_KILL_ACTOR = "own_push_kill_actor"
    HEIR_KILL_ACTOR = "kill_actor_preloaded"  # its next life begins with its imports done
    SERVER_KILL_ACTOR = "kill_server_and_actor"  # the process that forked its engine, and the actor
    WAITING_KILL_ACTOR = "kill_actor_then_core"  # the engine's core while it waits for the next life
    RAY_KILL_ACTOR = "ray_kill_actor"  # by Ray, which is to start it again
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

    @property
    def acts(self) -> bool:
        """Whether a user does something to the engine beside the batch, and waits for an answer of his own."""
        return self in _ACTS

    @property
    def ends(self) -> bool:
        """Whether a process ends at the moment of the fault."""
        return not self.stops and self not in _CALLS


class Place(str, Enum):
    """A pool that trials are held on. One comes after the other: their engines would starve each other."""

    PLAIN = "plain"
    STANDBY = "standby"  # each engine has a standby
    ADAPTERS = "adapters"  # the engine takes LoRA adapters
    RANKS = "ranks"  # the engine has two
    OWN_PUSHES = "own_pushes"  # weights come by the user's own code, not from a source
    HEIRS = "heirs"  # workers are forked with their imports done
    OWNER = "owner"  # of an actor that can be killed

    @property
    def weights_come(self) -> bool:
        """Whether its engines are ever given other weights."""
        return self not in {Place.ADAPTERS, Place.RANKS}


_CALLS = frozenset({Fault.UNENCODABLE, Fault.KILLING_CALL, Fault.HUNG_CALL, Fault.MISFIT_PUSH})
_ACTS = _CALLS | {
    Fault.KILL_ASLEEP,
    Fault.KILL_IN_SLEEP,
    Fault.KILL_IN_WAKE,
    Fault.KILL_STREAM,
    Fault.KILL_ADAPTERS,
}
_ELSEWHERE = {
    Place.ADAPTERS: (Fault.KILL_ADAPTERS,),
    Place.RANKS: (Fault.KILL_RANK,),
    Place.OWN_PUSHES: (Fault.OWN_PUSH_KILL_CORE, Fault.OWN_PUSH_KILL_ACTOR),
    Place.HEIRS: (
        Fault.HEIR_KILL_ACTOR,
        Fault.SERVER_KILL_ACTOR,
        Fault.WAITING_KILL_ACTOR,
        Fault.RAY_KILL_ACTOR,
    ),
    Place.OWNER: (Fault.KILL_OWNER,),
}
_PLACE_OF = {fault: place for place, faults in _ELSEWHERE.items() for fault in faults}
DRAWN = {
    Place.PLAIN: tuple(fault for fault in Fault if fault not in _PLACE_OF),
    # A standby engine takes over within its actor: an actor's own death is the same with and without one.
    Place.STANDBY: (
        Fault.KILL_CORE,
        Fault.KILL_WORKER,
        Fault.TERM_CORE,
        Fault.STOP_CORE,
        Fault.STOP_WORKER,
        Fault.ASSERTION,
        Fault.PUSH_KILL_CORE,
        Fault.KILL_ACTOR,
        Fault.KILLING_CALL,
        Fault.KILL_ASLEEP,
    ),
    **_ELSEWHERE,
}
SHARES = {  # of all trials; the others are held on the plain pool
    Place.STANDBY: 1 / 5,
    Place.ADAPTERS: 1 / 20,
    Place.RANKS: 1 / 15,
    Place.OWN_PUSHES: 1 / 15,
    Place.HEIRS: 1 / 10,
    Place.OWNER: 1 / 15,
}
APIS = ("generate", "as_completed", "submit")
VARIANTS = 12  # of a fault that has several: any number of them up to four is drawn alike
_LATEST = 0.75  # of what the target will generate
_LATEST_PUSH = 0.25  # it waits for what runs, and then some must still be queued
_PUSH_S = 0.3  # about as long as a push takes
_STEPS = 25  # scheduler calls that hand out a block
_NEW_WEIGHTS = 0.3  # of the trials begin with an undisturbed push


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fault in one batch.

    ``part`` is the moment: of what the target is expected to generate of this batch. A fault in a push
    comes ``delay_s`` after it began, which is itself begun at ``part``; so does one in what a user does.
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
    variant: int = 0  # which of the ways to bring it about

    @property
    def place(self) -> Place:
        """Where it is held."""
        return _PLACE_OF.get(self.fault, Place.STANDBY if self.standby else Place.PLAIN)

    def __str__(self) -> str:
        """Say what it is, for people."""
        moment = f"at {self.part:.2f} of its tokens"
        if self.fault.pushes:
            moment = f"{self.delay_s:.3f} s into a push begun {moment}"
        if self.fault is Fault.ASSERTION:
            moment += f" and scheduler call {self.calls}"
        if self.fault.acts or self.fault is Fault.KILL_OWNER:
            moment += f", variant {self.variant}"
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

    def engines_at(self, place: Place) -> int:
        """Return how many engines a pool has: one of two ranks is enough for two cores."""
        return 1 if place in {Place.ADAPTERS, Place.RANKS} else self.engines


def plan(trials: int, seed: int, size: Size) -> tuple[Trial, ...]:
    """Return the trials: on a plain pool of the driver's, and on the others one after the other.

    Invariants: every kind of fault comes equally often on each pool, but for one; the questions and the
    moment of trial n do not depend on how many trials there are after it on the same pool.
    """
    shares = {place: round(trials * share) for place, share in SHARES.items()}
    counts = {Place.PLAIN: trials - sum(shares.values()), **shares}
    kinds = [
        (fault, place)
        for turn, (place, count) in enumerate(counts.items())
        for fault in _dealt(DRAWN[place], count, seed + turn)
    ]
    return _numbered(kinds, size, seed)


def plan_of(faults: Sequence[Fault], trials: int, seed: int, size: Size) -> tuple[Trial, ...]:
    """Return ``trials`` trials of these kinds alone, in turns, on the pools that they are held on."""
    kinds = [
        (fault, _PLACE_OF.get(fault, Place.PLAIN))
        for fault in itertools.islice(itertools.cycle(faults), trials)
    ]
    order = list(Place)
    return _numbered(sorted(kinds, key=lambda kind: order.index(kind[1])), size, seed)


def _numbered(kinds: Sequence[tuple[Fault, Place]], size: Size, seed: int) -> tuple[Trial, ...]:
    return tuple(_drawn(number, fault, place, size, seed) for number, (fault, place) in enumerate(kinds))


def _dealt(faults: tuple[Fault, ...], count: int, seed: int) -> list[Fault]:
    """Deal from shuffled decks of one card each."""
    dice = random.Random(f"faults {seed}")
    dealt: list[Fault] = []
    while len(dealt) < count:
        dealt += dice.sample(faults, len(faults))
    return dealt[:count]


def _drawn(number: int, fault: Fault, place: Place, size: Size, seed: int) -> Trial:
    dice = random.Random(f"trial {seed} {number}")
    early = fault.pushes or fault is Fault.MISFIT_PUSH
    return Trial(
        number=number,
        fault=fault,
        standby=place is Place.STANDBY,
        target=dice.randrange(size.engines_at(place)),
        questions=tuple(dice.randrange(size.questions) for _ in range(dice.randint(*size.batch))),
        api=APIS[0] if fault is Fault.KILL_OWNER else dice.choice(APIS),
        part=dice.uniform(0.0, _LATEST_PUSH if early else _LATEST),
        delay_s=dice.uniform(0.0, _PUSH_S),
        calls=dice.randint(1, _STEPS),
        new_weights=place.weights_come and dice.random() < _NEW_WEIGHTS,
        variant=dice.randrange(VARIANTS),
    )
