"""Sentences without end: what the tokenizer learns from, and what prompts are made of."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def sentences(seed: int | str, count: int) -> Iterator[str]:
    """Yield ``count`` solved sums; the same seed gives the same ones."""
    dice = random.Random(seed)
    names = ("Ada", "Alan", "Emmy", "Grace", "Kurt", "Sofia")
    things = ("apples", "bridges", "candles", "letters", "marbles", "stamps")
    for _ in range(count):
        a, b = dice.randrange(100), dice.randrange(100)
        yield f"{dice.choice(names)} has {a} {dice.choice(things)} and gets {b} more: {a} + {b} = {a + b}. "
