"""What a dashboard is: rows of panels, each with its queries. Knows no Grafana: that is ``render``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Draw(str, Enum):
    """How a panel shows its numbers."""

    NUMBER = "stat"
    LINES = "timeseries"
    STACK = "stack"
    BARS = "bargauge"


class Unit(str, Enum):
    """Grafana's names of units."""

    COUNT = "short"
    SHARE = "percentunit"  # of a ratio 0-1
    SECONDS = "s"
    BYTES = "bytes"
    BYTES_RATE = "Bps"
    RATE = "cps"  # per second


class Colour(str, Enum):
    """Green needs nobody, orange somebody soon, red somebody now."""

    GREEN = "green"
    ORANGE = "orange"
    RED = "red"
    BLUE = "blue"  # good and bad mean nothing here


@dataclass(frozen=True, slots=True)
class Query:
    """One question to Prometheus. ``legend`` names its series: text, or ``{{label}}``."""

    expr: str
    legend: str
    unit: Unit | None = None  # where it is not the panel's


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. ``about`` says what it shows and what to do; ``runbook`` is an alert's page.

    ``steps``: from this value on, this colour; before the first one it is ``colour``.
    ``width`` is of 24.
    """

    title: str
    about: str
    queries: tuple[Query, ...]
    draw: Draw = Draw.LINES
    unit: Unit = Unit.COUNT
    colour: Colour = Colour.GREEN
    steps: tuple[tuple[float, Colour], ...] = ()
    runbook: str = ""
    width: int = 8
    height: int = 7

    @property
    def instant(self) -> bool:
        """Whether it shows one value over the whole range, and no curve."""
        return self.draw in (Draw.NUMBER, Draw.BARS)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, in order."""
        return tuple(panel for row in self.rows for panel in row.panels)
