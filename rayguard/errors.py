"""The errors that rayguard raises.

Every error crosses process borders: all fields go positionally to ``super().__init__``, so that
pickle and Ray rebuild the same type with the same fields. Errors of a user's own code are never
replaced by one of these; see ``rayguard.recovery.incident.incident_of`` for what is attached to them.
"""

from __future__ import annotations


class RayguardError(Exception):
    """Base of everything that rayguard raises by itself."""


class ConfigError(RayguardError, ValueError):
    """A setting, policy or decorated thing that cannot work; raised before anything runs."""


class EngineHungError(RayguardError, TimeoutError):
    """The engine made no progress although it had work; the message holds the evidence."""


class WeightsError(RayguardError, RuntimeError):
    """An engine could not be brought to the current weights, or reports other ones."""


class WeightSourceError(WeightsError):
    """The weight source could not say what is current: no new engine would change that."""


class RecoveryTimeoutError(RayguardError, TimeoutError):
    """A recovery step passed its deadline."""


class GaveUpError(RayguardError, RuntimeError):
    """The restart budget is spent: says the cause, what was tried and what to do.

    Fields: ``target``, ``cause``, ``tried`` (rung names, in order), ``advice``.
    """

    def __init__(self, target: str, cause: str, tried: tuple[str, ...], advice: str) -> None:
        super().__init__(target, cause, tried, advice)
        self.target = target
        self.cause = cause
        self.tried = tried
        self.advice = advice

    def __str__(self) -> str:
        tried = " -> ".join(self.tried) or "nothing (the policy allows no restart)"
        return f"{self.target} cannot be kept alive: {self.cause}. Tried: {tried}. What to do: {self.advice}"
