"""A picture in pixels from its upper left corner, on matplotlib: boxes, texts and axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.benchmarks.cluster.plots.look import BORDER, inches, points

if TYPE_CHECKING:
    from pathlib import Path

_SHARP = 150  # pixels of the file for an inch: one and a half for each that is drawn


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float


class Canvas:
    """What a board is drawn on."""

    def __init__(self, width: float, height: float, ground: str) -> None:
        from matplotlib.figure import Figure

        self._size = (width, height)
        self.figure = Figure(figsize=(inches(width), inches(height)), facecolor=ground)
        self._sheet = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0), zorder=0)
        self._sheet.set_axis_off()

    def box(self, box: Box, colour: str, *, border: str = BORDER) -> None:
        """Draw a filled rectangle."""
        from matplotlib.patches import Rectangle

        corner, look = (box.x, box.y), {"facecolor": colour, "edgecolor": border, "linewidth": points(1)}
        self._sheet.add_patch(Rectangle(corner, box.width, box.height, **look))

    def text(self, x: float, y: float, text: str, size: float, colour: str, **look: Any) -> None:
        """Write a text with its middle line at ``y``."""
        look = {"ha": "left", "va": "center_baseline", "parse_math": False, **look}
        self._sheet.text(x, y, text, fontsize=points(size), color=colour, **look)

    def stroke(self, start: tuple[float, float], end: tuple[float, float], width: float, colour: str) -> None:
        """Draw a line."""
        ends = [start[0], end[0]], [start[1], end[1]]
        self._sheet.plot(*ends, color=colour, linewidth=points(width), solid_capstyle="butt")

    def axes(self, box: Box) -> Any:
        """Return axes that fill a rectangle."""
        width, height = self._size
        bottom = height - box.y - box.height
        place = (box.x / width, bottom / height, box.width / width, box.height / height)
        return self.figure.add_axes(place, zorder=1, facecolor="none")

    def save(self, path: Path) -> None:
        """Write the picture, with 256 colours: a third of the bytes."""
        import matplotlib as mpl
        from PIL import Image

        with mpl.rc_context({"text.hinting": "no_hinting"}):  # as wide as measured
            self.figure.savefig(path, dpi=_SHARP)
        with Image.open(path) as full:
            small = full.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
