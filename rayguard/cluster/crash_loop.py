"""When an actor's restarts are a loop: Ray starts it again and again, silently, for the same cause.

Only what is counted and when it is enough; who may be stopped, and stopping it, is
``rayguard.cluster.supervisor``. A guarded actor bounds its own restarts too (``GuardPolicy.process_budget``);
this is for those that nobody bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayguard.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLoopPolicy:
    """``restarts`` of one actor for the same cause within ``within_s`` seconds are a loop.

    ``stop``: end it for good, where it is provably under rayguard; without, it is only told.

    Raises:
        ConfigError: A number means nothing.
    """

    restarts: int = 5
    within_s: float = 600.0
    stop: bool = True

    def __post_init__(self) -> None:
        """Refuse a policy that calls every restart a loop."""
        if self.restarts < 2:  # noqa: PLR2004 - once is no loop
            raise ConfigError(f"crash_loop.restarts must be 2 or more, got {self.restarts}")
        if not self.within_s > 0:
            raise ConfigError(f"crash_loop.within_s must be more than 0 seconds, got {self.within_s}")


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart that was nobody's wish: when (wall clock, seconds), and how Ray calls the end before it."""

    at: float
    exit: str  # of Ray's WorkerExitType; empty when it is not known


def with_one_more(
    restarts: tuple[Restart, ...], new: Restart, policy: CrashLoopPolicy
) -> tuple[Restart, ...]:
    """Return the restarts that still count. Invariant: never more than the policy asks for."""
    recent = [one for one in restarts if new.at - one.at < policy.within_s]
    return (*recent, new)[-policy.restarts :]


def is_loop(restarts: tuple[Restart, ...], policy: CrashLoopPolicy) -> bool:
    """Say whether the last restarts came for the same cause, and too fast; one that nobody knows fits any."""
    if len(restarts) < policy.restarts:
        return False
    recent = restarts[-policy.restarts :]
    alike = len({one.exit for one in recent if one.exit}) <= 1
    return alike and recent[-1].at - recent[0].at < policy.within_s


def words(exit_type: str, detail: str, known: str) -> str:
    """Say for what it restarts: what the last incident of the actor found, else Ray's own word."""
    if known:
        return known
    said = detail.partition(" Some common causes include")[0].strip()  # guesses are no evidence
    return ": ".join(part for part in (exit_type, said) if part) or "nobody knows how its process ended"
