"""Beginning and ending lives of an engine: the steps that every recovery is made of.

Deciding which comes when is ``rayguard.engine.supervision.recovery``; keeping a standby is
``rayguard.engine.standby.keeper``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.engine.build.builder import BuildOrder, EngineBuilder
from rayguard.engine.build.footprint import wait_for_memory
from rayguard.engine.protocol import Verdicts
from rayguard.engine.weights.proof import held_by
from rayguard.errors import ConfigError
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from rayguard.engine.adoption.own_leases import OwnLeases
    from rayguard.engine.audit import Audit
    from rayguard.engine.hangs.watch import EngineWatch
    from rayguard.engine.protocol import Carried, Engine
    from rayguard.engine.spoiled_requests import SpoiledRequests
    from rayguard.engine.standby.keeper import Standby
    from rayguard.engine.standby.spare import Spare
    from rayguard.engine.weights.current import CurrentWeights
    from rayguard.engine.weights.proof import Proof
    from rayguard.recovery.policy import GuardPolicy

FORCE_S = 5.0


class Lives:
    """One engine at a time: built, brought to the current weights, serving, watched; later ended."""

    def __init__(
        self, builder: EngineBuilder, watch: EngineWatch, weights: CurrentWeights, policy: GuardPolicy
    ) -> None:
        self.builder = builder
        self.weights = weights
        self.standby: Standby | None = None  # set once, before the first life
        self.audit: Audit | None = None  # likewise
        self.spoiled: SpoiledRequests | None = None  # likewise
        self.leases: OwnLeases | None = None  # likewise; None: engines end with this process
        self.adopted = False  # the engine that serves was left by the actor's last life
        self._watch = watch
        self._policy = policy
        # What a standby writes about its failures is no evidence about the engine that serves: two folders.
        self.records, self._spare_records = builder.records
        self.epoch = 0
        self.closed = False  # there will be no next life, also of a recovery that is under way
        self.engine: Engine | None = None
        # Known once the first engine is built; the same for all its successors.
        self.is_async = self.one_thread = False

    def begin(self, applied: tuple[str, ...], verdicts: Verdicts) -> Carried:
        """Build the next engine with these safe settings and let it go on with the last one's requests.

        A standby with these settings is the next engine, also one that is just being built.
        """
        self._refuse_if_closed()
        if self.engine is None and (adopted := self._adopted(applied)) is not None:
            return adopted
        deadline_s = self._policy.build_deadline_s
        spare = None if self.standby is None else self.standby.finish(applied, deadline_s)
        if spare is not None:
            carried = self._put_in_front(spare.engine, verdicts, spare)
        else:
            order = BuildOrder(
                applied=applied, predecessor=self.engine, records=self.records, deadline_s=deadline_s
            )
            carried = self._put_in_front(self.builder.build(order), verdicts, None)
        self._settled(applied)
        return carried

    def _adopted(self, applied: tuple[str, ...]) -> Carried | None:
        """Go on with the engine that the actor's last life left; None where there is none, or it is unfit."""
        lease = None if self.leases is None else self.leases.inherited(applied)
        if lease is None or self.leases is None:
            return None
        order = BuildOrder(
            applied=applied,
            predecessor=None,
            records=self.records,
            deadline_s=self._policy.build_deadline_s,
            lease=lease,
        )
        try:
            engine = self.builder.build(order)
        except Exception as error:  # noqa: BLE001 - whatever the recipe makes of it: another engine is built
            self.leases.unfit(lease, f"{type(error).__name__}: {error}")
            return None
        carried = self._put_in_front(engine, Verdicts(), None, had=held_by(engine.receipts(deadline_s=0.0)))
        self.adopted = True
        self._settled(applied)
        return carried

    def take_over(self, applied: tuple[str, ...], verdicts: Verdicts) -> Carried | str:
        """Let the standby go on with the requests of an engine that failed, or say why it cannot.

        The failed engine is ended behind the new one, while that one serves.
        """
        if self.standby is None:
            return ""
        spare, old = self.standby.take(applied), self.engine
        if isinstance(spare, str):
            return spare
        carried = self._put_in_front(spare.engine, verdicts, spare)
        if old is not None:
            self.standby.retire(old)
        self._settled(applied)
        return carried

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ConfigError("the engine was stopped")

    def _put_in_front(
        self, new: Engine, verdicts: Verdicts, spare: Spare | None, had: Proof | None = None
    ) -> Carried:
        try:
            self._refuse_if_closed()  # while it was built
            self.weights.begin(new, had if spare is None else spare.proof)
            if self.audit is not None:
                new.audited_by(self.audit)
            if self.spoiled is not None:
                new.tells_of_spoiled(self.spoiled.take)
            carried = new.serve(verdicts, deadline_s=self._policy.weights_deadline_s)
        except BaseException:
            new.close(polite_s=0.0, force_s=FORCE_S)
            raise
        if spare is not None:
            self.records, self._spare_records = self._spare_records, self.records
        self.engine, self.is_async, self.one_thread = new, new.is_async, new.one_thread
        self.adopted = False
        self.epoch += 1
        self._watch.watch(new)
        return carried

    def _settled(self, applied: tuple[str, ...]) -> None:
        if self.leases is not None and self.engine is not None:
            self.leases.hand_in(self.engine, applied, self.builder.prefork_address)
        if self.standby is not None and self.engine is not None:
            self.standby.want(applied, self.engine, self._spare_records)

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

    def give_up(self) -> None:
        """End the engine and its standby: there will be no next life."""
        self.end()
        if self.standby is not None:
            self.standby.close()

    def close(self, polite_s: float) -> None:
        """End the engine and its standby, and watch nothing any more."""
        self.closed = True
        if self.leases is not None:
            self.leases.revoke()
        if self.audit is not None:
            self.audit.close()
        if self.spoiled is not None:
            self.spoiled.close()
        if self.standby is not None:
            self.standby.close()
        self.end(polite_s=polite_s)
        self.engine = None
        self.builder.close()
        self._watch.close()
