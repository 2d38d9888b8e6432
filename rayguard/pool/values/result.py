"""What a pool gives back: samples with where their tokens come from, and why something is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import Self, override

from rayguard.engine.generated import Generated

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion.

    ``cuts`` are the indices at which a fault interrupted it and another engine went on; ``restarted`` says
    why it had to begin afresh, once for each time; ``drift`` how it differs from what an engine without a
    fault would have made (another valid sample), empty where it is the same.
    """

    id: str
    index: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    generated: Generated = field(default_factory=Generated, repr=False)
    text: str = ""
    finish_reason: str = ""
    stop_reason: int | str | None = None
    cuts: tuple[int, ...] = ()
    restarted: tuple[str, ...] = ()
    drift: str = ""
    engine: str = ""  # the actor that delivered it

    @property
    def token_ids(self) -> list[int]:
        """The tokens."""
        return self.generated.tokens.tolist()

    @property
    def logprobs(self) -> list[float]:
        """Of the sampled tokens; empty where none were asked for."""
        width = self.generated.width
        return self.generated.logprobs[::width].tolist() if width else []

    @property
    def top_logprobs(self) -> list[dict[int, float]]:
        """For each token those that were asked for, by token id: the sampled one and the most likely."""
        width, ids, values = self.generated.width, self.generated.ids, self.generated.logprobs
        return [
            dict(zip(ids[at : at + width], values[at : at + width], strict=True))
            for at in range(0, len(ids), width or 1)
        ]

    @property
    def weight_versions(self) -> tuple[tuple[str, int], ...]:
        """Which weights made which tokens: ``(version, index of the first token it made)``."""
        return self.generated.versions

    @property
    def weight_version(self) -> str:
        """The version that made all tokens; several are joined by ``+``."""
        return "+".join(version for version, _ in self.weight_versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The samples of one prompt, in order of their index. ``error`` is set where some could not be had."""

    id: str
    samples: tuple[Sample, ...] = ()
    error: Exception | None = None


class Batch(tuple[Generation, ...]):  # noqa: SLOT001 - a tuple can have no further slot
    """What ``generate`` returns: one ``Generation`` for each prompt; ``missing`` says what was left out.

    With ``partial="wait"`` nothing is ever left out.
    """

    missing: tuple[Generation, ...]

    def __new__(cls, generations: Iterable[Generation], missing: Iterable[Generation] = ()) -> Self:
        """Make one of what was answered and what was not."""
        batch = super().__new__(cls, generations)
        batch.missing = tuple(missing)
        return batch

    @property
    def samples(self) -> list[Sample]:
        """All samples, prompt by prompt."""
        return [sample for generation in self for sample in generation.samples]

    @override
    def __repr__(self) -> str:
        left_out = f", {len(self.missing)} left out" if self.missing else ""
        return f"Batch({len(self)} prompts, {len(self.samples)} samples{left_out})"
