"""What a pool needs to have actors: the one seam to Ray (``ray_staff``; scripted in ``rayguard.testing``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rayguard.actors.pool.wire import Hello, Member
    from rayguard.engine.generated import Generated


class Staff(Protocol):
    """Hires and dismisses rollout actors (``ray_staff``; scripted in tests)."""

    target: str  # what people call the pool
    node_id: str  # where the pool is, as Ray names it; empty where there is no Ray

    def hire(self, name: str) -> Member:
        """Start an actor; returns at once."""

    def left_behind(self, hello: Hello) -> Mapping[str, Generated]:
        """Return the tokens by request id that a dead life's log holds, where it can be read from here."""

    def handle(self, name: str) -> Any:
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
