"""``rayguard reap``: frees what dead engines and actors left on this machine, if it is provably rayguard's.

The command and how it looks. What may be reaped, and why not, is ``rayguard.process.leftovers``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rayguard.process.leftovers import Leftover

_MAX_WIDTH = 100
_PORTS = 3  # that are shown; --json has all: an engine's worker listens on a dozen
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]")
_ORDER = {"failed": 0, "reaped": 1, "reap": 2, "left": 3}
_STYLES = {"not reaped": "red", "reaped": "green", "to be reaped": "yellow"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT = 1024.0


def reap(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show what would be reaped, and why not the rest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    home: Annotated[
        Path | None,
        typer.Option(help="Where to look instead of RAYGUARD_HOME or the default.", metavar="DIR"),
    ] = None,
) -> None:
    """Free what dead engines and actors left on this machine: only what is provably rayguard's and dead.

    Engine processes whose owner is dead, shared memory and sockets that such engines used and nobody holds,
    files of dead processes in rayguard's own home. Everything else is shown with the reason why it is left
    alone. The exit code is 1 when something that was proved could not be freed.

    For example

    `rayguard reap --dry-run` shows what would be done,

    `rayguard reap --json | jq '.leftovers[] | select(.fate == "left alone")'` what was left alone.
    """
    from rayguard.config import Settings  # noqa: PLC0415 - `rayguard --version` need not wait for it
    from rayguard.errors import ConfigError  # noqa: PLC0415
    from rayguard.process.litter import mark_the_dead  # noqa: PLC0415
    from rayguard.process.reaper import find, reap_home  # noqa: PLC0415

    try:
        place = Settings(home=home).home if home else Settings().home
    except ConfigError as error:
        typer.echo(f"rayguard: {error}", err=True)
        raise typer.Exit(2) from None
    try:
        found = [one.shown for one in find(place)] if dry_run else reap_home(place)
        if not dry_run:
            mark_the_dead(place)
    except OSError as error:  # no /proc
        typer.echo(f"rayguard: cannot look at this machine: {error}", err=True)
        raise typer.Exit(1) from None
    found.sort(key=lambda one: (_ORDER[one.fate.name.lower()], one.sort.value, one.name))
    if as_json:
        typer.echo(json.dumps(_answer(found, dry_run=dry_run), indent=2))
    else:
        _show(found, dry_run=dry_run)
    if any(one.fate.name == "FAILED" for one in found):
        raise typer.Exit(1)


def _answer(found: list[Leftover], *, dry_run: bool) -> dict[str, Any]:
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
    from rich import box  # noqa: PLC0415 - not for --json
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        for one in found:
            typer.echo(f"{one.fate.value}: {one.sort.value} {_name(one)} {_size(one)} ({_line(one.why)})")
    else:
        console.width = min(console.width, _MAX_WIDTH)
        table = Table(box=box.SIMPLE, width=console.width, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("what", ratio=5, overflow="fold")
        table.add_column("size", justify="right", no_wrap=True)
        table.add_column("verdict", ratio=4, overflow="fold")
        for one in found:
            verdict = Text(one.fate.value, style=_STYLES.get(one.fate.value, "dim"))
            verdict.append(f"\n{_line(one.why)}", style="not dim")
            table.add_row(Text(f"{one.sort.value}\n{_name(one)}"), Text(_size(one)), verdict)
        console.print(table)
    typer.echo(_sum(found, dry_run=dry_run))


def _name(one: Leftover) -> str:
    more = f" and {len(one.ports) - _PORTS} more" if len(one.ports) > _PORTS else ""
    ports = f", listens on port {', '.join(map(str, one.ports[:_PORTS]))}{more}" if one.ports else ""
    return f"{_line(one.name)}{ports}"


def _sum(found: list[Leftover], *, dry_run: bool) -> str:
    wanted = ("REAP",) if dry_run else ("REAPED",)
    freed = [one for one in found if one.fate.name in wanted]
    failed = sum(one.fate.name == "FAILED" for one in found)
    left = sum(one.fate.name == "LEFT" for one in found)
    size = _readable(sum(one.size_bytes for one in freed))
    told = f"{'Would reap' if dry_run else 'Reaped'} {len(freed)} ({size}), left {left} alone"
    return f"{told}, and {failed} could not be reaped." if failed else f"{told}."


def _size(one: Leftover) -> str:
    return _readable(one.size_bytes)


def _readable(size_bytes: float) -> str:
    for unit in _UNITS:
        if size_bytes < _UNIT or unit == _UNITS[-1]:
            break
        size_bytes /= _UNIT
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def _line(text: str) -> str:
    """Return foreign text (titles of processes) as one harmless line."""
    return " ".join(_CONTROL.sub(" ", text).split())
