"""rayguard: Ray-native fault tolerance for RL post-training of language models.

Importing it is free: it loads the standard library only; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayguard.actors.guard import guard, method
    from rayguard.actors.mixins import RolloutMixin
    from rayguard.engine.settings import EngineSettings
    from rayguard.engine.weights import Weights
    from rayguard.errors import (
        ConfigError,
        EngineHungError,
        GaveUpError,
        RayguardError,
        RecoveryTimeoutError,
        WeightsError,
    )
    from rayguard.metrics.exporter import serve_metrics
    from rayguard.recovery.budget import RestartBudget
    from rayguard.recovery.incident import Incident, incident_of
    from rayguard.recovery.ladder import Ladder
    from rayguard.recovery.policy import GuardPolicy

__version__ = "0.1.0"

_HOME = {
    "ConfigError": "errors",
    "EngineHungError": "errors",
    "EngineSettings": "engine.settings",
    "GaveUpError": "errors",
    "GuardPolicy": "recovery.policy",
    "Incident": "recovery.incident",
    "Ladder": "recovery.ladder",
    "RayguardError": "errors",
    "RecoveryTimeoutError": "errors",
    "RestartBudget": "recovery.budget",
    "RolloutMixin": "actors.mixins",
    "Weights": "engine.weights",
    "WeightsError": "errors",
    "guard": "actors.guard",
    "incident_of": "recovery.incident",
    "method": "actors.guard",
    "serve_metrics": "metrics.exporter",
}

__all__ = [
    "ConfigError",
    "EngineHungError",
    "EngineSettings",
    "GaveUpError",
    "GuardPolicy",
    "Incident",
    "Ladder",
    "RayguardError",
    "RecoveryTimeoutError",
    "RestartBudget",
    "RolloutMixin",
    "Weights",
    "WeightsError",
    "__version__",
    "guard",
    "incident_of",
    "method",
    "serve_metrics",
]


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rayguard' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rayguard.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
