"""What all commands share: where to look, a terminal or a pipe, foreign text made harmless, an error's exit.

What processes, logs and incidents say is foreign text: it reaches no terminal with control characters, and
Rich never as markup. Rich itself waits until something is shown: `rayguard --version` need not load it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rayguard.errors import ConfigError
from rayguard.home import VARIABLE
from rayguard.home import home as home_said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from rayguard.cluster.supervisor.stories import Story
    from rayguard.recovery.incident import Incident


T = TypeVar("T", "Incident", "Story")
HOT, WARM = 0.9, 0.75  # where a bar turns red and yellow
_AS_A_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")  # which Rich knows
_ESCAPE = r"\x1b\[[0-?]*[ -/]*[@-~]"
_CONTROL = re.compile(rf"{_ESCAPE}|[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROL_IN_LINES = re.compile(rf"{_ESCAPE}|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def home_or_exit(home: Path | None) -> Path:
    """Return the folder to look in, or end with exit code 2."""
    said = [name for name in os.environ if name.upper().startswith("RAYGUARD_") and name.upper() != VARIABLE]
    if not said and not str(home or os.environ.get(VARIABLE, "")).startswith("~"):
        return home.absolute() if home else home_said()
    from rayguard.config import Settings  # noqa: PLC0415 - a third of a second, for who has settings to check

    try:
        return Settings(home=home).home if home else Settings().home
    except ConfigError as error:
        fail(error, code=2)


def only_one(found: Sequence[T], wanted: str, what: tuple[str, str], where: str = "") -> T:
    """Return the one that was found by the beginning of its id, or end; ``what``: "incident", "incidents"."""
    if len(found) != 1:
        several = f": {', '.join(one.id for one in found[:5])}" if found else ""
        how_many = f"several {what[1]} begin" if found else f"no {what[0]} begins"
        fail(f"{how_many} with {wanted!r}{where}{several}")
    return found[0]


def fail(why: object, *, code: int = 1) -> NoReturn:
    """Say on the error stream what is wrong, and end."""
    say(f"rayguard: {why}", error=True)
    raise SystemExit(code) from None


def say(text: str, *, error: bool = False) -> None:
    """Print a line, on the error stream if wanted; what cannot be encoded there becomes a question mark."""
    stream = sys.stderr if error else sys.stdout
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=stream)


def show_json(value: object) -> None:
    """Print it for a program."""
    say(json.dumps(value, indent=2))


def show_lines(lines: Iterable[str]) -> None:
    """Print them where the output is no terminal."""
    for line in lines:
        say(line)


def many(count: int, one: str, more: str) -> str:
    """Return a count with its noun."""
    return f"{count} {one if count == 1 else more}"


def terminal(max_width: int) -> Console | None:
    """Return the terminal, of at most this width; None where the output is a pipe or a file."""
    if not (sys.stdout.isatty() or any(os.environ.get(name) for name in _AS_A_TERMINAL)):
        return None
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        return None
    console.width = min(console.width, max_width)
    return console


def show(max_width: int, lines: Iterable[str], picture: Callable[[int], RenderableType]) -> None:
    """Print ``picture`` of the terminal's width; ``lines`` where the output is a pipe or a file."""
    console = terminal(max_width)
    if console is None:
        show_lines(lines)
    else:
        console.print(picture(console.width))


def table(width: int | None = None, *titles: str) -> Table:
    """Return an empty table with these columns, whose cells are folded."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    found = Table(box=box.SIMPLE, width=width, padding=(0, 1, 0, 0), pad_edge=False)
    for title in titles:
        found.add_column(title, overflow="fold")
    return found


def bar(share: float, cells: int, hot: float = HOT) -> Text:
    """Return how full something is (0 to 1), in so many cells."""
    from rich.text import Text  # noqa: PLC0415

    full = min(cells, max(0, round(share * cells)))
    style = "red" if share >= hot else "yellow" if share >= WARM else "green"
    return Text("█" * full, style=style).append("░" * (cells - full), style="dim")


def printable(text: str) -> str:
    """Return ``text`` in one line, without what a terminal would obey and what cannot be written."""
    return _CONTROL.sub(" ", text).encode("utf-8", "replace").decode("utf-8")


def clean(text: str) -> str:
    """Return ``text`` with its lines, without what a terminal would obey."""
    return _CONTROL_IN_LINES.sub("", text)


def one_line(text: str) -> str:
    """Return ``text`` made ``printable``, with single blanks."""
    return " ".join(printable(text).split())


def moment(at: float, form: str = "%Y-%m-%dT%H:%M:%S") -> str:
    """Return a wall-clock time as people here read it."""
    return time.strftime(form, time.localtime(at)) if at > 0 else "unknown time"


@contextlib.contextmanager
def without_native_lines() -> Iterator[None]:
    """Keep off the terminal what Ray's C++ writes of clusters that do not let us in: that is shown as such.

    For a command alone: it changes the descriptor of the process.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
