"""Panels over time: curves with a legend that has their newest values, and lanes that are coloured by value."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from deploy.generate.dashboards.board import Draw, Panel, Unit
from tests.benchmarks.cluster.plots.canvas import Box, Canvas
from tests.benchmarks.cluster.plots.legend import Legend
from tests.benchmarks.cluster.plots.look import (
    CLASSIC,
    DIM,
    GRID,
    INK,
    colour_of,
    fitted,
    points,
    readable,
    stepped,
    width_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.benchmarks.cluster.plots.answers import Series

_LETTERS, _TICKS = 13.0, 12.0
_CLOCK = 22.0  # under the axis
_CLOCK_ROOM = 80.0  # of one time of day
_LINES = 4
_FILL, _STACK_FILL = 0.10, 0.70
_BYTES = (Unit.BYTES, Unit.BYTES_RATE)


def lines(canvas: Canvas, box: Box, panel: Panel, series: Sequence[Series], moments: Sequence[float]) -> None:
    """Draw Grafana's time series."""
    colours = _colours(series)
    legend = Legend(series, colours, box.width)
    height = box.height - _CLOCK - legend.height
    units = list(dict.fromkeys([panel.unit, *(one.unit for one in series)]))
    groups = [
        (unit, [pair for pair in zip(series, colours, strict=True) if pair[0].unit is unit]) for unit in units
    ]
    groups = [(unit, group) for unit, group in groups if group]
    ticks = [_ticks(_highest(panel, group), unit, group) for unit, group in groups]
    rooms = [
        12 + max(width_of(readable(tick, unit), _TICKS) for tick in at)
        for at, (unit, _) in zip(ticks, groups, strict=True)
    ]
    right = rooms[1] if len(rooms) > 1 else 8.0
    inner = Box(box.x + rooms[0], box.y + 6, box.width - rooms[0] - right, height - 6)
    for number, ((unit, group), at) in enumerate(zip(groups, ticks, strict=True)):
        axes = canvas.axes(inner)
        _frame(axes, moments, inner, clock=number == 0)
        _values(axes, at, unit, right=number > 0)
        _curves(axes, panel, group, moments)
        if number == 0:
            _thresholds(axes, panel, at[-1])
    legend.write(canvas, box)


def lanes(canvas: Canvas, box: Box, panel: Panel, series: Sequence[Series], moments: Sequence[float]) -> None:
    """Draw Grafana's state timeline."""
    left = min(0.6 * box.width, 12 + max(width_of(one.name, _LETTERS) for one in series))
    inner = Box(box.x + left, box.y + 4, box.width - left - 8, box.height - _CLOCK - 4)
    axes = canvas.axes(inner)
    _frame(axes, moments, inner, clock=True)
    axes.set_ylim(len(series), 0)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    step = moments[1] - moments[0] if len(moments) > 1 else 1.0
    for row, one in enumerate(series):
        y = inner.y + (row + 0.5) * inner.height / len(series)
        canvas.text(inner.x - 8, y, fitted(one.name, _LETTERS, left - 10), _LETTERS, INK, ha="right")
        thick = min(0.8, 26 * len(series) / inner.height)
        for at, value in zip(moments, one.values, strict=True):
            if not math.isnan(value):
                span, look = [(at, step)], {"facecolors": stepped(panel, value), "linewidth": 0}
                axes.broken_barh(span, (row + 0.5 - thick / 2, thick), **look)


def _colours(series: Sequence[Series]) -> list[str]:
    free = iter(CLASSIC * (1 + len(series) // len(CLASSIC)))
    taken = {colour_of(one.colour) for one in series if one.colour}
    return [
        colour_of(one.colour) if one.colour else next(colour for colour in free if colour not in taken)
        for one in series
    ]


def _highest(panel: Panel, group: Sequence[tuple[Series, str]]) -> float:
    columns = zip(*(one.values for one, _ in group), strict=True)
    known = [[value for value in column if not math.isnan(value)] for column in columns]
    together = sum if panel.draw is Draw.STACK else max
    return max([panel.axis_top, *(together(column) for column in known if column)])


def _ticks(highest: float, unit: Unit, group: Sequence[tuple[Series, str]]) -> list[float]:
    """Return where the values of an axis are written; the last one is its end."""
    from matplotlib.ticker import MaxNLocator

    base = 1024.0 ** int(math.log(highest, 1024)) if unit in _BYTES and highest >= 1 else 1.0
    whole = unit is Unit.COUNT and all(
        value == int(value) for one, _ in group for value in one.values if not math.isnan(value)
    )
    found = MaxNLocator(_LINES, steps=[1, 2, 2.5, 5, 10], integer=whole).tick_values(0, highest / base)
    return [float(tick) * base for tick in found]


def _frame(axes: Any, moments: Sequence[float], inner: Box, *, clock: bool) -> None:
    axes.set_xlim(moments[0], moments[-1])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=points(_TICKS), labelcolor=DIM, pad=5)
    count = max(2, int(inner.width / _CLOCK_ROOM))
    edge = (moments[-1] - moments[0]) * _CLOCK_ROOM / 3 / inner.width
    ticks = [
        at for at in _times(moments[0], moments[-1], count) if moments[0] + edge <= at <= moments[-1] - edge
    ]
    axes.set_xticks(
        ticks, [f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S}" for at in ticks] if clock else []
    )
    if clock:
        axes.grid(visible=True, color=GRID, linewidth=points(1))
        axes.set_axisbelow(True)


def _times(start: float, end: float, count: int) -> list[float]:
    """Return full times of day."""
    for step in (5, 10, 15, 20, 30, 60, 90, 120, 180, 240, 300, 600, 900, 1800, 3600):
        if (end - start) / step <= count:
            first = math.ceil(start / step) * step
            return [float(at) for at in range(first, int(end) + 1, step)]
    return [start, end]


def _values(axes: Any, ticks: list[float], unit: Unit, *, right: bool) -> None:
    axes.set_ylim(0, ticks[-1])
    axes.set_yticks(ticks, [readable(tick, unit) for tick in ticks])
    if right:
        axes.yaxis.tick_right()
        axes.tick_params(length=0)


def _curves(axes: Any, panel: Panel, group: Sequence[tuple[Series, str]], moments: Sequence[float]) -> None:
    below = [0.0] * len(moments)
    for one, colour in group:
        top, ground = list(one.values), [0.0] * len(moments)
        if panel.draw is Draw.STACK:
            ground = below
            top = [low + value for low, value in zip(below, one.values, strict=True)]
            below = [low if math.isnan(high) else high for low, high in zip(below, top, strict=True)]
        fill = _STACK_FILL if panel.draw is Draw.STACK else _FILL
        axes.fill_between(moments, ground, top, color=colour, alpha=fill, linewidth=0)
        if panel.draw is not Draw.STACK:  # the line of a 0 would lie on all that is below it
            axes.plot(moments, top, color=colour, linewidth=points(2), clip_on=False)


def _thresholds(axes: Any, panel: Panel, top: float) -> None:
    for value, colour in panel.steps:
        if value <= top:
            axes.axhline(
                value, color=colour_of(colour), linewidth=points(1.6), linestyle=(0, (5, 4)), clip_on=False
            )
