"""``rayguard reap``: frees what dead engines and actors left on this machine, if it is provably rayguard's.

The command and how it looks. What may be reaped, and why not, is ``rayguard.process.cleanup.verdict``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rayguard.cli.cluster import Home  # noqa: TC001 - Typer reads it
from rayguard.cli.terminal import fail, home_or_exit, one_line, show_json, table, terminal

if TYPE_CHECKING:
    from rayguard.process.cleanup.verdict import Leftover

_MAX_WIDTH = 100
_PORTS = 3  # that are shown; --json has all: an engine's worker listens on a dozen
_ORDER = {"failed": 0, "reaped": 1, "reap": 2, "left": 3}
_STYLES = {"not reaped": "red", "reaped": "green", "to be reaped": "yellow"}


def reap(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show what would be reaped, and why not the rest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    home: Home = None,
) -> None:
    """Free what dead engines and actors left on this machine: only what is provably rayguard's and dead.

    Engine processes whose owner is dead, shared memory and sockets that such engines used and nobody holds,
    files of dead processes in rayguard's own home. Everything else is shown with the reason why it is left
    alone. The exit code is 1 when something that was proved could not be freed.

    For example

    `rayguard reap --dry-run` shows what would be done,

    `rayguard reap --json | jq '.leftovers[] | select(.fate == "left alone")'` what was left alone.
    """
    from rayguard.process.cleanup.own_files import sweep  # noqa: PLC0415
    from rayguard.process.cleanup.reaper import find, reap_home  # noqa: PLC0415

    place = home_or_exit(home)
    try:
        if dry_run:
            found = [*(one.shown for one in find(place)), *sweep(place, only_look=True)]
        else:
            found = reap_home(place)
    except OSError as error:  # no /proc
        fail(f"cannot look at this machine: {error}")
    found.sort(key=lambda one: (_ORDER[one.fate.name.lower()], one.sort.value, one.name))
    if as_json:
        show_json(_answer(found, dry_run=dry_run))
    else:
        _show(found, dry_run=dry_run)
    if any(one.fate.name == "FAILED" for one in found):
        raise typer.Exit(1)


def _size(size_bytes: int) -> str:
    from rayguard.memory.growth.growing import size  # noqa: PLC0415 - `rayguard --help` need not wait for it

    return size(size_bytes)


def _answer(found: list[Leftover], *, dry_run: bool) -> dict[str, object]:
    rows = [{**asdict(one), "sort": one.sort.value, "fate": one.fate.value} for one in found]
    return {
        "dry_run": dry_run,
        "counts": dict(Counter(one.fate.value for one in found)),
        "freed_bytes": sum(one.size_bytes for one in found if one.fate.name == "REAPED"),
        "freeable_bytes": sum(one.size_bytes for one in found if one.fate.name in ("REAP", "FAILED")),
        "leftovers": rows,
    }


def _show(found: list[Leftover], *, dry_run: bool) -> None:
    if not found:
        typer.echo("Nothing was left behind.")
        return
    from rich.text import Text  # noqa: PLC0415 - not for --json

    console = terminal(_MAX_WIDTH)
    if console is None:
        for one in found:
            what = f"{one.sort.value} {_name(one)} {_size(one.size_bytes)}"
            typer.echo(f"{one.fate.value}: {what} ({one_line(one.why)})")
    else:
        grid = table(console.width)
        grid.add_column("what", ratio=5, overflow="fold")
        grid.add_column("size", justify="right", no_wrap=True)
        grid.add_column("verdict", ratio=4, overflow="fold")
        for one in found:
            verdict = Text(one.fate.value, style=_STYLES.get(one.fate.value, "dim"))
            verdict.append(f"\n{one_line(one.why)}", style="not dim")
            grid.add_row(Text(f"{one.sort.value}\n{_name(one)}"), Text(_size(one.size_bytes)), verdict)
        console.print(grid)
    typer.echo(_sum(found, dry_run=dry_run))


def _name(one: Leftover) -> str:
    more = f" and {len(one.ports) - _PORTS} more" if len(one.ports) > _PORTS else ""
    ports = f", listens on port {', '.join(map(str, one.ports[:_PORTS]))}{more}" if one.ports else ""
    return f"{one_line(one.name)}{ports}"


def _sum(found: list[Leftover], *, dry_run: bool) -> str:
    freed = [one for one in found if one.fate.name == ("REAP" if dry_run else "REAPED")]
    failed = sum(one.fate.name == "FAILED" for one in found)
    left = sum(one.fate.name == "LEFT" for one in found)
    size = _size(sum(one.size_bytes for one in freed))
    told = f"{'Would reap' if dry_run else 'Reaped'} {len(freed)} ({size})"
    told += f", left {left} alone"
    return f"{told}, and {failed} could not be reaped." if failed else f"{told}."
