"""What became of a run, as values: each life of its command, and how it ended. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSummary:
    """One life of the command. ``lost_s``: from its last checkpoint to the next life, or the end."""

    words: tuple[str, ...]
    code: int
    lasted_s: float
    ended: str  # "was ended by SIGKILL"
    kind: str = ""  # of its failure; '' where it did not fail
    signature: str = ""
    cause: str = ""
    evidence: tuple[str, ...] = ()
    checkpoint: str = ""  # that it went on from
    changed: tuple[str, ...] = ()  # as written into its command for the failure before
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run: its lives in order, the exit code, why it was not gone on with, and what to do about it."""

    code: int
    lives: tuple[LifeSummary, ...] = ()
    framework: str = ""
    why: str = ""
    advice: str = ""

    @property
    def lost_s(self) -> float:
        """Return how long was worked for nothing, or not at all."""
        return sum(life.lost_s for life in self.lives)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON types."""
        lives = [
            {**asdict(life), "lasted_s": round(life.lasted_s, 3), "lost_s": round(life.lost_s, 3)}
            for life in self.lives
        ]
        return {
            "code": self.code,
            "framework": self.framework,
            "restarts": max(0, len(self.lives) - 1),
            "recovered": len(self.lives) > 1 and self.code == 0,
            "lost_s": round(self.lost_s, 3),
            "why": self.why,
            "advice": self.advice,
            "lives": lives,
        }
