"""How ``rayguard memory`` looks: what is full first, then who holds it; for 80 columns and for more."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from rayguard.cli.terminal import HOT, bar, printable, table, terminal
from rayguard.cli.terminal import show as show_fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rayguard.memory.holders import Holder, Table
    from rayguard.memory.probes.census import Census

MAX_WIDTH = 120
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_BAR = 10
_STALLED = 0.05  # of the time

Look = tuple["Census", "Table"]


def show(census: Census, holders: Table) -> None:
    """Print one look: a table on a terminal, a line for each fact and each row elsewhere."""
    show_fitted(MAX_WIDTH, _lines(census, holders), partial(_page, census, holders))


def live(look: Callable[[], Look], interval_s: float) -> bool:
    """Show looks in place until Ctrl-C, and leave the last one behind; False where there is no terminal."""
    console = terminal(MAX_WIDTH)
    if console is None:
        return False
    pause = threading.Event()
    page = _page(*look(), console.width)
    try:
        with Live(page, console=console, screen=True, auto_refresh=False) as screen:
            while not pause.wait(interval_s):
                page = _page(*look(), console.width)
                screen.update(page, refresh=True)
    finally:
        console.print(page)
    return True


def size(value: int) -> str:
    """Return bytes as people read them; nothing for nothing."""
    if value >= _GIB:
        return f"{value / _GIB:.2f} GiB"
    if value >= _MIB:
        return f"{value / _MIB:.0f} MiB"
    if value >= _KIB:
        return f"{value / _KIB:.0f} KiB"
    return f"{value} B" if value else ""


def _page(census: Census, holders: Table, width: int) -> Group:
    facts = Grid(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False, width=width)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(no_wrap=True)
    facts.add_column(ratio=1, overflow="fold")
    for name, share, text in _facts(census):
        facts.add_row(name, "" if share is None else bar(share, _BAR), Text(printable(text)))
    return Group(
        facts,
        _rows(holders, width),
        *(Text(printable(note), style="dim") for note in _notes(census, holders)),
    )


def _rows(holders: Table, width: int) -> Grid:
    columns = _columns(holders)
    grid = table(width)
    grid.add_column("process", ratio=1, overflow="fold")
    grid.add_column("pid", justify="right", no_wrap=True)
    for title in columns:
        grid.add_column(title, justify="right", no_wrap=True)
    for row in _everybody(holders):
        name = Text(printable(row.name), style="bold" if row.guarded else "")
        name.append("".join(f"\n  {how}: {whom}" for how, whom in _care(row)), style="not bold dim")
        cells = (Text(columns[title](row)) for title in columns)
        grid.add_row(name, Text(str(row.pid) if row.pid else ""), *cells, style="" if row.pid else "dim")
    return grid


def _columns(holders: Table) -> dict[str, Callable[[Holder], str]]:
    """Return the columns that have something to tell."""
    everybody = _everybody(holders)
    columns: dict[str, Callable[[Holder], str]] = {}
    if any(row.processes > 1 for row in everybody):
        columns["procs"] = lambda row: str(row.processes)
    columns["private"] = lambda row: size(row.private)
    if any(row.pss is not None for row in everybody):
        columns["PSS"] = lambda row: "?" if row.pss is None else size(row.pss)
    columns["shared"] = lambda row: size(row.shared)
    if any(row.device for row in everybody):
        columns["GPU"] = lambda row: size(row.device)
    if any(row.objects for row in everybody):
        columns["objects"] = lambda row: size(row.objects)
    return columns


def _facts(census: Census) -> Iterator[tuple[str, float | None, str]]:
    """Yield name, how full (0 to 1), and what there is to say."""
    yield from _node_facts(census)
    for store in census.stores:
        memory = store.memory
        if memory is None:
            yield "object store", None, f"of raylet {store.node.pid}: no answer"
            continue
        more = f", {memory.objects} objects"
        more += f", {size(memory.fallback)} on disk for want of room" if memory.fallback else ""
        more += f", {size(memory.spilled_total)} spilled so far" if memory.spilled_total else ""
        yield "object store", memory.used / (memory.capacity or 1), _of(memory.used, memory.capacity) + more
    for name, systems in (("shared memory", census.shm), ("disk", census.disks)):
        for fs in systems:
            yield name, fs.used / (fs.total or 1), f"{_of(fs.used, fs.total)} under {fs.path}"
    for gpu in census.devices:
        yield f"GPU {gpu.index}", gpu.used / (gpu.total or 1), f"{_of(gpu.used, gpu.total)}, {gpu.name}"


def _node_facts(census: Census) -> Iterator[tuple[str, float | None, str]]:
    node, own, stall = census.node, census.own_cgroup, census.stall
    if node is None:
        yield "memory", None, "neither /proc/meminfo nor a cgroup can be read"
    else:
        kills = f", Ray kills at {size(census.kills_at)}" if census.kills_at is not None else ""
        where = "" if node.source == "machine" else " (limit of the container)"
        yield (
            "memory",
            node.used / (census.kills_at or node.total),
            _of(node.used, node.total) + kills + where,
        )
    if own is not None:
        yield (
            "cgroup",
            own.used / own.total,
            f"{_of(own.used, own.total)}, the kernel kills there: {own.source}",
        )
    if stall is not None:
        text = f"{stall.some_10s_ratio:.0%} of the last 10 s some task waited for memory"
        text += f", {stall.full_10s_ratio:.0%} all of them" if stall.full_10s_ratio else ""
        yield "stalled", stall.some_10s_ratio / _STALLED * HOT, text
    if census.oom_kills:
        yield "OOM kills", 1.0, f"{census.oom_kills} by the kernel so far"


def _notes(census: Census, holders: Table) -> Iterator[str]:
    if not census.stores:
        yield "No Ray node runs here (or none that can be seen)."
    yield from (f"Note: {note}" for note in census.notes)
    if holders.unreadable:
        yield f"{holders.unreadable} processes of other users cannot be read and are in no row."
    if not census.devices and census.no_devices:
        yield f"No GPU: {census.no_devices}."


def _of(used: int, total: int) -> str:
    return f"{size(used) or '0'} of {size(total)} ({used / total:.0%})" if total else size(used) or "0"


def _care(row: Holder) -> list[tuple[str, str]]:
    named = (("guarded", row.guarded), ("watched", row.watched))
    return [(how, printable(whom)) for how, whom in named if whom]


def _everybody(holders: Table) -> tuple[Holder, ...]:
    return (*holders.rows, *([holders.others] if holders.others else []))


def _lines(census: Census, holders: Table) -> Iterator[str]:
    for name, _, text in _facts(census):
        yield f"{name}: {printable(text)}"
    columns = _columns(holders)
    for row in _everybody(holders):
        words = [f"{title}={columns[title](row).replace(' ', '') or '0'}" for title in columns]
        words += [f"{how}={whom}" for how, whom in _care(row)]
        yield f"{printable(row.name)} pid={row.pid or '-'} {' '.join(words)}"
    yield from (printable(note) for note in _notes(census, holders))
