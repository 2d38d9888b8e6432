"""``rayguard top``: pictures of the cluster in place, one after the other, as large as the terminal is.

What is asked is the caller's, what a picture shows is ``top_frame``. One thread asks; this one draws
and listens to the keyboard: of a cluster that does not answer the last picture stays there, with its age.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
import time
import tty
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live

from rayguard.cli.cluster_views import MAX_WIDTH, show
from rayguard.cli.terminal import printable
from rayguard.cli.top_frame import picture
from rayguard.memory.forecast import Horizon, Trend
from rayguard.memory.reading import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rayguard.cluster.view.cluster_view import ClusterView

_KEYS_S = 0.1  # how long a key, a new picture or a new size of the window may go unnoticed
_OLD_S = 10.0  # from then on the picture is called old
_END_S = 2.0
_KILLS_AT = 0.95  # of a node's memory: where Ray's monitor kills, unless told otherwise
_AHEAD = Horizon(seconds=900, steps=0)
_MIN_WIDTH, _MIN_HEIGHT = 40, 8


@dataclass(slots=True)
class Forecasts:
    """When the memory of each node is full, judged by what was seen of it since the first look."""

    _trends: dict[str, Trend] = field(default_factory=dict)

    def add(self, view: ClusterView) -> dict[str, float]:
        """Take one look; return in how many seconds it is full, by node, where that is proven."""
        found = {}
        before, self._trends = self._trends, {}
        for node in view.nodes:
            if node.memory is None:
                continue
            trend = self._trends[node.id] = before.get(node.id) or Trend(Quantity.NODE)
            trend.add(view.at, -1, node.memory.used)
            forecast = trend.forecast(node.memory.limit * _KILLS_AT, _AHEAD)
            if forecast is not None:
                found[node.id] = forecast.in_s
        return found


class Asker:
    """Asks again and again in a thread of its own. ``count`` grows with each answer, ``error`` included."""

    def __init__(self, first: ClusterView, ask: Callable[[], ClusterView], every_s: float) -> None:
        self._ask, self._every_s = ask, every_s
        self._forecasts = Forecasts()
        self._answered_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rayguard-top", daemon=True)
        self.latest = (first, self._forecasts.add(first))
        self.count = 0
        self.error = ""
        self._thread.start()

    @property
    def age_s(self) -> int:
        """Whole seconds since the last answer; 0 while it is fresh."""
        age = time.monotonic() - self._answered_at
        return int(age) if age > _OLD_S or self.error else 0

    def close(self) -> None:
        """End after the present question, or without its answer."""
        self._stop.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._every_s)
            if self._stop.is_set():
                return
            try:
                view = self._ask()
                self.latest, self.error = (view, self._forecasts.add(view)), ""
                self._answered_at = time.monotonic()
            except Exception as error:  # noqa: BLE001 - a round of a watcher; the screen says so and goes on
                self.error = f"{type(error).__name__}: {error}"
            self.count += 1


def top(first: ClusterView, ask: Callable[[], ClusterView], every_s: float) -> None:
    """Show the cluster until q or Ctrl-C, and leave the last picture; once where there is no terminal."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        show(first)
        return
    asker = Asker(first, ask, every_s)
    try:
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as screen:
            _draw_until(pressed, asker, console, screen, every_s)
    except KeyboardInterrupt:  # Ctrl-C is how it ends, too
        pass
    finally:
        asker.close()
    console.print(_picture(asker, console, ""))


def _draw_until(
    pressed: Callable[[], str], asker: Asker, console: Console, screen: Live, every_s: float
) -> None:
    drawn: object = None
    while True:
        state = (asker.count, console.size, asker.age_s)
        if state != drawn:
            screen.update(_picture(asker, console, f"q ends, a look every {every_s:g} s"), refresh=True)
            drawn = state
        if pressed() in ("q", "Q", "\x03"):
            return


def _picture(asker: Asker, console: Console, foot: str) -> Group:
    view, forecasts = asker.latest
    width, height = max(_MIN_WIDTH, min(console.width, MAX_WIDTH)), max(_MIN_HEIGHT, console.height)
    foot = f"No answer for {asker.age_s} s. {printable(asker.error)}  {foot}" if asker.age_s else foot
    return picture(view, width, height, forecasts, foot)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Have keys at once and unseen; the terminal is as before afterwards, whatever happens."""
    try:
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
    except (OSError, ValueError, termios.error):  # no keyboard: Ctrl-C ends it
        pause = threading.Event()

        def none() -> str:
            pause.wait(_KEYS_S)
            return ""

        yield none
        return

    def pressed() -> str:
        ready, _, _ = select.select([keyboard], [], [], _KEYS_S)
        if not ready:
            return ""
        typed = os.read(keyboard, 16)
        return typed.decode("utf-8", "replace") if typed else "q"  # the terminal is gone

    try:
        tty.setcbreak(keyboard, termios.TCSANOW)  # what was typed already counts
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
