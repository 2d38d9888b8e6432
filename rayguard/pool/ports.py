"""What a pool's parts need: of the pool (``core`` hands itself in), and of whoever hires its actors.

Who hires them is the one seam to Ray: ``rayguard.pool.actors.ray_actors``, scripted in ``rayguard.testing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from rayguard.actors.token_logs import LeftBehind
    from rayguard.errors import GaveUpError
    from rayguard.metrics.instruments.pool_tally import PoolTally
    from rayguard.pool.actors.messages import ActorReport, Event, Hello, RolloutActor
    from rayguard.pool.book import Book
    from rayguard.pool.lost_lives import LostLives


class PoolPort(Protocol):
    """A pool from the inside. Every method on its loop."""

    book: Book
    tally: PoolTally
    losses: LostLives
    final: GaveUpError | None  # why nobody will be answered any more

    def joined(self, name: str, hello: Hello) -> None:
        """A life of the actor begins: it can take requests."""

    def heard(self, name: str, events: Sequence[Event], report: ActorReport) -> None:
        """News of its requests; may be empty."""

    def pace_s(self, hello: Hello) -> float:
        """Return how long tokens may wait at an actor for others, to be told together."""

    def left(self, name: str, why: str, *, blame: bool) -> None:
        """That life is over, with all that was told to it."""

    def ended(self, name: str, error: BaseException) -> None:
        """There will be no further life."""

    def spawn(self, work: Coroutine[object, object, object]) -> asyncio.Task[None]:
        """Run ``work`` in the background; its errors are counted, never lost."""

    def pump(self) -> None:
        """Dispatch what can be dispatched, soon."""

    async def wait_until(self, condition: Callable[[], bool], until: float) -> bool:
        """Wait until ``condition`` holds; False at time ``until``."""

    def remove(self, name: str, kind: str) -> None:
        """Take an actor out of the book; others go on with what it has, cut by ``kind``."""

    def give_up(self, final: GaveUpError) -> None:
        """Tell whoever waits, and whoever asks from now on, that there will be no answer."""


class ActorProvider(Protocol):
    """Hires and dismisses rollout actors (``ray_actors``; scripted in tests)."""

    target: str  # what people call the pool
    node_id: str  # where the pool is, as Ray names it; empty where there is no Ray

    def hire(self, name: str) -> RolloutActor:
        """Start an actor; returns at once."""

    def left_behind(self, hello: Hello) -> LeftBehind:
        """Return what a dead life's token log holds, where it can be read from here."""

    def handle(self, name: str) -> object:
        """Return what a user may call the actor by."""

    def restart(self, name: str) -> None:
        """End the actor's process, so that it begins another life. Never blocks."""

    def state(self, name: str) -> str | None:
        """Return the kernel's letter of the actor's process, None where it cannot be seen from here."""

    def close(self) -> None:
        """Watch nothing any more."""

    def dismiss(self, name: str) -> None:
        """End an actor for good. Never blocks."""

    def watch(self, name: str, hello: Hello, gone: Callable[[str], None]) -> None:
        """Call ``gone(why)``, from any thread, as soon as that process is dead or frozen."""
