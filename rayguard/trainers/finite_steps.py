"""Steps whose loss or gradient is not finite: left out; after several in a row, back to a good state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from rayguard.errors import ConfigError


class StepVerdict(str, Enum):
    """What to do with a step."""

    TAKE = "take"
    SKIP = "skip"
    REWIND = "rewind"


@dataclass(slots=True)
class FiniteSteps:
    """Counts steps. ``rewind_after`` in a row that are not finite say that the weights are bad by now.

    Raises:
        ConfigError: ``rewind_after`` is less than 1.
    """

    rewind_after: int = 3
    taken: int = 0
    skipped: int = 0
    rewound: int = 0
    _in_a_row: int = 0

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if (
            isinstance(self.rewind_after, bool)
            or not isinstance(self.rewind_after, int)
            or self.rewind_after < 1
        ):
            raise ConfigError(f"rewind_after must be a whole number, 1 or more; got {self.rewind_after!r}")

    def judge(self, *numbers: float) -> StepVerdict:
        """Say what to do with a step that has these numbers: its loss, its gradient's norm, as floats."""
        if all(math.isfinite(number) for number in numbers):
            self._in_a_row = 0
            self.taken += 1
            return StepVerdict.TAKE
        self._in_a_row += 1
        self.skipped += 1
        if self._in_a_row < self.rewind_after:
            return StepVerdict.SKIP
        self._in_a_row = 0
        self.rewound += 1
        return StepVerdict.REWIND
