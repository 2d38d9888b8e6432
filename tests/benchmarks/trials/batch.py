"""One batch of questions, asked by one of a pool's ways in a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayguard import RolloutPool
    from tests.benchmarks.trials.oracle import Question

ANSWER_S = 300.0  # for each request; a trial without a fault takes seconds


class Batch(threading.Thread):
    """Asks a pool for a batch by one of its ways, and keeps all that it hands out."""

    def __init__(self, pool: RolloutPool, api: str, asked: dict[str, Question]) -> None:
        super().__init__(name="trials-batch", daemon=True)
        self.got: list[Any] = []
        self.errors: list[str] = []
        self._pool, self._api, self._asked = pool, api, asked

    def run(self) -> None:
        ids, questions = list(self._asked), list(self._asked.values())
        prompts, sampling = [q.prompt for q in questions], [dict(q.sampling) for q in questions]
        try:
            if self._api == "submit":
                futures = [
                    self._pool.submit(prompt, options, request_id=name, deadline_s=ANSWER_S)
                    for prompt, options, name in zip(prompts, sampling, ids, strict=True)
                ]
                self.got += [future.result(ANSWER_S) for future in futures]
            elif self._api == "as_completed":
                for generation in self._pool.as_completed(prompts, sampling, ids=ids, deadline_s=ANSWER_S):
                    self.got.append(generation)
            else:
                batch = self._pool.generate(prompts, sampling, ids=ids, deadline_s=ANSWER_S, partial="shrink")
                self.got += [*batch, *batch.missing]
        except Exception as error:  # whatever the pool raises is a finding
            self.errors.append(f"{self._api}() raised {type(error).__name__}: {error}")
