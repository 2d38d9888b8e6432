"""What an engine has generated of one request so far: the value that survives engine, actor and node.

Read from vLLM's frontend and given back to another one by ``rayguard.engine.vllm.output_state``; kept in
``rayguard.engine.tokens.log``; sent to the pool's owner in pieces (``plus`` puts them together).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True, kw_only=True)  # not frozen: that took a third of the time of saving tokens
class Generated:
    """Tokens of one request with what is known of them. A value: it is never changed.

    Log-probabilities come in rows of ``width`` entries for each token, as vLLM's engine sends them: the
    sampled token first, then the most likely ones by rank; ``width`` is 0 where none were asked for.
    Single precision, as the engine computes them: nothing is lost.

    Invariant: ``len(ids) == len(logprobs) == width * len(tokens)``; ``len(ranks)`` is 0 or ``len(tokens)``.
    """

    tokens: array[int] = field(default_factory=lambda: array("i"))
    width: int = 0
    ids: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    ranks: array[int] = field(default_factory=lambda: array("i"))  # of sampled tokens; 1: the likeliest
    versions: tuple[tuple[str, int], ...] = ()  # (weight version, index of the first token it made)

    def __len__(self) -> int:
        return len(self.tokens)

    def plus(self, more: Generated) -> Generated:
        """Return this with ``more`` behind it; the indices of ``more.versions`` count from its own start."""
        count = len(self.tokens)
        last = self.versions[-1][0] if self.versions else None
        spans = [(version, count + start) for version, start in more.versions]
        if spans and spans[0][0] == last:
            del spans[0]
        return Generated(
            tokens=self.tokens + more.tokens,
            width=max(self.width, more.width),
            ids=self.ids + more.ids,
            logprobs=self.logprobs + more.logprobs,
            ranks=self.ranks + more.ranks,
            versions=(*self.versions, *spans),
        )

    def since(self, start: int) -> Generated:
        """Return what was generated from index ``start`` on."""
        return Generated(
            tokens=self.tokens[start:],
            width=self.width,
            ids=self.ids[start * self.width :],
            logprobs=self.logprobs[start * self.width :],
            ranks=self.ranks[start:],
            versions=versions_since(self.versions, start) if start < len(self.tokens) else (),
        )

    def first(self, count: int) -> Generated:
        """Return the first ``count`` tokens."""
        return Generated(
            tokens=self.tokens[:count],
            width=self.width,
            ids=self.ids[: count * self.width],
            logprobs=self.logprobs[: count * self.width],
            ranks=self.ranks[:count],
            versions=tuple((version, start) for version, start in self.versions if start < count),
        )


def versions_since(starts: Sequence[tuple[str, int]], start: int) -> tuple[tuple[str, int], ...]:
    """Return which weights made what comes from index ``start`` on; indices count from there."""
    before = [version for version, first in starts if first <= start]
    later = [(version, first - start) for version, first in starts if first > start]
    return (*((version, 0) for version in before[-1:]), *later)
