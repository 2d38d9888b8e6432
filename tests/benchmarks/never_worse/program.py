"""Small random programs of a driver and one to three actors, with random faults: drawn from a seed. Pure.

Who runs one is ``play``; what its actors are, ``actors``; what may come of it, ``oracle``.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from tests.benchmarks.never_worse.errors import NAMES


class Strike(str, Enum):
    """What happens to a call, once."""

    RAISE_BEFORE = "raise_before"  # the call fails and has changed nothing
    RAISE_AFTER = "raise_after"  # it fails and has changed the state
    KILL_BETWEEN = (
        "kill_between"  # SIGKILL of the actor's process; the call is sent when Ray has dealt with it
    )
    KILL_UNSEEN = "kill_unseen"  # SIGKILL, and the call is sent at once: Ray does not know yet
    KILL_BEFORE = "kill_before"  # SIGKILL in the call, before it has changed anything
    KILL_AFTER = "kill_after"  # SIGKILL in the call, after it has
    STOP = "stop"  # SIGSTOP for a while, as the call is sent
    OS_EXIT = "os_exit"
    SYS_EXIT = "sys_exit"
    SLOW = "slow"  # the caller's patience ends first

    @property
    def kills(self) -> bool:
        """Whether the process ends."""
        return self.name.startswith("KILL") or self.name.endswith("EXIT")


class Flavor(str, Enum):
    """What kind of methods the actor has."""

    SYNC = "sync"
    ASYNC = "async"
    THREADED = "threaded"
    GENERATOR = "generator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """One actor of a program. ``restarts``, ``retries``: the user's own options; None: not said."""

    holds: str = "counter"  # or "torch": a small module with an optimizer
    flavor: Flavor = Flavor.SYNC
    saves: bool = False  # has state_dict and load_state_dict
    init: str = "plain"  # or "async"
    name: str = ""  # it is created under
    detached: bool = False
    restarts: int | None = None
    retries: int | None = None
    group: int = 0  # of how many ranks it is one, over gloo; 0: of none

    @property
    def races(self) -> bool:
        """Whether two calls at a time would spoil what it holds."""
        return self.holds == "torch" and self.flavor is Flavor.THREADED


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The driver calls ``actor`` (an index; -1: a task) and waits for the answer."""

    actor: int
    number: int
    strike: Strike | None = None
    error: str = ""  # of those that raise
    along: bool = False  # it is sent along with the call before, whose answer is not waited for

    @property
    def key(self) -> str:
        """Return the word under which its strike is known to have fired."""
        return f"call-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a driver does, in order."""

    seed: int
    actors: tuple[Actor, ...]
    calls: tuple[Call, ...] = field(default=())

    def rounds(self) -> list[list[Call]]:
        """Return the calls, in lists of those that are sent together."""
        found: list[list[Call]] = []
        for call in self.calls:
            if not call.along:
                found.append([])
            found[-1].append(call)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Program:
        """Rebuild it."""
        actors = tuple(Actor(**{**one, "flavor": Flavor(one["flavor"])}) for one in data["actors"])
        calls = tuple(
            Call(**{**one, "strike": Strike(one["strike"]) if one["strike"] else None})
            for one in data["calls"]
        )
        return cls(seed=data["seed"], actors=actors, calls=calls)


_OPTIONS = ((None, None), (None, None), (None, None), (0, None), (1, 0), (-1, 0), (-1, -1))
_TORCH, _GROUP, _TASKS, _ALONG = 0.12, 0.06, 0.1, 0.25
_IN_CALL = (Strike.RAISE_BEFORE, Strike.OS_EXIT, Strike.KILL_BEFORE)


def drawn(seed: int) -> Program:
    """Return the program of ``seed``: the same for the same seed."""
    draw = random.Random(f"program {seed}")
    if draw.random() < _GROUP:
        return _group(seed, draw)
    actors = tuple(_actor(draw, number) for number in range(draw.choice((1, 1, 1, 2, 3))))
    count = draw.randint(5, 8)
    struck = set(draw.sample(range(1, count), draw.choice((0, 1, 1, 2, 2))))
    calls = []
    for number in range(count):
        to = -1 if draw.random() < _TASKS else draw.randrange(len(actors))
        actor = actors[to] if to >= 0 else None
        along = number > 0 and draw.random() < _ALONG and not (actor is not None and actor.races)
        if number in struck:  # sent by itself: what is under way when a process dies is chance
            calls.append(_struck(draw, to, number, actor))
        else:
            calls.append(Call(actor=to, number=number, along=along))
    return Program(seed=seed, actors=actors, calls=tuple(calls))


def _actor(draw: random.Random, number: int) -> Actor:
    restarts, retries = draw.choice(_OPTIONS)
    flavor = draw.choice(tuple(Flavor))
    named = draw.random() < 0.25
    return Actor(
        holds="torch" if draw.random() < _TORCH else "counter",
        flavor=flavor,
        saves=draw.random() < 0.5,
        init=draw.choice(("plain", "async")) if flavor is Flavor.ASYNC else "plain",
        name=f"actor-{number}" if named else "",
        detached=named and draw.random() < 0.4,
        restarts=restarts,
        retries=retries,
    )


def _struck(draw: random.Random, to: int, number: int, actor: Actor | None) -> Call:
    strikes = list(_IN_CALL) if actor is None else [Strike.RAISE_BEFORE] * 4 + list(Strike)
    if actor is not None and actor.flavor is Flavor.ASYNC:
        strikes.remove(Strike.SYS_EXIT)  # ends Ray's own event loop: the call hangs, with and without us
    return _call(draw, to, number, draw.choice(strikes))


def _call(draw: random.Random, to: int, number: int, strike: Strike) -> Call:
    error = draw.choice(NAMES) if strike in {Strike.RAISE_BEFORE, Strike.RAISE_AFTER} else ""
    return Call(actor=to, number=number, strike=strike, error=error)


def _group(seed: int, draw: random.Random) -> Program:
    """Two ranks that reduce over gloo at each call; a rank is struck once."""
    size, rounds = 2, draw.randint(2, 3)
    struck = draw.randrange(size, size * rounds)
    strike = draw.choice((Strike.KILL_BETWEEN, Strike.RAISE_BEFORE, Strike.OS_EXIT))
    actors = tuple(Actor(group=size, saves=draw.random() < 0.5) for _ in range(size))
    calls = [Call(actor=n % size, number=n, along=n % size > 0) for n in range(size * rounds)]
    calls[struck] = replace(_call(draw, struck % size, struck, strike), along=calls[struck].along)
    return Program(seed=seed, actors=actors, calls=tuple(calls))
