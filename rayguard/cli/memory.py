"""The ``rayguard memory`` command: who holds what on this node, once or live.

The command only; how it looks is ``rayguard.cli.memory_views``. Joins no cluster: the raylets that run here
are found among the processes and asked from outside. Loads Ray only where there is one.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.memory.holders import Table
    from rayguard.memory.probes.census import Census

_TOP = 12


def memory(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object; with --watch one a line.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.2, max=3600, help="Seconds between looks.", metavar="S")
    ] = 2.0,
    pss: Annotated[
        bool, typer.Option("--pss", help="Count shared pages fairly; 1-3 ms for each process.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Rows to show.", metavar="N")] = _TOP,
) -> None:
    """Show who holds the memory of this node: processes, objects of Ray's, GPUs; what kills at which limit.

    For example

    `rayguard memory --watch` goes on like top,

    `rayguard memory --pss` counts pages that processes share once,

    `rayguard memory --json | jq '.rows[0]'` is the largest holder.
    """
    from rayguard.cli.terminal import without_native_lines  # noqa: PLC0415 - as below
    from rayguard.memory.holders import table  # noqa: PLC0415 - `rayguard --version` need not wait for it
    from rayguard.memory.probes.census import Observer  # noqa: PLC0415

    observer = Observer()

    def look() -> tuple[Census, Table]:
        guarded, watched = _named()
        with without_native_lines():
            census = observer.look(pss=pss, guarded=guarded, watched=watched)
        return census, table(census.processes, top=top)

    with contextlib.closing(observer), contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        if as_json:
            _rounds(lambda: typer.echo(json.dumps(_plain(*look()))), interval, again=watch)
            return
        from rayguard.cli.memory_views import live, show  # noqa: PLC0415

        if watch and live(look, interval):
            return
        _rounds(lambda: show(*look()), interval, again=watch)


def _rounds(one: Callable[[], None], interval_s: float, *, again: bool) -> None:
    one()
    pause = threading.Event()
    while again and not pause.wait(interval_s):
        one()


def _named() -> tuple[dict[tuple[int, int], str], ...]:
    """Return what living processes call themselves, by pid and start: guarded ones, and watched."""
    from rayguard.config import Settings  # noqa: PLC0415
    from rayguard.errors import ConfigError  # noqa: PLC0415
    from rayguard.recovery.status import read_pages  # noqa: PLC0415

    try:
        pages = read_pages(Settings().home)
    except (ConfigError, OSError):
        return {}, {}
    names = dict[tuple[int, int], str](), dict[tuple[int, int], str]()
    for page in pages:
        if page.alive is not False:
            names[page.who.watched][page.pid, page.started] = page.who.actor_class or "process"
    return names


def _plain(census: Census, found: Table) -> dict[str, object]:
    from dataclasses import asdict  # noqa: PLC0415

    plain = asdict(census)
    del plain["processes"]
    for store in plain["stores"]:
        # Of the raylet's environment only what decides about memory: others may hold secrets.
        node = store["node"]
        del node["environment"]
    return {"at": time.time(), **plain, **asdict(found)}
