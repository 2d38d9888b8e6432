"""The tables on the screens of a cluster, for 80 columns and for more.

Names of hosts, classes and jobs, and causes, are foreign text: no control character of theirs reaches the
terminal, no markup Rich. Which tables make a screen is ``cli_cluster_views`` and ``cli_top``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from rayguard.cli_diagnose_views import printable
from rayguard.cli_memory_views import size
from rayguard.cluster.view import HOT, Answers, NodeState
from rayguard.recovery.incident import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rayguard.cluster.view import (
        ClusterView,
        EngineView,
        Full,
        GroupView,
        JobView,
        NodeView,
        ProcessView,
        StoryView,
    )
    from rayguard.recovery.incident import Incident

_WIDE = 110
_BAR, _WIDE_BAR = 6, 12
_SOFT = 0.75
_STALLED = 0.05  # of the time, as `rayguard memory` says it
_LOW_BUDGET = 0.25
_TODAY_S = 12 * 3_600
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
    nodes: Iterable[NodeView], width: int, forecasts: Mapping[str, float] | None = None, *, bare: bool = False
) -> Table:
    """Return a row for each node; who needs somebody says why."""
    wide = width >= _WIDE
    table = _table(width, bare=bare)
    table.add_column("node", ratio=3, no_wrap=bare, overflow="ellipsis" if bare else "fold")
    table.add_column("state", no_wrap=True)
    table.add_column("agent", no_wrap=True)
    table.add_column("memory", no_wrap=True)
    table.add_column("store", no_wrap=True)
    if wide:
        table.add_column("shm", no_wrap=True)
        table.add_column("GPU", no_wrap=True)
    table.add_column("procs", justify="right", no_wrap=True)
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


def node_lines(node: NodeView, forecasts: Mapping[str, float]) -> int:
    """Return how many lines a node takes in a bare table."""
    return 1 + bool(node.why or node.stopped or node.id in forecasts or _stalled(node))


def processes_table(view: ClusterView, width: int) -> Table:
    """Return a row for each process."""
    hosts = {node.id: node.host for node in view.nodes}
    table = _table(width)
    table.add_column("process", ratio=2, no_wrap=True, overflow="ellipsis")
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("node", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("job", no_wrap=True)
    for title in ("restarts", "memory", "engines"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in view.processes:
        table.add_row(
            *_process_cells(one, hosts), style="red" if one.stopped else "" if one.guarded else "dim"
        )
    return table


def groups_table(groups: Iterable[GroupView], width: int, *, bare: bool = False) -> Table:
    """Return a row for each class in each job."""
    columns: dict[str, Callable[[GroupView], str]] = {
        "procs": lambda one: str(one.processes),
        "guarded": lambda one: "all" if one.guarded == one.processes else str(one.guarded),
        "nodes": lambda one: str(one.nodes),
        "restarts": lambda one: str(one.restarts),
        "largest": lambda one: size(one.largest_bytes),
        "engines": lambda one: f"{one.serving}/{one.engines}" if one.engines else "",
        "frozen": lambda one: str(one.stopped) if one.stopped else "",
    }
    table = _table(width, bare=bare)
    table.add_column("class", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("job", no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for one in groups:
        style = "red" if one.stopped else "yellow" if one.serving < one.engines else ""
        cells = (Text(read(one)) for read in columns.values())
        table.add_row(Text(printable(one.name), style="bold"), Text(job(one.job_id)), *cells, style=style)
    return table


def engines_table(engines: Iterable[EngineView], width: int, *, bare: bool = False) -> Table:
    """Return a row for each engine."""
    table = _table(width, bare=bare)
    table.add_column("engine", ratio=2, no_wrap=True, overflow="ellipsis")
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for title in ("epoch", "rung", "weights", "running", "tokens"):
        table.add_column(title, justify="right", no_wrap=True)
    if width >= _WIDE:
        table.add_column("safe settings", ratio=2, no_wrap=True, overflow="ellipsis")
    for one in engines:
        name = Text(printable(one.name), style="bold")
        name.append(f" in {printable(one.actor_class)}", style="not bold")
        state = ("serving", "green") if one.serving else ("not serving", "red")
        numbers = (one.epoch, one.rung, one.weight_version or "-", one.requests_running, one.tokens_generated)
        cells = [
            name,
            Text(str(one.pid)),
            Text(*state),
            *(Text(printable(str(number))) for number in numbers),
        ]
        if width >= _WIDE:
            cells.append(Text(printable(", ".join(one.settings)) or "none needed"))
        table.add_row(*cells)
    return table


def jobs_table(jobs: Iterable[JobView], width: int, *, bare: bool = False) -> Table:
    """Return a row for each one."""
    table = _table(width, bare=bare)
    table.add_column("job", no_wrap=True)
    table.add_column("what it runs", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("plugin", no_wrap=True)
    table.add_column("supervisor", no_wrap=True)
    table.add_column("restarts left", no_wrap=True)
    table.add_column("open", justify="right", no_wrap=True)
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
    stories: Iterable[StoryView], width: int, *, fold: bool = False, ids: bool = False, bare: bool = False
) -> Table:
    """Return a row for each story, cut at the end of the line unless ``fold``."""
    table = _table(width, bare=bare)
    if ids:
        table.add_column("id", no_wrap=True)
    table.add_column("since", no_wrap=True)
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
    table.add_column("at", no_wrap=True)
    table.add_column("incident", no_wrap=True)
    table.add_column("what happened", ratio=1, no_wrap=True, overflow="ellipsis")
    for one in incidents:
        style = {Outcome.FAILED: "red", Outcome.OPEN: "yellow"}.get(one.outcome, "")
        told = Text(printable(one.sentence()))
        table.add_row(Text(when(one.detected_at), style=style), Text(printable(one.id[:12])), told)
    return table


def gauge(full: Full | None, *, wide: bool) -> Text:
    """Return a bar and how full it is; nothing where nobody knows."""
    if full is None:
        return Text("")
    cells = _WIDE_BAR if wide else _BAR
    filled = min(cells, max(0, round(full.share * cells)))
    style = "red" if full.share >= HOT else "yellow" if full.share >= _SOFT else "green"
    found = Text("█" * filled, style=style)
    found.append("░" * (cells - filled), style="dim")
    found.append(f" {full.share:4.0%}", style="")
    if wide:
        found.append(f" of {size(full.limit)}", style="")
    return found


def when(at: float) -> str:
    """Return a moment shortly: the time of today, the day of one long ago."""
    form = "%H:%M:%S" if time.time() - at < _TODAY_S else "%m-%d %H:%M"
    return time.strftime(form, time.localtime(at)) if at > 0 else "?"


def many(count: int, one: str, more: str) -> str:
    """Return a count with its noun."""
    return f"{count} {one if count == 1 else more}"


def job(job_id: str) -> str:
    """Return the id of a job, shortly."""
    return printable(job_id[:8])


def _memory(node: NodeView, full_in_s: float | None, *, wide: bool) -> Text:
    found = gauge(node.memory, wide=wide)
    if full_in_s is not None:
        found.append(f"\nfull in {_span(full_in_s)}", style="bold red")
    elif _stalled(node):
        found.append(f"\nstalled {node.stalled_ratio:.0%}", style="yellow")
    return found


def _stalled(node: NodeView) -> bool:
    return (node.stalled_ratio or 0.0) > _STALLED


def _process_cells(one: ProcessView, hosts: Mapping[str, str]) -> Iterator[Text]:
    name = Text(printable(one.name), style="bold" if one.guarded else "")
    name.append(" frozen" if one.stopped else "" if one.guarded else " not guarded", style="not bold")
    yield name
    yield Text(str(one.pid))
    yield Text(printable(hosts.get(one.node, one.node[:8])))
    yield Text(job(one.job_id))
    yield Text("" if one.restarts is None else str(one.restarts))
    yield Text("" if one.memory_bytes is None else size(one.memory_bytes))
    serving = sum(engine.serving for engine in one.engines)
    yield Text(f"{serving}/{len(one.engines)}" if one.engines else "")


def _budget(left: float | None) -> Text:
    return Text("-") if left is None else Text(f"{left:.0%}", style="red" if left < _LOW_BUDGET else "")


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - two minutes


def _table(width: int, *, bare: bool = False) -> Table:
    """Return an empty table; a bare one has one line of titles and no other."""
    if bare:
        return Table(box=None, width=width, padding=(0, 1, 0, 0), pad_edge=False, header_style="reverse")
    return Table(box=box.SIMPLE_HEAD, width=width, padding=(0, 1, 0, 0), pad_edge=False)
