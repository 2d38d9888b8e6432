"""What a pool knows of the deaths of its actors: what ran there, what it cost, where it went on, and when.

Pure: times come in (monotonic, seconds). Whose hands these are: ``actor_deaths``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rayguard.faults.diagnosis import Kind
    from rayguard.metrics.instruments.pool_tally import PoolTally
    from rayguard.pool.actors.messages import Hello
    from rayguard.recovery.incident import Incident


@dataclass(slots=True, kw_only=True)
class LostLife:
    """One life of an actor that ended under the pool.

    Invariant: each token that the pool knew of its requests, those that were given up apart, is in ``saved``,
    or in ``lost`` where its request began afresh since.
    """

    name: str  # of the actor; later of the one that was hired in its place
    hello: Hello
    kind: Kind
    why: str
    began_at: float
    detected_at: float  # wall clock
    requests: int
    saved: int
    lost: int | None  # of what had reached the actor; None: nobody can count it
    cut: set[str]  # its requests that have no token since
    went_to: Counter[str] = field(default_factory=Counter)  # requests, by the actor that went on with them
    resume_s: float | None = None
    serve_s: float | None = None
    over: str = ""  # why nobody will serve in its place
    failed: bool = False  # somebody should have
    incident: Incident | None = None  # as it is told elsewhere, or was opened

    @property
    def unfinished(self) -> bool:
        """Whether there is more to come."""
        return bool(self.cut) or (self.serve_s is None and not self.over)


class LostLives:
    """The losses of one pool whose story is not over; ``tell`` gets each once it is."""

    def __init__(self, tally: PoolTally, tell: Callable[[LostLife], object]) -> None:
        self.open: list[LostLife] = []
        self._tally = tally
        self._tell = tell

    def began(self, loss: LostLife) -> None:
        """A life is lost."""
        self.open.append(loss)
        self._tally.losses[loss.kind.value] += 1
        self._tally.interrupted(loss.kind.value, loss.requests)
        self._tally.tokens_lost += loss.lost or 0

    def went_on(self, name: str, request_ids: Sequence[str]) -> None:
        """An actor was given requests."""
        for loss in self.open:
            count = sum(one in loss.cut for one in request_ids)
            if count:
                loss.went_to[name] += count

    def resumed(self, request_id: str, now: float) -> None:
        """A request got its next token."""
        for loss in self.open:
            if request_id in loss.cut:
                loss.cut.discard(request_id)
                if loss.resume_s is None:
                    loss.resume_s = now - loss.began_at
                    self._tally.resumed(loss.resume_s)

    def afresh(self, request_id: str, tokens: int) -> None:
        """A request began afresh: what was known of it is void."""
        self._tally.tokens_lost += tokens
        for loss in self.open:
            if request_id in loss.cut:
                loss.saved -= tokens
                loss.lost = None if loss.lost is None else loss.lost + tokens

    def hired(self, gone: str, name: str) -> None:
        """An actor was hired in the place of one that comes back no more."""
        for loss in self.open:
            if loss.name == gone:
                loss.name = name

    def met(self, name: str, hello: Hello) -> None:
        """A life of an actor began; of a guarded one it tells what ended the last."""
        told = hello.death
        for loss in [one for one in self.open if one.name == name]:
            if hello.session == loss.hello.session:  # it was out of reach for a while, and has not died
                self.open.remove(loss)
            elif told is not None and told.actor_id == loss.hello.actor_id:
                # Of this life, or of a later one that the pool never met.
                later = told.detected_at > loss.detected_at
                loss.incident = told if later or told.pid == loss.hello.pid else loss.incident

    def opened(self, name: str, incident: Incident) -> None:
        """The incident of what ended an actor's life is written, and its next life will close it."""
        for loss in self.open:
            if loss.name == name and loss.incident is None:
                loss.incident = incident

    def given_up(self, name: str, why: str, *, failed: bool = False) -> None:
        """Nobody will serve in the place of an actor; ``failed``: though somebody should."""
        for loss in self.open:
            if loss.name == name and loss.serve_s is None:
                loss.over, loss.failed = why, failed

    def close(self, why: str) -> list[LostLife]:
        """Return those whose story is not over: it ends here, and is not told by ``tell``."""
        left, self.open = self.open, []
        for loss in left:
            loss.over = loss.over or ("" if loss.serve_s is not None else why)
        return left

    def look(self, serving: Callable[[str], bool], known: Collection[str], now: float) -> None:
        """Tell what is over; ``serving``: whether an actor gets requests; ``known``: all requests."""
        for loss in list(self.open):
            loss.cut.intersection_update(known)
            if loss.serve_s is None and not loss.over and serving(loss.name):
                loss.serve_s = now - loss.began_at
                self._tally.replaced(loss.serve_s)
            if not loss.unfinished:
                self.open.remove(loss)
                self._tell(loss)
