"""Whether another actor is hired for one that is dead for good, and when: facts in, decision out. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from rayguard.recovery.budget import RestartBudget

_FIRST_S = 1.0  # before the second replacement within the budget's time; the first comes at once
_GROWTH = 4.0
_LONGEST_S = 60.0
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# How Ray words what an actor's constructor raised: as text, behind the frames.
_OURS = re.compile(r"^rayguard\.errors\.(\w+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Again:
    """Hire another one."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Enough:
    """Hire no other one."""

    why: str


def decide(
    replaced_at: tuple[float, ...], names: Collection[str], budget: RestartBudget, now: float, *, proven: bool
) -> Again | Enough:
    """Say what becomes of a place whose actor ended with an error of these type ``names``.

    ``replaced_at``: when that place was filled anew (seconds). ``proven``: some engine of the pool has
    served, so the class and its settings can work.
    """
    if "ConfigError" in names:
        return Enough("another one would be refused as well")
    if "ActorUnschedulableError" in names:
        return Enough("another one could not be placed either")
    if "GaveUpError" in names and not proven:
        return Enough("no engine of this pool ever served, and every safe setting was tried")
    recent = len(budget.recent(replaced_at, now))
    if not budget.max_restarts:
        return Enough("the policy allows no replacement")
    if not budget.allows(replaced_at, now):
        return Enough(f"{recent} replacements within {budget.within_s:.0f} s did not last")
    return Again(min(_LONGEST_S, _FIRST_S * _GROWTH ** (recent - 1)) if recent else 0.0)


def names_of(error: BaseException) -> frozenset[str]:
    """Return the names of what ``error`` is, and of what it says that a constructor raised."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if getattr(error, "actor_init_failed", False):
        names.update(_OURS.findall(_ANSI.sub("", str(error))))
    return frozenset(names)


def said(error: BaseException) -> str:
    """Return what ended an actor, without Ray's frames where its constructor raised."""
    text = _ANSI.sub("", str(error))
    if getattr(error, "actor_init_failed", False):
        lines = text.splitlines()
        framed = [n for n, line in enumerate(lines[:-1]) if line.startswith("  ")]
        text = "its constructor raised " + "\n".join(lines[framed[-1] + 1 :] if framed else lines)
    return f"{type(error).__name__}: {text}"
