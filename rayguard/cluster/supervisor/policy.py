"""What the supervisor of a job may do: one frozen value, from plain JSON types."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from rayguard.cluster.supervisor.quarantine import QuarantinePolicy
from rayguard.cluster.supervisor.restart_budget import RestartPolicy
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_P = TypeVar("_P", RestartPolicy, QuarantinePolicy)

CRASH_LOOP = RestartPolicy(max_restarts=5, within_s=600.0, stop=True)  # of one actor, for the same cause
JOB_BUDGET = RestartPolicy(max_restarts=20, per_actor=1.0, within_s=3_600.0)  # of all actors
QUARANTINE = QuarantinePolicy()
_ON_SPENT = {"tell": False, "stop": True}
# The user's keys, and the fields that they set.
_KEYS = {
    "budget": {
        "at_least": "max_restarts",
        "per_actor": "per_actor",
        "within_s": "within_s",
        "on_spent": "stop",
    },
    "crash_loop": {"restarts": "max_restarts", "within_s": "within_s", "stop": "stop"},
    "quarantine": {one.name: one.name for one in fields(QuarantinePolicy)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorPolicy:
    """Each part that is None is off. What happens is told in any case.

    ``budget`` is that of the whole job: restarts that were wished for, and those of a node that went, do not
    count. ``crash_loop`` is that of one actor for the same cause.

    Raises:
        ConfigError: Every restart would be a loop, or the budget is spent before it begins.
    """

    budget: RestartPolicy | None = JOB_BUDGET
    crash_loop: RestartPolicy | None = CRASH_LOOP
    quarantine: QuarantinePolicy | None = QUARANTINE

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        loop, budget = self.crash_loop, self.budget
        if loop is not None and loop.max_restarts < 2:  # noqa: PLR2004 - once is no loop
            raise ConfigError(f"supervisor: crash_loop.restarts must be 2 or more, got {loop.max_restarts}")
        if budget is not None and (budget.max_restarts < 1 or budget.per_actor < 0):
            raise ConfigError(
                "supervisor: budget needs at_least >= 1 and per_actor >= 0, "
                f"got {budget.max_restarts} and {budget.per_actor}"
            )

    @classmethod
    def of(cls, settings: Mapping[str, object] | None) -> SupervisorPolicy:
        """Return the policy that ``settings`` describes: {"crash_loop": {"restarts": 3}, "quarantine": None}.

        Raises:
            ConfigError: A key or a value is not known.
        """
        settings = settings or {}
        unknown = [name for name in settings if name not in _KEYS]
        if unknown:
            raise ConfigError(f"supervisor: {unknown[0]!r} is no key; known: {', '.join(sorted(_KEYS))}")
        return cls(
            budget=_part(settings, "budget", JOB_BUDGET),
            crash_loop=_part(settings, "crash_loop", CRASH_LOOP),
            quarantine=_part(settings, "quarantine", QUARANTINE),
        )


def _part(settings: Mapping[str, object], name: str, usual: _P) -> _P | None:
    value, known = settings.get(name, {}), _KEYS[name]
    if value is None:
        return None
    unknown = [key for key in value if key not in known] if isinstance(value, dict) else [repr(value)]
    if unknown or not isinstance(value, dict):
        raise ConfigError(f"supervisor.{name}: {unknown[0]!r} is no key; known: {', '.join(sorted(known))}")
    try:
        if "on_spent" in value:
            if value["on_spent"] not in _ON_SPENT:
                raise ValueError(f"on_spent must be tell or stop, got {value['on_spent']!r}")  # noqa: TRY301
            value = {**value, "on_spent": _ON_SPENT[value["on_spent"]]}
        return replace(usual, **{known[key]: one for key, one in value.items()})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"supervisor.{name}: {error}") from error
