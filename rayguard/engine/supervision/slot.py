"""Putting an engine slot together from its parts: one call for the actors' layer and for tests."""

from __future__ import annotations

import os
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rayguard.engine.adoption.own_leases import OwnLeases
from rayguard.engine.audit import UNTOLD_NATS, Audit
from rayguard.engine.build.builder import EngineBuilder
from rayguard.engine.build.recipe import checked
from rayguard.engine.context import Surroundings
from rayguard.engine.hangs.watch import EngineWatch
from rayguard.engine.prefork.server import PreforkServer
from rayguard.engine.spoiled_requests import SpoiledRequests
from rayguard.engine.standby.keeper import Standby
from rayguard.engine.supervision.lifecycle import Lives
from rayguard.engine.supervision.recovery import Recovery
from rayguard.engine.supervision.supervisor import EngineSupervisor
from rayguard.engine.weights.canaries import Canaries
from rayguard.engine.weights.current import CurrentWeights
from rayguard.engine.weights.sources import GivenWeights, as_source
from rayguard.harmless import harmless
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from rayguard.engine.build.builder import Recipe
    from rayguard.engine.protocol import Engine
    from rayguard.faults.fault import Silence


def engine_slot(
    recipe: Recipe,
    *,
    weights: GivenWeights | None = None,
    policy: GuardPolicy | None = None,
    surroundings: Surroundings | None = None,
) -> EngineSupervisor:
    """Return a supervisor for engines made by ``recipe(settings)``; call ``start`` on it.

    ``weights`` is anything ``weights.sources.as_source`` takes, or None for engines that keep the
    weights they were built with.

    Raises:
        ConfigError: The recipe or the weights cannot work, as far as that is seen before anything is started.
    """
    check = checked(recipe)
    source = None if weights is None else as_source(weights)
    policy, around = policy or GuardPolicy(), surroundings or Surroundings()
    slot: list[EngineSupervisor] = []  # the parts report to the whole, which is made of them

    def report(error: Exception, life: object) -> Future[None]:
        return slot[0].report(error, life)

    def noticed(engine: Engine, silence: Silence | None) -> None:
        slot[0].report(None, engine.life, silence)

    leases = _leases(policy, around)
    server = _server(policy, leases)
    tally = TALLY.engine(around.target)
    builder = EngineBuilder(
        recipe,
        report,
        records=_records(around),
        prefork=server,
        patience_s=policy.patience_s,
        check=check,
    )
    builder.looks_at_logits, builder.adoptable = (
        policy.check_logits,
        leases is not None and server is not None,
    )
    canaries = Canaries(policy.canary_tolerance, around)
    current = CurrentWeights(source, policy.weights_deadline_s, canaries)
    lives = Lives(builder, EngineWatch(policy, noticed, tally, around=around), current, policy)
    lives.leases = leases
    if policy.standby == "engine":
        lives.standby = Standby(builder, current, policy, tally)
    supervisor = EngineSupervisor(lives, Recovery(lives, policy, around), policy, around)
    slot.append(supervisor)
    if policy.check_logits:
        lives.spoiled = SpoiledRequests(around.noticed, tally)
    if policy.audit:
        lives.audit = Audit(
            policy.audit,
            UNTOLD_NATS if policy.canary_tolerance is None else policy.canary_tolerance,
            ready=lambda: supervisor.ready,
            wrong=supervisor.doubted,
            tally=tally,
        )
    threading.Thread(target=_read_catalog, name="rayguard-catalog", daemon=True).start()
    return supervisor


def _leases(policy: GuardPolicy, around: Surroundings) -> OwnLeases | None:
    """Return where engines are kept for heirs; None where nobody could adopt one: outside of actors."""
    if not policy.adopt_within_s or not around.actor_id:
        return None
    return OwnLeases(policy.adopt_within_s, around)


def _server(policy: GuardPolicy, leases: OwnLeases | None) -> PreforkServer | None:
    """Return a prefork server that has begun to import vLLM, or that of the actor's last life."""
    if policy.standby is None or find_spec("vllm") is None:
        return None
    server = PreforkServer(keep_s=0.0 if leases is None else policy.adopt_within_s)
    left = None if leases is None else leases.expected()
    if left is None or not server.inherit(left.prefork):
        server.start()
    return server


def _read_catalog() -> None:
    """Read the catalog while the engine starts: the first failure should not wait for it."""
    with harmless("catalog"):
        from rayguard.faults.catalog_in_use import catalog_in_use  # noqa: PLC0415 - slow, so not when this is imported

        catalog_in_use()


def _records(around: Surroundings) -> tuple[Path, Path]:
    name = f"{os.getpid()}-{around.target}"
    return around.home() / "records" / name, around.home() / "records" / f"{name}-standby"
