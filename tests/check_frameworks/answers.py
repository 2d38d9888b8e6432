"""What a check of a framework answers, and how it gets from its environment to whoever asked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class FaultAnswer:
    """One fault: how a run ended bare, whether it survived with rayguard, and what that took.

    ``ratio_to_restart``: of the time from the start of a job to where it was, None where that was not measured.
    """

    fault: str
    bare: str
    survived: bool
    seconds: float
    ratio_to_restart: float | None = None
    note: str = ""


@dataclass(frozen=True)
class FrameworkAnswer:
    """One framework: its version, which real part ran, the faults, whether a run without one was the same."""

    version: str
    ran: str
    faults: list[FaultAnswer] = field(default_factory=list)
    no_fault_identical: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether all was as it should be."""
        return not self.problems and self.no_fault_identical and all(one.survived for one in self.faults)

    def line(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self))


def read(text: str) -> dict[str, object]:
    """Return what the last line of JSON says.

    Raises:
        ValueError: There is none.
    """
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    raise ValueError("there is no line of JSON in it")
