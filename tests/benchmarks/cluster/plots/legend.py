"""The legend under curves: as many names with their newest values as there is room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.cluster.plots.look import DIM, INK, fitted, readable, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.benchmarks.cluster.plots.answers import Series
    from tests.benchmarks.cluster.plots.canvas import Box, Canvas

_LETTERS = 13.0
_LINE, _MOST_LINES = 19.0, 3
_MARK, _SPACE, _APART = 20.0, 8.0, 16.0
_MORE = 100.0  # for "and 12 more"


@dataclass(frozen=True, slots=True)
class _Entry:
    x: float
    colour: str
    name: str
    value: str


class Legend:
    """Names and newest values in lines of ``width``; what has no room is counted."""

    def __init__(self, series: Sequence[Series], colours: Sequence[str], width: float) -> None:
        self._lines: list[list[_Entry]] = [[]]
        self._width = width
        x = 0.0
        for number, (one, colour) in enumerate(zip(series, colours, strict=True)):
            left = len(series) - number
            entry = self._entry(one, colour, x, left)
            if entry is None and len(self._lines) == _MOST_LINES:
                self._lines[-1].append(_Entry(x, DIM, f"and {left} more", ""))
                break
            if entry is None:
                self._lines.append([])
                entry = self._entry(one, colour, 0.0, left)
                assert entry is not None
            self._lines[-1].append(entry)
            x = _end(entry) + _APART

    @property
    def height(self) -> float:
        """How many pixels it needs."""
        return _LINE * len(self._lines)

    def write(self, canvas: Canvas, box: Box) -> None:
        """Write it at the bottom of ``box``."""
        for row, line in enumerate(self._lines):
            y = box.y + box.height - self.height + _LINE * (row + 0.5)
            for one in line:
                x = box.x + one.x
                canvas.stroke((x, y), (x + _MARK - 6, y), 4, one.colour)
                canvas.text(x + _MARK, y, one.name, _LETTERS, INK)
                canvas.text(x + _MARK + width_of(one.name, _LETTERS) + _SPACE, y, one.value, _LETTERS, DIM)

    def _entry(self, one: Series, colour: str, x: float, left: int) -> _Entry | None:
        """Return an entry at ``x``; None where it does not fit and can go to the next line."""
        value = readable(one.newest, one.unit)
        more = _MORE if len(self._lines) == _MOST_LINES and left > 1 else 0.0
        room = self._width - more - x - _MARK - _SPACE - width_of(value, _LETTERS)
        if x and width_of(one.name, _LETTERS) > room:
            return None
        return _Entry(x, colour, fitted(one.name, _LETTERS, room), value)


def _end(entry: _Entry) -> float:
    return entry.x + _MARK + width_of(entry.name, _LETTERS) + _SPACE + width_of(entry.value, _LETTERS)
