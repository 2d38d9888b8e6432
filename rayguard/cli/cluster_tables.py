"""The tables on the screens of a cluster, for 80 columns and for more.

Which tables make a screen is ``cluster_views`` and ``top_frame``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from rayguard.cli.memory_views import size
from rayguard.cli.terminal import bar, many, moment, printable
from rayguard.cluster.view.cluster_view import HOT, Answers, NodeState
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rayguard.cluster.supervisor.stories import Story
    from rayguard.cluster.view import cluster_view as views

_WIDE = 110
_BAR, _WIDE_BAR = 6, 12
_STALLED = 0.05  # of the time, as `rayguard memory` says it
_LOW_BUDGET = 0.25
_TODAY_S = 12 * 3_600
_CARE = {"guarded": "", "watched": " watched", "neither": " not guarded"}
STYLES = {
    NodeState.ALIVE: "green",
    NodeState.DRAINING: "yellow",
    NodeState.QUARANTINED: "red",
    NodeState.DEAD: "dim",
    Answers.UP: "green",
    Answers.SILENT: "red",
    Answers.MISSING: "yellow",
}


def nodes_table(
    nodes: Iterable[views.NodeView],
    width: int,
    forecasts: Mapping[str, float] | None = None,
    *,
    bare: bool = False,
) -> Table:
    """Return a row for each node; who needs somebody says why."""
    wide = width >= _WIDE
    table = _table(width, bare=bare)
    table.add_column("node", ratio=3, no_wrap=bare, overflow="ellipsis" if bare else "fold")
    _words(table, "state", "agent", "memory", "store", *(("shm", "GPU") if wide else ()))
    _numbers(table, "procs")
    for node in nodes:
        name = Text(f"{printable(node.host)}{' (head)' if node.head else ''}")
        name.append(f" {node.id[:8]}" if wide else "", style="dim")
        if node.why:
            name.append(f"\n  {printable(node.why)}", style="dim")
        frozen = Text(str(node.processes) if node.agent is Answers.UP else "")
        frozen.append(f"\n{node.stopped} frozen" if node.stopped else "", style="red")
        cells: list[Text] = [
            name,
            Text(node.state.value, style=STYLES[node.state]),
            Text(node.agent.value, style=STYLES.get(node.agent, "")),
            _memory(node, (forecasts or {}).get(node.id), wide=wide),
            gauge(node.store, wide=wide),
            *([gauge(node.shm, wide=False), gauge(node.device, wide=False)] if wide else []),
            frozen,
        ]
        table.add_row(*cells, style="dim" if node.state is NodeState.DEAD else "")
    return table


def node_lines(node: views.NodeView, forecasts: Mapping[str, float]) -> int:
    """Return how many lines a node takes in a bare table."""
    return 1 + bool(node.why or node.stopped or node.id in forecasts or _stalled(node))


def processes_table(view: views.ClusterView, width: int) -> Table:
    """Return a row for each process."""
    hosts = {node.id: node.host for node in view.nodes}
    table = _table(width)
    _cut(table, "process", 2)
    _numbers(table, "pid")
    _cut(table, "node")
    _words(table, "job")
    _numbers(table, "restarts", "memory", "engines")
    for one in view.processes:
        name = Text(printable(one.name), style="bold" if one.guarded else "")
        name.append(" frozen" if one.stopped else _CARE[one.care], style="not bold")
        serving = sum(engine.serving for engine in one.engines)
        cells = (
            str(one.pid),
            printable(hosts.get(one.node, one.node[:8])),
            job(one.job_id),
            "" if one.restarts is None else str(one.restarts),
            "" if one.memory_bytes is None else size(one.memory_bytes),
            f"{serving}/{len(one.engines)}" if one.engines else "",
        )
        style = "red" if one.stopped else "" if one.guarded or one.watched else "dim"
        table.add_row(name, *map(Text, cells), style=style)
    return table


def groups_table(groups: Iterable[views.GroupView], width: int, *, bare: bool = False) -> Table:
    """Return a row for each class in each job."""
    columns: dict[str, Callable[[views.GroupView], str]] = {
        "procs": lambda one: str(one.processes),
        "guarded": lambda one: "all" if one.guarded == one.processes else str(one.guarded),
        "nodes": lambda one: str(one.nodes),
        "restarts": lambda one: str(one.restarts),
        "largest": lambda one: size(one.largest_bytes),
        "engines": lambda one: f"{one.serving}/{one.engines}" if one.engines else "",
        "frozen": lambda one: str(one.stopped) if one.stopped else "",
    }
    groups = list(groups)
    if any(one.watched for one in groups):  # not where all jobs are the decorator's
        columns["watched"] = lambda one: "all" if one.watched == one.processes else str(one.watched)
    table = _table(width, bare=bare)
    _cut(table, "class")
    _words(table, "job")
    _numbers(table, *columns)
    for one in groups:
        style = "red" if one.stopped else "yellow" if one.serving < one.engines else ""
        cells = (Text(read(one)) for read in columns.values())
        table.add_row(Text(printable(one.name), style="bold"), Text(job(one.job_id)), *cells, style=style)
    return table


def engines_table(engines: Iterable[views.EngineView], width: int, *, bare: bool = False) -> Table:
    """Return a row for each engine."""
    table = _table(width, bare=bare)
    _cut(table, "engine", 2)
    _numbers(table, "pid")
    _words(table, "state")
    _numbers(table, "epoch", "rung", "weights", "running", "tokens")
    if width >= _WIDE:
        _cut(table, "safe settings", 2)
    for one in engines:
        name = Text(printable(one.name), style="bold")
        name.append(f" in {printable(one.actor_class)}", style="not bold")
        style = (
            "red" if not one.serving else "green" if one.standing in {"serving", "in a call"} else "yellow"
        )
        numbers = (one.epoch, one.rung, one.weight_version or "-", one.requests_running, one.tokens_generated)
        cells = [
            name,
            Text(str(one.pid)),
            Text(printable(one.state), style=style),
            *(Text(printable(str(number))) for number in numbers),
        ]
        if width >= _WIDE:
            cells.append(Text(printable(", ".join(one.settings)) or "none needed"))
        table.add_row(*cells)
    return table


def jobs_table(jobs: Iterable[views.JobView], width: int, *, bare: bool = False) -> Table:
    """Return a row for each one."""
    table = _table(width, bare=bare)
    _words(table, "job")
    _cut(table, "what it runs")
    _words(table, "plugin", "supervisor", "restarts left")
    _numbers(table, "open")
    for one in jobs:
        what = Text(printable(one.entrypoint) if one.running else f"ended: {printable(one.entrypoint)}")
        if one.crash_loops:
            who = printable(", ".join(actor[:8] for actor in one.crash_loops))
            what.append(f"\n  restart for ever: {who}", style="red")
        plugin = (
            Text("on", style="green") if one.plugin else Text("off", style="yellow" if one.running else "dim")
        )
        there = Text(one.supervisor.value, style=STYLES.get(one.supervisor, ""))
        open_stories = Text(str(one.open_stories), style="red" if one.open_stories else "")
        table.add_row(Text(job(one.id)), what, plugin, there, _budget(one.budget_left), open_stories)
    return table


def stories_table(
    stories: Iterable[Story], width: int, *, fold: bool = False, ids: bool = False, bare: bool = False
) -> Table:
    """Return a row for each story, cut at the end of the line unless ``fold``."""
    table = _table(width, bare=bare)
    _words(table, *(("id", "since") if ids else ("since",)))
    table.add_column("story", ratio=1, no_wrap=not fold, overflow="fold" if fold else "ellipsis")
    for story in stories:
        style = "red" if story.open else ""
        told = Text(printable(story.sentence))
        if ids:
            count = many(len(story.incidents), "incident", "incidents")
            told = Text(f"{printable(story.kind)} ({printable(story.scope)}), {count}\n", style="bold")
            told.append(printable(story.sentence), style="not bold")
        cells = [Text(printable(story.id[:12]))] if ids else []
        table.add_row(*cells, Text(when(story.began_at), style=style), told)
    return table


def incidents_table(incidents: Iterable[Incident], width: int, *, bare: bool = False) -> Table:
    """Return a line for each incident, cut at its end."""
    table = _table(width, bare=bare)
    _words(table, "at", "incident")
    _cut(table, "what happened")
    for one in incidents:
        style = {Outcome.FAILED: "red", Outcome.OPEN: "yellow"}.get(one.outcome, "")
        told = Text(printable(one.sentence()))
        table.add_row(Text(when(one.detected_at), style=style), Text(printable(one.id[:12])), told)
    return table


def gauge(full: views.Full | None, *, wide: bool) -> Text:
    """Return a bar and how full it is; nothing where nobody knows."""
    if full is None:
        return Text("")
    of = f" of {size(full.limit)}" if wide else ""
    return bar(full.share, _WIDE_BAR if wide else _BAR, HOT).append(f" {full.share:4.0%}{of}", style="")


def when(at: float) -> str:
    """Return a moment shortly: the time of today, the day of one long ago."""
    return moment(at, "%H:%M:%S" if time.time() - at < _TODAY_S else "%m-%d %H:%M")


def job(job_id: str) -> str:
    """Return the id of a job, shortly."""
    return printable(job_id[:8])


def _memory(node: views.NodeView, full_in_s: float | None, *, wide: bool) -> Text:
    found = gauge(node.memory, wide=wide)
    if full_in_s is not None:
        found.append(f"\nfull in {_span(full_in_s)}", style="bold red")
    elif _stalled(node):
        found.append(f"\nstalled {node.stalled_ratio:.0%}", style="yellow")
    return found


def _stalled(node: views.NodeView) -> bool:
    return (node.stalled_ratio or 0.0) > _STALLED


def _budget(left: float | None) -> Text:
    return Text("-") if left is None else Text(f"{left:.0%}", style="red" if left < _LOW_BUDGET else "")


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - two minutes


def _table(width: int, *, bare: bool = False) -> Table:
    """Return an empty table; a bare one has one line of titles and no other."""
    if bare:
        return Table(box=None, width=width, padding=(0, 1, 0, 0), pad_edge=False, header_style="reverse")
    return Table(box=box.SIMPLE_HEAD, width=width, padding=(0, 1, 0, 0), pad_edge=False)


def _words(table: Table, *titles: str) -> None:
    for title in titles:
        table.add_column(title, no_wrap=True)


def _numbers(table: Table, *titles: str) -> None:
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)


def _cut(table: Table, title: str, ratio: int = 1) -> None:
    """Add a column whose cells are cut off where there is no room."""
    table.add_column(title, ratio=ratio, no_wrap=True, overflow="ellipsis")
