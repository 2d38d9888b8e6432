"""The seam to a framework's groups: what a family needs of their workers. Adapters: ``verl``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rayguard.frameworks.worker_groups.calls import GroupMethod


class Workers(Protocol):
    """The workers of a framework's group, and how new ones take their places."""

    @property
    def name(self) -> str:
        """Say which they are, for people."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the roles that share a worker's process."""

    @property
    def handles(self) -> Sequence[object]:
        """Return those that serve now."""

    def make_again(self, number: int) -> None:
        """Make new ones, the ``number``-th set, and put them where all groups find them."""

    def load(self, method: GroupMethod) -> Callable[..., object] | None:
        """Return the function that loads what ``method`` saves; None where there is none."""
