"""Grafana's dark theme: its colours, and how it writes numbers with their units."""

from __future__ import annotations

import math
from functools import lru_cache

from deploy.generate.dashboards.board import Colour, Panel, Unit

CANVAS, PANEL, BORDER, GRID = "#111217", "#181b1f", "#2c3036", "#2a2e34"
INK, DIM, TRACK = "#e0e0ec", "#a3a5b5", "#22262b"
_COLOURS = {
    Colour.GREEN: "#73bf69",
    Colour.YELLOW: "#f2cc0c",
    Colour.ORANGE: "#ff9830",
    Colour.RED: "#f2495c",
    Colour.BLUE: "#5794f2",
    Colour.GREY: "#8e8e8e",
}
CLASSIC = (
    *("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#37872d"),
    *("#e0b400", "#3274d9", "#fa6400", "#c4162a", "#8f3bb8", "#96d98d", "#ffee52", "#ffcb7d"),
)
_PIXELS_AN_INCH = 100.0
_THOUSANDS = (" ", " K", " Mil", " Bil")
_BYTES = (" B", " KiB", " MiB", " GiB", " TiB")
_BEHIND = {Unit.RATE: "c/s", Unit.REQUESTS: "req/s"}


def points(pixels: float) -> float:
    """Return a size of letters or lines as matplotlib wants it."""
    return pixels * 72 / _PIXELS_AN_INCH


def inches(pixels: float) -> float:
    """Return a size of the picture as matplotlib wants it."""
    return pixels / _PIXELS_AN_INCH


@lru_cache(maxsize=4096)
def width_of(text: str, size: float, weight: str = "normal") -> float:
    """Return how many pixels wide a text is in letters of ``size`` pixels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    path = TextPath((0, 0), text.replace("$", "S"), size=size, prop=FontProperties(weight=weight))
    return float(path.get_extents().x1)


def fitted(text: str, size: float, room: float, weight: str = "normal") -> str:
    """Return a text that is cut where there is no room for it."""
    if width_of(text, size, weight) <= room:
        return text
    while text and width_of(text + "…", size, weight) > room:
        text = text[:-1]
    return text + "…"


def colour_of(colour: Colour) -> str:
    """Return one of the board's colours."""
    return _COLOURS[colour]


def stepped(panel: Panel, value: float) -> str:
    """Return the colour that a panel's steps give a value."""
    reached = [colour for least, colour in panel.steps if value >= least]
    return colour_of(reached[-1] if reached else panel.colour)


def readable(value: float, unit: Unit) -> str:
    """Return a number with its unit, as short as Grafana writes it."""
    if math.isnan(value):
        return "NaN"
    if unit is Unit.SHARE:
        return f"{_short(100 * value)}%"
    if unit is Unit.SECONDS:
        return _seconds(value)
    if unit is Unit.CORES:
        return f"{_short(value)} cores"
    if unit in (Unit.BYTES, Unit.BYTES_RATE):
        return _scaled(value, 1024.0, _BYTES) + ("/s" if unit is Unit.BYTES_RATE else "")
    text = _scaled(value, 1000.0, _THOUSANDS)
    return f"{text} {_BEHIND[unit]}" if unit in _BEHIND else text


def _scaled(value: float, base: float, names: tuple[str, ...]) -> str:
    power = 0 if abs(value) < base else min(len(names) - 1, int(math.log(abs(value), base) + 1e-9))
    return (_short(value / base**power) + names[power]).rstrip()


def _seconds(value: float) -> str:
    for least, divisor, name in ((3600, 3600, "hour"), (60, 60, "min"), (1, 1, "s"), (1e-3, 1e-3, "ms")):
        if abs(value) >= least:
            return f"{_short(value / divisor)} {name}"
    return "0 s" if value == 0 else f"{_short(value * 1e6)} µs"


def _short(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
