"""What travels between driver, rollouts and trainer: requests out, samples back, each exactly once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from examples.grpo.text import sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PROMPT_TOKENS = 200
NEW_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion to be sampled. ``seed`` None: the engine's own dice."""

    id: str
    prompt: tuple[int, ...]
    seed: int | None = None
    max_tokens: int = NEW_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion: its tokens, their logprobs, the weights that made it and what a fault saved of it."""

    id: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: str
    tokens_saved: int = 0

    @property
    def group(self) -> str:
        """The prompt it belongs to: advantages are normalised within it."""
        return self.id.rpartition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """A seeded stream of prompts of exactly ``PROMPT_TOKENS`` tokens."""

    encode: Callable[[str], list[int]]
    seed: int = 0
    prompts: int = 4
    samples: int = 16

    def step(self, step: int) -> list[list[Request]]:
        """Return the step's prompts, each as its group of requests."""
        return [self._group(step, prompt) for prompt in range(self.prompts)]

    def _group(self, step: int, prompt: int) -> list[Request]:
        text = "".join(sentences(f"{self.seed} {step} {prompt}", 40))
        ids = tuple(self.encode(text)[:PROMPT_TOKENS])
        return [Request(id=f"step{step:03}/p{prompt}/s{n:02}", prompt=ids) for n in range(self.samples)]


def seeded(requests: Sequence[Request], seed: int) -> list[Request]:
    """Give each request dice of its own, as a user does who wants to reproduce a sample."""
    dice = random.Random(f"{seed} {requests[0].id}")
    return [replace(request, seed=dice.randrange(2**31)) for request in requests]


@dataclass(slots=True)
class Deliveries:
    """Checks that each request comes back once, whole, and made by the weights of its step."""

    expected: int = 0
    stale: int = 0
    short: int = 0
    seen: Counter[str] = field(default_factory=Counter)

    def expect(self, requests: Sequence[Request]) -> None:
        """Note what was asked for."""
        self.expected += len(requests)

    def arrived(self, samples: Iterable[Sample], version: str) -> None:
        """Note what came back in a step whose weights are ``version``."""
        for sample in samples:
            self.seen[sample.id] += 1
            self.stale += sample.weight_version != version
            self.short += len(sample.tokens) != NEW_TOKENS

    @property
    def delivered(self) -> int:
        """Requests that came back at least once."""
        return len(self.seen)

    @property
    def duplicated(self) -> int:
        """Samples beyond the first of their request."""
        return self.seen.total() - len(self.seen)
