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
    TIMELINE = "state-timeline"  # a lane for each series, coloured by its value


class Unit(str, Enum):
    """Grafana's names of units."""

    COUNT = "short"
    CORES = "suffix:cores"
    SHARE = "percentunit"  # of a ratio 0-1
    SECONDS = "s"
    BYTES = "bytes"
    BYTES_RATE = "Bps"
    RATE = "cps"  # per second
    REQUESTS = "reqps"  # requests or calls per second


class Colour(str, Enum):
    """Green needs nobody, orange somebody soon, red somebody now."""

    GREEN = "green"
    ORANGE = "orange"
    RED = "red"
    BLUE = "blue"  # good and bad mean nothing here
    YELLOW = "yellow"  # on its way
    GREY = "#8e8e8e"  # over, or nobody's concern


@dataclass(frozen=True, slots=True)
class Query:
    """One question to Prometheus. ``legend`` names its series: text, or ``{{label}}``.

    A curve with a unit of its own has an axis of its own, on the right.
    """

    expr: str
    legend: str
    unit: Unit | None = None  # where it is not the panel's
    colour: Colour | None = None  # where the panel's steps are not about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. ``about`` says what it shows and what to do; ``runbook`` is an alert's page.

    ``steps``: from this value on, this colour; before the first one it is ``colour``.
    ``names``: a series with this name always has this colour. ``width`` is of 24.
    """

    title: str
    about: str
    queries: tuple[Query, ...]
    draw: Draw = Draw.LINES
    unit: Unit = Unit.COUNT
    colour: Colour = Colour.GREEN
    steps: tuple[tuple[float, Colour], ...] = ()
    names: tuple[tuple[str, Colour], ...] = ()
    runbook: str = ""
    width: int = 8
    height: int = 7

    @property
    def instant(self) -> bool:
        """Whether it shows one value over the whole range, and no curve."""
        return self.draw in (Draw.NUMBER, Draw.BARS)

    @property
    def axis_top(self) -> float:
        """What the axis of curves reaches at least: the last step, or what makes a flat 0 readable."""
        if self.steps:
            return 1.0 if self.unit is Unit.SHARE else max(value for value, _ in self.steps)
        return 0.01 if self.unit in (Unit.SHARE, Unit.SECONDS, Unit.CORES) else 1.0


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
