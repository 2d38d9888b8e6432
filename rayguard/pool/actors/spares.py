"""What each node of a pool keeps ready for the next life of an actor: its imports, and workers that wait."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rayguard.preloading.runtime_env import preloaded, preloaded_later, with_another_python

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STARTING_S = 3.0  # a worker that was asked for so lately was taken by nobody


class Spares:
    """Those of one pool, ``number`` on each node. Ray does not say which workers are idle: an estimate."""

    def __init__(
        self, number: int, *, some_left: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``some_left``: by an earlier life of the pool's owner, so that each actor took one, and no more."""
        self._number, self._some_left, self._clock = number, some_left, clock
        self._asked: dict[str, list[float]] = defaultdict(list)  # by node, when; those that nobody took

    def missing(self, node: str, age_s: float) -> int:
        """Return how many to ask for where an actor is ready on ``node``, whose process is ``age_s`` old.

        A process that began after a worker was asked for is that worker, or has taken its place.
        """
        if not self._number or not node:
            return 0
        asked, now = self._asked[node], self._clock()
        if asked and now - asked[0] > max(age_s, _STARTING_S):
            asked.pop(0)
        missing = min(self._number - len(asked), 1 if self._some_left else self._number)
        asked.extend([now] * missing)
        return missing


def with_imports(options: Mapping[str, Any], around: Mapping[str, Any], *, spares: int) -> dict[str, Any]:
    """Return options of an actor whose workers begin with vLLM imported, if its Python is Ray's own.

    Without ``spares`` its next lives alone. ``around``: the runtime environment that its own is added to.
    """
    runtime_env = dict(options.get("runtime_env") or {})
    if sys.platform != "linux" or with_another_python({**around, **runtime_env}):
        return dict(options)
    begun = preloaded("vllm", runtime_env=runtime_env) if spares else preloaded_later("vllm", runtime_env)
    return {**options, "runtime_env": begun}
