"""The weights that a pool must have now, and the ways in which they come: from a source, or by the user's code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray

from tests.benchmarks.trials import score, strike
from tests.benchmarks.trials.rollouts import WEIGHTS

if TYPE_CHECKING:
    from rayguard import RolloutPool
    from tests.benchmarks.trials.observer import Notes
    from tests.benchmarks.trials.plan import Trial

_PUSH_S = 240.0


class CurrentWeights:
    """Of a pool whose actors ask a source."""

    def __init__(self, pool: RolloutPool, source: Any) -> None:
        self.pool, self.source = pool, source

    @property
    def version(self) -> str:
        """The version that is current."""
        return str(ray.get(self.source.current.remote(), timeout=strike.STATUS_S))

    @property
    def now(self) -> str:
        """Which of the weights are current."""
        return score.weights_of(self.version)

    def others(self, trial: Trial) -> str:
        """Return weights that are not the current ones."""
        turn = WEIGHTS.index(self.now) + 1 + trial.number % (len(WEIGHTS) - 1)
        return WEIGHTS[turn % len(WEIGHTS)]

    def renew(self, weights: str) -> str:
        """Make ``weights`` current and bring all engines to them."""
        ray.get(self.source.advance.remote(weights), timeout=strike.STATUS_S)
        return self.push()

    def push(self) -> str:
        """Bring all engines to the current weights."""
        return self.pool.update_weights()

    def bring(self) -> None:
        """Bring all engines to the current weights, where the pool does not have them."""
        if self.pool.status()["weight_version"] != self.version:
            self.push()

    def missing(self, _handle: Any, status: dict[str, Any]) -> str:
        """Say what an engine lacks; an empty text if it has the current weights."""
        return _lacks(status["weight_version"], self.version)

    def seen(self, notes: Notes) -> Notes:
        """Return the notes of a pool, with what was due when each request was sent."""
        return notes


class PushedWeights(CurrentWeights):
    """Of a pool into whose engines the user's own code pushes: the pool knows of no version."""

    def push(self) -> str:
        calls = [handle.take_weights.remote() for handle in self.pool.handles.values()]
        ray.get(calls, timeout=_PUSH_S)
        return self.version

    def bring(self) -> None:
        version = self.version
        calls = [handle.call.remote("get_weight_version") for handle in self.pool.handles.values()]
        if set(ray.get(calls, timeout=_PUSH_S)) != {version}:
            self.push()

    def missing(self, handle: Any, status: dict[str, Any]) -> str:
        if status["weights_missing"]:
            return f"lacks weights: {status['weights_missing']}"
        return _lacks(ray.get(handle.call.remote("get_weight_version"), timeout=_PUSH_S), self.version)

    def seen(self, notes: Notes) -> Notes:
        due = self.version  # nothing is pushed while a batch runs
        return replace(notes, sent=[replace(one, version=due) for one in notes.sent])


def _lacks(has: str, wanted: str) -> str:
    return "" if has == wanted else f"and has {has!r}, wanted {wanted!r}"
