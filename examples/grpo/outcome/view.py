"""What one sees while it runs: a live picture in a terminal, plain lines elsewhere. Reads, never acts."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.grpo.outcome.summary import brief
from rayguard.recovery.incident import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from examples.grpo.history import History, RolloutState, Step
    from rayguard.recovery.incident import Incident
    from rayguard.testing.injector import FiredFault

BARS = "▁▂▃▄▅▆▇█"
EVENTS_SHOWN = 12
COLUMNS = {"engine": 9, "state": 10, "epoch": 5, "rung": 4, "weights": 9, "safe settings": 0}
_STATE_STYLE = {"serving": "green", "recovering": "yellow", "gone": "red"}


class View(Protocol):
    """Shows a history; ``tick`` is called whenever something may have changed."""

    def tick(self) -> None:
        """Show what is new."""


@contextmanager
def showing(history: History, console: Console) -> Iterator[View]:
    """Show ``history`` while the block runs, in the way that ``console`` can."""
    if not console.is_terminal:
        view = PlainView(history, console)
        yield view
        view.tick()
        return
    live = LiveView(history)
    with Live(live, console=console, refresh_per_second=8, transient=False):
        yield live


class PlainView:
    """One line per event, in order: for logs."""

    def __init__(self, history: History, console: Console) -> None:
        self.history = history
        self.console = console
        self.said: set[tuple[float, str]] = set()  # two equal lines at different times are two events

    def tick(self) -> None:
        """Print what was not printed yet."""
        if not self.history.doing.startswith("step "):  # a step says so when it is done
            self._once(0.0, self.history.doing)
        lines = [(at, line.plain) for at, line in _events(self.history)]
        lines += [(step.ended_at, _step_line(step)) for step in self.history.steps]
        for at, line in sorted(lines):
            self._once(at, line)

    def _once(self, at: float, line: str) -> None:
        if (at, line) not in self.said:
            self.said.add((at, line))
            self._say(line)

    def _say(self, line: str) -> None:
        since = time.time() - self.history.started_at
        self.console.print(f"[{since:6.1f} s] {line}", markup=False, highlight=False, soft_wrap=True)


class LiveView:
    """The whole history on one screen, drawn anew several times a second."""

    def __init__(self, history: History) -> None:
        self.history = history

    def tick(self) -> None:
        """Do nothing: rich asks for the picture by itself."""

    def __rich__(self) -> RenderableType:
        """Draw."""
        return Group(self._head(), self._rollouts(), self._events())

    def _head(self) -> RenderableType:
        history = self.history
        done, planned = len(history.steps), history.steps_planned
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=9)
        grid.add_column()
        since = (history.ended_at or time.time()) - history.started_at
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=planned, completed=done, width=40), f"{done}/{planned}", history.doing)
        grid.add_row("step", bar)
        grid.add_row(
            "reward", _spark([step.reward for step in history.steps], low=0.4, high=1.0, form="{:.2f}")
        )
        grid.add_row("tokens/s", _spark([step.throughput for step in history.steps], low=0, form="{:.0f}"))
        guard = "guarded by rayguard" if history.guarded else "[red]bare: no rayguard[/red]"
        return Panel(
            grid, title=f"GRPO on Ray and vLLM, {guard}", subtitle=f"{since:.0f} s", title_align="left"
        )

    def _rollouts(self) -> RenderableType:
        table = Table(expand=True, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name, width in COLUMNS.items():
            table.add_column(name, no_wrap=True, min_width=width, ratio=None if width else 1)
        for number, rollout in enumerate(self.history.rollouts):
            table.add_row(f"rollout {number}", *_cells(rollout))
        return Panel(table, title="engines", title_align="left")

    def _events(self) -> RenderableType:
        events = _events(self.history)[-EVENTS_SHOWN:]
        grid = Table.grid(padding=(0, 2))
        grid.add_column(justify="right", style="dim", no_wrap=True, min_width=7)
        grid.add_column(overflow="ellipsis", no_wrap=True)
        for at, line in events:
            grid.add_row(f"{at - self.history.started_at:.1f} s", line)
        if not events:
            grid.add_row("", Text("nothing yet", "dim"))
        return Panel(grid, title="faults and incidents", title_align="left")


def _cells(rollout: RolloutState) -> tuple[RenderableType, ...]:
    return (
        Text(rollout.state, _STATE_STYLE.get(rollout.state, "dim")),
        str(rollout.epoch),
        str(rollout.rung),
        rollout.weight_version or "-",
        Text(", ".join(rollout.settings) or "-", "" if rollout.settings else "dim"),
    )


def _events(history: History) -> list[tuple[float, Text]]:
    """Return faults, detections and recoveries as one list in the order of time."""
    events = [(fired.at, _fault_line(fired)) for fired in history.fired]
    for incident in history.incidents:
        where = _rollout_of(history, incident)
        events.append((incident.detected_at, _incident_line(incident, where)))
        if incident.closed_at is not None:
            events.append((incident.closed_at, _cure_line(incident, where)))
    return sorted(events, key=lambda event: event[0])


def _fault_line(fired: FiredFault) -> Text:
    planned = fired.planned
    what = planned.what.value.replace("_", " ")
    return Text.assemble(("fault  ", "red"), f"{what} in rollout {planned.target} at step {planned.step}")


def _rollout_of(history: History, incident: Incident) -> str:
    ids = [rollout.actor_id for rollout in history.rollouts]
    return f"rollout {ids.index(incident.actor_id)}" if incident.actor_id in ids else incident.target


def _incident_line(incident: Incident, where: str) -> Text:
    named = f"{where}: {incident.kind} (scope {incident.scope}): {brief(incident.cause)}"
    return Text.assemble(("found  ", "yellow"), named)


def _cure_line(incident: Incident, where: str) -> Text:
    took = "" if incident.recover_s is None else f" in {incident.recover_s:.1f} s"
    known = incident.requests or incident.tokens_lost is None
    kept = f", tokens: {incident.tokens_told}" if known else ""
    came = f"{where}: {incident.remedy.replace('+', ' + ')}: {incident.outcome.value}{took}{kept}"
    style = "green" if incident.outcome is Outcome.RECOVERED else "red"
    return Text.assemble(("closed ", style), came)


def _step_line(step: Step) -> str:
    return (
        f"step {step.number:>3}  reward {step.reward:.3f}  {step.throughput:>6.0f} tokens/s  "
        f"{step.ended_at - step.started_at:>5.2f} s  logprob diff {step.logp_diff:.1e}"
    )


def _spark(values: list[float], *, low: float, form: str, high: float | None = None) -> Text:
    if not values:
        return Text("-", "dim")
    top = high if high is not None else max(values)
    scale = (len(BARS) - 1) / max(top - low, 1e-9)
    bars = "".join(BARS[max(0, min(len(BARS) - 1, round((value - low) * scale)))] for value in values)
    return Text.assemble((bars[-60:], "cyan"), f"  {form.format(values[-1])}")
