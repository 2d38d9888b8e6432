"""Beginning and ending lives of an engine: the two steps that every recovery is made of.

Deciding which comes when is ``rayguard.engine.recovery``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.engine.device import wait_for_memory
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from rayguard.engine.builder import EngineBuilder
    from rayguard.engine.current import CurrentWeights
    from rayguard.engine.protocol import Carried, Engine, Verdicts
    from rayguard.engine.watch import EngineWatch
    from rayguard.recovery.policy import GuardPolicy

FORCE_S = 5.0


class Lives:
    """One engine at a time: built, brought to the current weights, serving, watched; later ended."""

    def __init__(
        self, builder: EngineBuilder, watch: EngineWatch, weights: CurrentWeights, policy: GuardPolicy
    ) -> None:
        self.builder = builder
        self.weights = weights
        self._watch = watch
        self._policy = policy
        self.epoch = 0
        self.engine: Engine | None = None
        self.is_async = False  # known once the first engine is built; the same for all its successors

    def begin(self, applied: tuple[str, ...], verdicts: Verdicts) -> Carried:
        """Build the next engine with these safe settings and let it go on with the last one's requests."""
        policy, old = self._policy, self.engine
        new = self.builder.build(applied, old, deadline_s=policy.build_deadline_s)
        try:
            self.weights.required()
            if self.weights.pending and new.can_push():
                self.weights.bring(new)
            carried = new.serve(verdicts, deadline_s=policy.weights_deadline_s)
        except BaseException:
            new.close(polite_s=0.0, force_s=FORCE_S)
            raise
        self.engine, self.is_async = new, new.is_async
        self.epoch += 1
        self._watch.watch(new)
        return carried

    def end(self, *, polite_s: float = 0.0) -> tuple[int, ...]:
        """End the engine to its last process and byte of device memory; return the pids that stayed."""
        self._watch.watch(None)
        engine = self.engine
        if engine is None:
            return ()
        left = engine.close(polite_s=polite_s, force_s=FORCE_S)
        with harmless("device"):
            wait_for_memory([known.process.pid for known in engine.processes()])
        return tuple(known.process.pid for known in left)

    def close(self, polite_s: float) -> None:
        """End the engine and watch nothing any more."""
        self.end(polite_s=polite_s)
        self.engine = None
        self.builder.close()
        self._watch.close()
