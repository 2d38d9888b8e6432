"""What Prometheus answers to the queries of a panel, over the time in which there is something to see."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deploy.generate.queries import filled

if TYPE_CHECKING:
    from deploy.generate.dashboards.board import Colour, Panel, Query, Unit

_ASK_S = 60.0
_LOOK_BACK_S, _COARSE_S = 6 * 3600.0, 5.0
_POINTS = 240
_RATE_S = 15  # four scrapes at least, as Grafana has it
SCRAPED = 'up{job="rayguard"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of a panel under its name: a value for each moment of the window, NaN where it has none."""

    name: str
    unit: Unit
    colour: Colour | None
    values: tuple[float, ...]

    @property
    def newest(self) -> float:
        """The last value that it had; NaN for none."""
        return next((value for value in reversed(self.values) if not math.isnan(value)), math.nan)


class Answers:
    """What was so from ``since`` (the first scrape of a node's endpoint) to ``until`` (now)."""

    def __init__(self, url: str, until: float | None = None, since: float | None = None) -> None:
        self._url = url
        self.end = time.time() if until is None else until
        self.start = self._first() if since is None else since
        step = max(1.0, (self.end - self.start) / _POINTS)
        self.moments = tuple(self.start + n * step for n in range(int((self.end - self.start) / step) + 1))
        self._step = step

    def of(self, panel: Panel) -> list[Series]:
        """Return the series of a panel in the order of their queries; those of one value have only the last."""
        return [series for query in panel.queries for series in self._of(panel, query)]

    def _of(self, panel: Panel, query: Query) -> list[Series]:
        asked = filled(query.expr, range_=f"{self.end - self.start:.0f}s", interval=f"{_RATE_S}s")
        found = self._now(asked) if panel.instant else self._course(asked)
        series = [
            Series(
                name=_legend(query.legend, labels),
                unit=query.unit or panel.unit,
                colour=query.colour or dict(panel.names).get(_legend(query.legend, labels)),
                values=values,
            )
            for labels, values in found
        ]
        return sorted(series, key=lambda one: one.name)

    def _first(self) -> float:
        found = self._range(SCRAPED, self.end - _LOOK_BACK_S, self.end, _COARSE_S)
        if not found:
            raise ValueError(f"Prometheus has scraped no node in the {_LOOK_BACK_S:.0f} s before this moment")
        return min(float(one["values"][0][0]) for one in found)

    def _now(self, expr: str) -> list[tuple[dict[str, str], tuple[float, ...]]]:
        found = self._get("/api/v1/query", query=expr, time=self.end)["result"]
        return [(one["metric"], (float(one["value"][1]),)) for one in found]

    def _course(self, expr: str) -> list[tuple[dict[str, str], tuple[float, ...]]]:
        found = self._range(expr, self.start, self.moments[-1], self._step)
        return [(one["metric"], self._placed(one["values"])) for one in found]

    def _placed(self, values: list[tuple[float, str]]) -> tuple[float, ...]:
        placed = [math.nan] * len(self.moments)
        for at, value in values:
            placed[min(len(placed) - 1, round((float(at) - self.start) / self._step))] = float(value)
        return tuple(placed)

    def _range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        return list(self._get("/api/v1/query_range", query=expr, start=start, end=end, step=step)["result"])

    def _get(self, path: str, **parameters: Any) -> dict[str, Any]:
        body = urllib.parse.urlencode(parameters).encode()
        with urllib.request.urlopen(f"{self._url}{path}", data=body, timeout=_ASK_S) as answer:
            return dict(json.load(answer)["data"])


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), template).strip()
