"""A batch in one chunk a rank, in micro-batches, with the weights that add up to the whole batch's gradient.

The rule that is right for every loss and every way to cut: each rank computes *sums*, divides by the count
over the *whole* batch (tokens, or rows) and multiplies by the number of ranks, because DDP and FSDP divide
by that. Micro-batches add up, without a further division. (Averages of the ranks' averages, which trainers
often take, are 5 to 20 % off, for token means also where chunks are even.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from rayguard.batching.plan import BatchPlan, Part, plan
from rayguard.batching.rows import count_rows, join, take, total, without_counting
from rayguard.errors import ConfigError
from rayguard.options import meant

MASKS = ("response_mask", "loss_mask", "completion_mask")  # verl and EasyR1; SFT; TRL


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChunk:
    """What one rank gets; can be pickled and handed to an actor.

    ``parts`` are its micro-batches, of the kind that the batch was; ``real[i]`` says how many rows at the
    start of part *i* are rows of the batch: the others are pads, zero in their masks. ``totals`` are counts
    over the whole batch: its ``rows``, and the sum of each mask.
    """

    rank: int
    world: int
    parts: tuple[Any, ...]
    real: tuple[int, ...]
    totals: Mapping[str, float] = field(default_factory=dict)

    def weight(self, of: str = "rows") -> float:
        """Return what a sum of losses over rows (or over the tokens of a mask) is multiplied by.

        ``(losses * mask).sum() * chunk.weight("response_mask")`` is a token mean over the whole batch;
        ``losses[:n].sum() * chunk.weight()``, with *n* real rows, a mean over its rows. Call ``backward`` on
        each.

        Raises:
            ConfigError: There is no such mask.
        """
        if of not in self.totals:
            known = ", ".join(self.totals)
            raise ConfigError(
                f"nothing called {of!r} was counted in this batch: there is {known}{meant(of, self.totals)}"
            )
        return self.world / self.totals[of] if self.totals[of] else 0.0

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield each micro-batch with the number of its real rows."""
        return zip(self.parts, self.real, strict=True)

    def __len__(self) -> int:
        """Return the number of micro-batches: the same on all ranks."""
        return len(self.parts)


class BatchChunks(Sequence[BatchChunk]):
    """A batch in one chunk for each rank, by ``split_batch``; ``over`` makes it for other worlds."""

    def __init__(self, batch: Any, world: int, micro: int, masks: Sequence[str], *, even: bool) -> None:
        self._batch, self._masks, self._even = batch, tuple(masks), even
        self.plan: BatchPlan = plan(count_rows(batch), world, micro, even=even)
        self._totals = {"rows": float(self.plan.size), **{name: total(batch[name]) for name in self._masks}}

    def over(self, world: int) -> BatchChunks:
        """Return the same batch for ``world`` ranks: the gradient stays what it was, to rounding."""
        return BatchChunks(self._batch, world, self.plan.micro, self._masks, even=self._even)

    def __len__(self) -> int:
        """Return the number of ranks."""
        return self.plan.world

    @overload
    def __getitem__(self, rank: int) -> BatchChunk: ...
    @overload
    def __getitem__(self, rank: slice) -> list[BatchChunk]: ...
    def __getitem__(self, rank: int | slice) -> BatchChunk | list[BatchChunk]:
        """Return the chunk of a rank; made when it is asked for."""
        if isinstance(rank, slice):
            return [self[one] for one in range(*rank.indices(len(self)))]
        rank = range(len(self))[rank]
        parts = self.plan.ranks[rank]
        return BatchChunk(
            rank=rank,
            world=self.plan.world,
            parts=tuple(self._rows(part) for part in parts),
            real=tuple(part.stop - part.start for part in parts),
            totals=self._totals,
        )

    def join(self, answers: Sequence[Sequence[Any]]) -> Any:
        """Return what ranks made of their rows in the order of the batch, without pads.

        Args:
            answers: For each rank one value for each of its micro-batches, by rows (a tensor, an array, a
                list, or a dictionary of these).

        Raises:
            ConfigError: Answers are missing, or have other numbers of rows.
        """
        if len(answers) != len(self):
            raise ConfigError(f"{len(self)} ranks have a chunk, and there are {len(answers)} answers")
        pieces: list[Any] = []
        for rank, (parts, made) in enumerate(zip(self.plan.ranks, answers, strict=True)):
            if len(made) != len(parts):
                raise ConfigError(f"rank {rank} has {len(parts)} micro-batches, and answered {len(made)}")
            for part, one in zip(parts, made, strict=True):
                if (rows := count_rows(one)) != part.rows:
                    raise ConfigError(
                        f"rank {rank} answered {rows} rows for a micro-batch of {part.rows}, pads included"
                    )
                pieces.append(take(one, range(part.stop - part.start)))
        return join(pieces)

    def _rows(self, part: Part) -> Any:
        real = range(part.start, part.stop)
        # A copy of a row of the same part: as long as its neighbours, and nothing that a model has not seen.
        copied = part.stop - 1 if real else min(part.start, self.plan.size - 1)
        rows = take(self._batch, [*real, *[copied] * part.pads])
        return without_counting(rows, self._masks, len(real)) if part.pads else rows


def split_batch(
    batch: Any, world: int, micro: int = 0, *, even: bool = True, masks: Sequence[str] | None = None
) -> BatchChunks:
    """Share a batch of any size out over ``world`` ranks; see ``BatchChunk`` for the loss.

    Args:
        batch: By rows: a tensor, an array, a list, or a dictionary of these by name.
        world: Ranks.
        micro: Rows of a micro-batch; 0: a rank's rows are one.
        even: Whether each rank gets the same number of rows, with pads; else no pads, and counts differ by
            one.
        masks: Columns that say which tokens (or rows) count in the loss; pads are zero there. By default
            those of ``MASKS`` that the batch has.

    Raises:
        ConfigError: The batch has no rows, or no such mask; a number makes no sense.
    """
    columns = tuple(batch) if isinstance(batch, Mapping) else ()
    if masks is None:
        masks = tuple(name for name in MASKS if name in columns)
    for name in masks:
        if name not in columns:
            raise ConfigError(f"the batch has no column {name!r} to be a mask{meant(name, columns)}")
    if not count_rows(batch):
        raise ConfigError("the batch has no rows")
    return BatchChunks(batch, world, micro, masks, even=even)
