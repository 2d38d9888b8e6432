"""The dashboards drawn from a live Prometheus, for eyes that have no Grafana: one picture for each board."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from deploy.generate.dashboards.board import Board, Panel, Unit
from deploy.generate.dashboards.boards import boards
from deploy.generate.queries import filled

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.cluster.prometheus import Prometheus

_SINCE_S, _STEP_S = 300.0, 2.0
_COLUMNS = 4
_LEGENDS = 6
_MAX_LEGEND = 34
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def draw(server: Prometheus, folder: Path) -> None:
    """Write ``dashboard-<uid>.png`` of each board into ``folder``."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    for board in boards():
        figure = _board(server, board, plt)
        figure.savefig(folder / f"dashboard-{board.uid.removeprefix('rayguard-')}.png", dpi=80)
        plt.close(figure)


def _board(server: Prometheus, board: Board, plt: Any) -> Any:
    panels = board.panels
    rows = -(-len(panels) // _COLUMNS)
    figure, axes = plt.subplots(
        rows, _COLUMNS, figsize=(5 * _COLUMNS, 2.6 * rows), constrained_layout=True, squeeze=False
    )
    figure.suptitle(board.title, fontsize=14)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    for place, panel in zip(axes.flat, panels, strict=False):
        place.set_title(panel.title, fontsize=9)
        (_number if panel.instant else _lines)(server, panel, place)
    return figure


def _number(server: Prometheus, panel: Panel, place: Any) -> None:
    place.set_axis_off()
    told = []
    for query in panel.queries:
        for one in server.ask(filled(query.expr, range_="5m", interval="15s"))[:_LEGENDS]:
            name = _legend(query.legend, one["metric"])
            told.append(f"{name}: {_readable(float(one['value'][1]), query.unit or panel.unit)}")
    place.text(0.5, 0.5, "\n".join(told) or "no data", ha="center", va="center", fontsize=9)


def _lines(server: Prometheus, panel: Panel, place: Any) -> None:
    now, drawn = time.time(), 0
    for query in panel.queries:
        asked = filled(query.expr, range_="5m", interval="15s")
        for one in server.course(asked, since_s=_SINCE_S, step_s=_STEP_S):
            times = [float(at) - now for at, _ in one["values"]]
            values = [float(value) for _, value in one["values"]]
            label = _legend(query.legend, one["metric"]) if drawn < _LEGENDS else None
            place.plot(times, values, linewidth=1.2, label=label)
            drawn += 1
    if not drawn:
        place.text(0.5, 0.5, "no data", ha="center", va="center", transform=place.transAxes)
        return
    place.set_ylim(bottom=0)
    place.yaxis.set_major_formatter(lambda number, _: _readable(number, panel.unit))
    place.tick_params(labelsize=7)
    place.legend(fontsize=6, frameon=False, loc="upper left")


def _legend(template: str, labels: dict[str, str]) -> str:
    said = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), template)
    return said[:_MAX_LEGEND] or "value"


def _readable(number: float, unit: Unit) -> str:
    if unit is Unit.SHARE:
        return f"{number:.1%}"
    scale, letter = next(((s, c) for s, c in _SCALES if abs(number) >= s), (1.0, ""))
    suffix = {Unit.BYTES: "B", Unit.BYTES_RATE: "B/s", Unit.RATE: "/s", Unit.SECONDS: " s"}.get(unit, "")
    return f"{number / scale:.3g}{letter}{suffix}"
