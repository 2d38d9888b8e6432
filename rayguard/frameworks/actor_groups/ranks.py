"""The seam to a framework's group: what a recovery needs of its ranks. Adapters: ``openrlhf_ranks``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.frameworks.actor_groups.sent_call import SentCall


class Ranks(Protocol):
    """The ranks of a group, and how new ones take their places."""

    @property
    def name(self) -> str:
        """Say which they are, for people."""

    @property
    def handles(self) -> Sequence[object]:
        """Return those that serve now."""

    def replace(self, handles: Sequence[object]) -> None:
        """Put others into all lists that this process has of them."""

    def make_again(self) -> Sequence[object]:
        """Return new ones, as the first were made, in the same places."""

    def why_not(self, calls: Sequence[SentCall]) -> str:
        """Say why these would not lead where they led the first time; '' where they would."""
