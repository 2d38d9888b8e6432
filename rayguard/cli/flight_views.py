"""How a flight recording looks: curves as sparklines, a table of calls, what was said last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from rayguard.cli.terminal import clean, moment, table
from rayguard.process.death_cause.evidence import last_lines
from rayguard.process.flight.recording import MethodState, Recording, in_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_PIPE_WIDTH = 200  # a pipe has no width to respect
_TIME = "%H:%M:%S"
_EVENTS = 10
_LINES = 5
_LINE_CHARS = 200


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Return ``values`` as bars from their least to their greatest; '' for none."""
    if not values:
        return ""
    count = min(width, len(values))
    cells = [values[at * len(values) // count : (at + 1) * len(values) // count] for at in range(count)]
    peaks = [max(cell) for cell in cells]
    low, high = min(peaks), max(peaks)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((peak - low) * scale)] for peak in peaks)


def show_list(found: list[Recording]) -> None:
    """Print a row for each recording, oldest process first."""
    console = _console()
    grid = table()
    for name in ("pid", "what", "state", "last sign", "memory", "how it went"):
        grid.add_column(name, no_wrap=name != "how it went", overflow="fold")
    for one in found:
        used = in_bytes(one.memory[-1].private) if one.memory else ""
        went = one.sentence() or clean(one.ending)
        row = (str(one.process.pid), clean(one.title), _state(one), moment(one.last_at, _TIME), used, went)
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)


def show_recording(recording: Recording, seconds: float) -> None:
    """Print the last ``seconds`` of one process."""
    console = _console()
    since = recording.last_at - seconds
    title = f"process {recording.process.pid} {clean(recording.title)}".rstrip()
    console.print(
        Text(f"{title}: {_state(recording)}, last sign of life {moment(recording.last_at, _TIME)}", "bold")
    )
    for name, said in _facts(recording):
        console.print(Text(f"  {name:<12}{said}"))
    for line in _curves(recording, since):
        console.print(Text(line))
    _show_methods(console, recording)
    _show_words(console, recording, since)


def _facts(recording: Recording) -> list[tuple[str, str]]:
    facts = []
    if recording.ending:
        facts.append(("its word", clean(recording.ending)))
    if recording.sentence():
        facts.append(("growth", recording.sentence()))
    if recording.step >= 0:
        rate = recording.steps_per_s
        facts.append(("step", f"{recording.step}" + (f", {rate:.2f} a second" if rate else "")))
    if recording.collecting_since:
        spent = recording.last_at - recording.collecting_since
        facts.append(("garbage", f"a collection had been running for {max(0.0, spent):.1f} s"))
    return facts


def _curves(recording: Recording, since: float) -> list[str]:
    memory = [one for one in recording.memory if one.at >= since]
    lines = []
    for name, values in (
        ("memory", [one.private for one in memory]),
        ("device", [one.device for one in memory]),
    ):
        if any(values):
            span = f"{in_bytes(min(values))} to {in_bytes(max(values))}, {in_bytes(values[-1])} at the end"
            lines.append(f"  {name:<12}{sparkline(values)}  {span}")
    shares = [100 * one.node_ratio for one in memory]
    if any(shares):
        lines.append(f"  {'node':<12}{sparkline(shares)}  {shares[-1]:.0f} % in use at the end")
    collected = [one for one in recording.collections if one.at >= since]
    if collected:
        spent, times = sum(one.seconds for one in collected), sum(one.times for one in collected)
        lines.append(f"  {'garbage':<12}{times} full collections took {spent:.1f} s")
    return lines


def _show_methods(console: Console, recording: Recording) -> None:
    called = sorted((one for one in recording.methods if one.begun), key=lambda one: -one.begun_at)
    if not called:
        return
    grid = table(None, "method")
    for name in ("calls", "running", "last began", "last ended"):
        grid.add_column(name, justify="right")
    for one in called:
        grid.add_row(*(Text(cell) for cell in _cells(one)), style="yellow" if one.running else "")
    console.print(grid)


def _cells(one: MethodState) -> tuple[str, ...]:
    ended = moment(one.ended_at, _TIME) if one.ended_at else ""
    return clean(one.name), str(one.begun), str(one.running or ""), moment(one.begun_at, _TIME), ended


def _show_words(console: Console, recording: Recording, since: float) -> None:
    events = [one for one in recording.events if one.at >= since][-_EVENTS:]
    if events:
        console.print(Text("events", "bold"))
    for one in events:
        console.print(Text(f"  {moment(one.at, _TIME)} {clean(one.line)}"))
    lines = last_lines(recording.stderr, _LINES)
    if lines:
        console.print(Text("the last lines of its stderr", "bold"))
    for line in lines:
        console.print(Text(f"  {clean(line)[:_LINE_CHARS]}"))


def _state(recording: Recording) -> str:
    return "alive" if recording.alive else "ended"


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console
