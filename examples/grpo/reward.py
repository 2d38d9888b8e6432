"""What the model is taught: to write tokens with an even id. Trivial to score, hard to fake."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def reward(tokens: Sequence[int]) -> float:
    """Return the fraction of even token ids: 0.5 by chance, 1.0 when learned."""
    return sum(token % 2 == 0 for token in tokens) / len(tokens)
