"""What the supervisor of a job may do: one frozen value, from plain JSON types."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rayguard.cluster.crash_loop import CrashLoopPolicy
from rayguard.cluster.job_budget import JobBudgetPolicy, OnSpent
from rayguard.cluster.quarantine import QuarantinePolicy
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARTS = {"budget": JobBudgetPolicy, "crash_loop": CrashLoopPolicy, "quarantine": QuarantinePolicy}


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorPolicy:
    """Each part that is None is off. What happens is told in any case."""

    budget: JobBudgetPolicy | None = field(default_factory=JobBudgetPolicy)
    crash_loop: CrashLoopPolicy | None = field(default_factory=CrashLoopPolicy)
    quarantine: QuarantinePolicy | None = field(default_factory=QuarantinePolicy)

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> SupervisorPolicy:
        """Return the policy that ``said`` describes: {"crash_loop": {"restarts": 3}, "quarantine": None}.

        Raises:
            ConfigError: A key or a value is not known.
        """
        chosen = {name: _part(name, value) for name, value in (said or {}).items()}
        return cls(**chosen)


def _part(name: str, value: Any) -> Any:
    kind = _PARTS.get(name)
    if kind is None:
        raise ConfigError(f"supervisor: {name!r} is no key; known: {', '.join(sorted(_PARTS))}")
    if value is None:
        return None
    known = {one.name for one in fields(kind)}
    unknown = [key for key in value if key not in known] if isinstance(value, dict) else [repr(value)]
    if unknown:
        raise ConfigError(f"supervisor.{name}: {unknown[0]!r} is no key; known: {', '.join(sorted(known))}")
    try:
        if "on_spent" in value:
            value = {**value, "on_spent": OnSpent(value["on_spent"])}
        return kind(**value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"supervisor.{name}: {error}") from error
