"""rayguard: Ray-native fault tolerance for RL post-training of language models.

Importing it is free: it loads the standard library only; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayguard.actors.guard.guard import guard, method
    from rayguard.actors.guard.mixins import MemoryMixin, RolloutMixin
    from rayguard.batching.chunks import BatchChunk, BatchChunks, split_batch
    from rayguard.engine.settings import EngineSettings
    from rayguard.engine.weights.version import Weights
    from rayguard.errors import (
        BatchError,
        CallLostError,
        ConfigError,
        DeadlineError,
        EngineCallError,
        EngineHungError,
        GaveUpError,
        GroupMemberError,
        NumericError,
        QuarantinedError,
        RayguardError,
        RecoveryTimeoutError,
        RequestError,
        StateLostError,
        WeightsError,
    )
    from rayguard.metrics.exporter import serve_metrics
    from rayguard.objects.scope import object_scope
    from rayguard.pool.pool import RolloutPool
    from rayguard.pool.values.policy import PoolPolicy
    from rayguard.pool.values.result import Batch, Generation, Sample
    from rayguard.preflight_checks.report import preflight
    from rayguard.preloading.runtime_env import preloaded
    from rayguard.recovery.budget import RestartBudget
    from rayguard.recovery.incident import Incident
    from rayguard.recovery.incident_search import incident_of
    from rayguard.recovery.ladder import Ladder
    from rayguard.recovery.memory_policy import MemoryPolicy
    from rayguard.recovery.policy import GuardPolicy, SnapshotPolicy
    from rayguard.trainers.gang.gang import GangStatus, TrainerGang
    from rayguard.trainers.gang.policy import GangPolicy
    from rayguard.trainers.gang.rank_group import RankGroup
    from rayguard.trainers.numeric_guard import NumericGuard
    from rayguard.trainers.trainer_mixin import TrainerMixin
    from rayguard.trainers.training_alarms import TrainingAlarm, TrainingAlarms

__version__ = "0.1.0"

_HOME = {
    "Batch": "pool.values.result",
    "BatchChunk": "batching.chunks",
    "BatchChunks": "batching.chunks",
    "BatchError": "errors",
    "CallLostError": "errors",
    "ConfigError": "errors",
    "DeadlineError": "errors",
    "EngineCallError": "errors",
    "EngineHungError": "errors",
    "EngineSettings": "engine.settings",
    "GangCallError": "errors",
    "GangPolicy": "trainers.gang.policy",
    "GangStatus": "trainers.gang.gang",
    "GaveUpError": "errors",
    "Generation": "pool.values.result",
    "GroupMemberError": "errors",
    "GuardPolicy": "recovery.policy",
    "Incident": "recovery.incident",
    "Ladder": "recovery.ladder",
    "MemoryMixin": "actors.guard.mixins",
    "MemoryPolicy": "recovery.memory_policy",
    "NumericError": "errors",
    "NumericGuard": "trainers.numeric_guard",
    "PoolPolicy": "pool.values.policy",
    "QuarantinedError": "errors",
    "RankGroup": "trainers.gang.rank_group",
    "RayguardError": "errors",
    "RecoveryTimeoutError": "errors",
    "RequestError": "errors",
    "RestartBudget": "recovery.budget",
    "RolloutMixin": "actors.guard.mixins",
    "RolloutPool": "pool.pool",
    "Sample": "pool.values.result",
    "SnapshotPolicy": "recovery.policy",
    "StateLostError": "errors",
    "TrainerGang": "trainers.gang.gang",
    "TrainerMixin": "trainers.trainer_mixin",
    "TrainingAlarm": "trainers.training_alarms",
    "TrainingAlarms": "trainers.training_alarms",
    "Weights": "engine.weights.version",
    "WeightsError": "errors",
    "guard": "actors.guard.guard",
    "incident_of": "recovery.incident_search",
    "method": "actors.guard.guard",
    "object_scope": "objects.scope",
    "preflight": "preflight_checks.report",
    "preloaded": "preloading.runtime_env",
    "serve_metrics": "metrics.exporter",
    "split_batch": "batching.chunks",
}

__all__ = [
    "Batch",
    "BatchChunk",
    "BatchChunks",
    "BatchError",
    "CallLostError",
    "ConfigError",
    "DeadlineError",
    "EngineCallError",
    "EngineHungError",
    "EngineSettings",
    "GangCallError",
    "GangPolicy",
    "GangStatus",
    "GaveUpError",
    "Generation",
    "GroupMemberError",
    "GuardPolicy",
    "Incident",
    "Ladder",
    "MemoryMixin",
    "MemoryPolicy",
    "NumericError",
    "NumericGuard",
    "PoolPolicy",
    "QuarantinedError",
    "RankGroup",
    "RayguardError",
    "RecoveryTimeoutError",
    "RequestError",
    "RestartBudget",
    "RolloutMixin",
    "RolloutPool",
    "Sample",
    "SnapshotPolicy",
    "StateLostError",
    "TrainerGang",
    "TrainerMixin",
    "TrainingAlarm",
    "TrainingAlarms",
    "Weights",
    "WeightsError",
    "__version__",
    "guard",
    "incident_of",
    "method",
    "object_scope",
    "preflight",
    "preloaded",
    "serve_metrics",
    "split_batch",
]


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        from rayguard.options import meant  # noqa: PLC0415 - only after a mistake

        known = [] if name.startswith("_") else __all__  # others ask for __path__ and the like
        raise AttributeError(f"module 'rayguard' has no attribute {name!r}{meant(name, known)}")
    value = getattr(importlib.import_module(f"rayguard.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
