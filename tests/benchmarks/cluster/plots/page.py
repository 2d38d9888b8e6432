"""A board as one picture: its head, its rows and its panels where Grafana's grid has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from deploy.generate.dashboards.board import Board, Draw, Panel
from deploy.generate.dashboards.boards import boards
from deploy.generate.dashboards.render import render
from tests.benchmarks.cluster.plots import curves, numbers
from tests.benchmarks.cluster.plots.answers import Answers
from tests.benchmarks.cluster.plots.canvas import Box, Canvas
from tests.benchmarks.cluster.plots.look import CANVAS, DIM, INK, PANEL, fitted

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.cluster.prometheus import Prometheus

WIDTH = 1280.0
_COLUMNS = 24
_CELL, _GAP = 30.0, 8.0  # of Grafana's grid, in pixels
_HEAD, _TITLE, _INSIDE = 48.0, 32.0, 10.0
_DRAWERS = {
    Draw.NUMBER: numbers.big,
    Draw.BARS: numbers.bars,
    Draw.LINES: curves.lines,
    Draw.STACK: curves.lines,
    Draw.TIMELINE: curves.lanes,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something of a board is, in cells of the grid; ``panel`` is None for the heading of a row."""

    title: str
    box: Box
    panel: Panel | None


def draw(
    server: Prometheus, folder: Path, *, until: float | None = None, since: float | None = None
) -> list[Path]:
    """Write ``dashboard-<name>.png`` of each board into ``folder``, as they were at ``until`` (now)."""
    folder.mkdir(parents=True, exist_ok=True)
    answers = Answers(server.url, until, since)
    written = []
    for board in boards():
        path = folder / f"dashboard-{board.uid.removeprefix('rayguard-')}.png"
        page(board, answers).save(path)
        written.append(path)
    return written


def places(board: Board) -> list[Place]:
    """Return where the panels and headings of a board are, as Grafana is told."""
    panels = iter(board.panels)
    found = []
    for made in json.loads(render(board))["panels"]:
        at = made["gridPos"]
        panel = None if made["type"] == "row" else next(panels)
        found.append(Place(made["title"], Box(at["x"], at["y"], at["w"], at["h"]), panel))
    return found


def page(board: Board, answers: Answers) -> Canvas:
    """Draw a board."""
    all_places = places(board)
    rows = max(place.box.y + place.box.height for place in all_places)
    canvas = Canvas(WIDTH, _HEAD + rows * (_CELL + _GAP) + _GAP, CANVAS)
    _head(canvas, board, answers)
    for place in all_places:
        box = _pixels(place.box)
        if place.panel is None:
            canvas.text(box.x + 4, box.y + box.height / 2, f"▾  {place.title}", 16, INK, weight="bold")
        else:
            _panel(canvas, box, place.panel, answers)
    return canvas


def _head(canvas: Canvas, board: Board, answers: Answers) -> None:
    start, end = (datetime.fromtimestamp(at).astimezone() for at in (answers.start, answers.end))
    told = f"{start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} {end:%Z}"
    canvas.text(_GAP + 4, _HEAD / 2, board.title, 19, INK, weight="bold")
    canvas.text(WIDTH - _GAP - 4, _HEAD / 2, told, 14, DIM, ha="right")


def _panel(canvas: Canvas, box: Box, panel: Panel, answers: Answers) -> None:
    canvas.box(box, PANEL)
    title = fitted(panel.title, 14.5, box.width - 1.5 * _INSIDE, "bold")
    canvas.text(box.x + _INSIDE, box.y + _TITLE / 2 + 1, title, 14.5, INK, weight="bold")
    inside = Box(box.x + _INSIDE, box.y + _TITLE, box.width - 2 * _INSIDE, box.height - _TITLE - _INSIDE / 2)
    series: list[Any] = answers.of(panel)
    if not series:
        canvas.text(
            inside.x + inside.width / 2, inside.y + inside.height / 2, "No data", 13, DIM, ha="center"
        )
        return
    _DRAWERS[panel.draw](canvas, inside, panel, series, answers.moments)


def _pixels(cells: Box) -> Box:
    column = (WIDTH - _GAP) / _COLUMNS
    return Box(
        _GAP + cells.x * column,
        _HEAD + cells.y * (_CELL + _GAP),
        cells.width * column - _GAP,
        cells.height * (_CELL + _GAP) - _GAP,
    )
