"""Panels that show one value of each series: big numbers and bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks.cluster.plots.canvas import Box, Canvas
from tests.benchmarks.cluster.plots.look import (
    DIM,
    INK,
    PANEL,
    TRACK,
    colour_of,
    fitted,
    readable,
    stepped,
    width_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.generate.dashboards.board import Panel
    from tests.benchmarks.cluster.plots.answers import Series

_LARGEST, _NAME, _BAR_NAME = 56.0, 14.0, 13.0
_MOST_BARS, _THICKEST = 9, 30.0
_FLAT = 1.4  # wider than high: the values are side by side


def big(canvas: Canvas, box: Box, panel: Panel, series: Sequence[Series], _: object) -> None:
    """Draw Grafana's stat: the values side by side, or one above the other where there is no room."""
    beside = box.width > _FLAT * box.height
    for number, one in enumerate(series):
        if beside:
            part = Box(box.x + number * box.width / len(series), box.y, box.width / len(series), box.height)
        else:
            part = Box(box.x, box.y + number * box.height / len(series), box.width, box.height / len(series))
        _one(canvas, part, panel, one, named=len(series) > 1)


def _one(canvas: Canvas, box: Box, panel: Panel, one: Series, *, named: bool) -> None:
    told = readable(one.newest, one.unit)
    room = box.height - (_NAME + 12 if named else 8)
    size = min(_LARGEST, 0.8 * room, _LARGEST * 0.9 * box.width / width_of(told, _LARGEST, "bold"))
    middle = box.x + box.width / 2
    colour = colour_of(one.colour) if one.colour else stepped(panel, one.newest)
    at = box.y + box.height / 2 + (_NAME / 2 + 2 if named else -2)
    canvas.text(middle, at, told, size, colour, ha="center", weight="bold")
    if named:
        name = fitted(one.name, _NAME, box.width - 8)
        canvas.text(middle, at - size / 2 - _NAME / 2 - 4, name, _NAME, INK, ha="center")


def bars(canvas: Canvas, box: Box, panel: Panel, series: Sequence[Series], _: object) -> None:
    """Draw Grafana's bar gauge: name, bar, value."""
    shown = sorted(series, key=lambda one: -one.newest)[:_MOST_BARS]
    left_out = len(series) - len(shown)
    bottom = 16.0 if left_out else 0.0
    told = [readable(round(one.newest), one.unit) for one in shown]
    values = 14 + max(width_of(text, 15) for text in told)
    names = 10 + max(width_of(one.name, _BAR_NAME) for one in shown)
    above = names > 0.6 * box.width  # there is no room for it beside
    head = 20.0 if above else 0.0
    names = 0.0 if above else names
    each = min(head + _THICKEST + 8, (box.height - bottom) / len(shown))
    track = Box(box.x + names, 0, box.width - names - values, each - 8 - head)
    most = max([1e-9, *(one.newest for one in shown)])
    for number, (one, text) in enumerate(zip(shown, told, strict=True)):
        y = box.y + number * each + 4 + head
        colour = colour_of(one.colour) if one.colour else stepped(panel, one.newest)
        name_at, room = (y - head / 2, box.width) if above else (y + track.height / 2, names)
        canvas.text(box.x, name_at, fitted(one.name, _BAR_NAME, room), _BAR_NAME, INK)
        canvas.box(Box(track.x, y, track.width, track.height), TRACK, border=PANEL)
        length = track.width * max(0.0, one.newest) / most
        canvas.box(Box(track.x, y, length, track.height), colour, border=PANEL)
        canvas.text(box.x + box.width, y + track.height / 2, text, 15, colour, ha="right", weight="bold")
    if left_out:
        canvas.text(box.x, box.y + box.height - 8, f"and {left_out} more", 12, DIM)
