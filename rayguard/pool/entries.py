"""What the pool's book is written in: a request and where it is, an actor and how much room it has. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayguard.engine.generated import Generated
from rayguard.pool.values.request import Order, Request

SLOWEST = 8.0  # a slow engine's share shrinks at most this many times


@dataclass(slots=True)
class Entry:
    """One accepted request.

    Invariant: ``engine`` is set exactly while it runs; ``generated`` holds what is known here of its
    tokens, which is what another engine would go on from.
    """

    request: Request
    engine: str | None = None  # None: it is queued, or done
    generated: Generated = field(default_factory=Generated)
    cuts: tuple[int, ...] = ()
    afresh: tuple[str, ...] = ()  # why tokens of it were thrown away here
    deaths: int = 0  # actors that died while it ran on them
    runs: int = 0
    question: str = ""  # the request's fingerprint, where a ledger has it

    def order(self) -> Order:
        """Return what an actor must be told."""
        prior = self.generated if len(self.generated) else None
        return Order(request=self.request, prior=prior, cuts=self.cuts, question=self.question)

    def cut(self) -> None:
        """Its engine is gone: it waits for another one, with the tokens that are known."""
        self.engine = None
        made = len(self.generated)
        if made and made not in self.cuts:
            self.cuts = (*self.cuts, made)


@dataclass(slots=True)
class Slot:
    """One rollout actor as the book sees it.

    Invariant: ``alone`` is set while a suspect runs here, and then it is the only one in ``running``.
    """

    name: str
    capacity: int
    open: bool = True
    slowness: float = 1.0  # seconds a token, against the median of the pool
    running: dict[str, Entry] = field(default_factory=dict)
    alone: bool = False
    version: int = 0  # of its place in the heap

    @property
    def room(self) -> int:
        """How many more requests it may get now."""
        return 0 if self.alone or not self.open else max(0, self.share - len(self.running))

    @property
    def share(self) -> int:
        """Its capacity, smaller where it is slow."""
        if self.slowness <= 1.0:  # nearly always
            return self.capacity
        return max(1, int(self.capacity / min(SLOWEST, self.slowness)))

    @property
    def load(self) -> float:
        """How full it is; the emptiest is served first."""
        return len(self.running) / self.share


@dataclass(frozen=True, slots=True)
class Lost:
    """What became of the requests of an actor that is gone."""

    requeued: tuple[str, ...] = ()
    quarantined: tuple[Entry, ...] = ()
