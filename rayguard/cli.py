"""The ``rayguard`` command: reads what guarded processes left on this machine, and what any process printed.

Commands only: finding, filtering, exit codes. How things look is ``rayguard.cli_views``; the commands that
read logs are ``rayguard.cli_diagnose`` and ``rayguard.cli_catalog``. Starts no Ray and
loads no torch, so that it answers at once; even its own heavier imports wait until a command needs them.
"""

from __future__ import annotations

import contextlib
import json
import threading
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayguard.cli_catalog import catalog, known_kind
from rayguard.cli_cluster import Address, cluster_here, down, incidents_of, show_cluster, top, up
from rayguard.cli_diagnose import diagnose
from rayguard.cli_flight import flight
from rayguard.cli_memory import memory
from rayguard.cli_reap import reap
from rayguard.cli_stories import show_stories
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.recovery.incident import Incident
    from rayguard.recovery.journal import Journal

_POLL_S = 0.25
_FOLLOWED = 10  # incidents that --follow shows before the new ones, as journalctl does

app = typer.Typer(
    name="rayguard",
    help="See what rayguard saw and did on this machine or a cluster, and what any log says of a failure.\n\n"
    "Examples: `rayguard up`, `rayguard top`, `rayguard incidents --last 5`, `rayguard diagnose train.log`",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Home = Annotated[
    Path | None,
    typer.Option(help="Where to look instead of RAYGUARD_HOME or the default.", metavar="DIR"),
]


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - the form of a typer callback
    if wanted:
        typer.echo(f"rayguard {installed_version('rayguard')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


app.command()(diagnose)
app.command()(flight)
app.command()(memory)
app.command()(reap)
app.command()(up)
app.command()(down)
app.command()(top)
app.add_typer(catalog, name="catalog")


@app.command()
def incidents(  # noqa: PLR0913 - one option each
    incident: Annotated[
        str | None, typer.Argument(help="Show this one whole: its id, or the beginning of it.")
    ] = None,
    *,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest N.", metavar="N")] = None,
    kind: Annotated[
        str | None, typer.Option(callback=known_kind, help="Only this kind, e.g. engine_hang.", metavar="K")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones as they come.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON list; with --follow one object a line.")
    ] = False,
    identifier: Annotated[
        str | None, typer.Option("--id", help="The same as the argument.", metavar="ID")
    ] = None,
    stories: Annotated[
        bool, typer.Option("--stories", help="Joined into one story per cause; with an id, that one whole.")
    ] = False,
    address: Annotated[
        str | None, typer.Option("--address", "-a", help="Of a cluster: those of all its nodes.", metavar="A")
    ] = None,
    home: Home = None,
) -> None:
    """Show the incidents in this machine's journal or, with --address, of a cluster, oldest first.

    For example

    `rayguard incidents --last 5` shows the newest five,

    `rayguard incidents 3f9a` shows one whole: evidence, consequences, advice,

    `rayguard incidents --stories` joins what has one cause: a node that died, and not its eight actors,

    `rayguard incidents --address auto` asks all nodes of the cluster that runs here,

    `rayguard incidents --json | jq '.[] | select(.outcome == "failed")'` finds what was not repaired.
    """
    wanted = incident or identifier
    if follow:
        if wanted or stories or address:
            raise typer.BadParameter(
                "--follow shows new incidents here: it takes no id, --stories or --address"
            )
        _follow(_journal(home), kind, last or _FOLLOWED, as_json=as_json)
        return
    where = address or str(_home(home))
    found = incidents_of(address) if address else _read(_journal(home))
    if stories:
        show_stories(found, wanted, last=last, kind=kind, as_json=as_json)
        return
    if wanted:
        _show_one(_named(found, wanted, where), as_json=as_json)
        return
    found = [one for one in found if kind in (None, one.kind)]
    _show_list(where, found[-last:] if last else found, as_json=as_json)


@app.command()
def status(
    *,
    address: Address = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object; of this machine alone, a list of its processes.")
    ] = False,
    home: Home = None,
) -> None:
    """Show a cluster: nodes, processes, engines, jobs, stories. Without one, or with --home, this machine.

    Of this machine it shows the guarded processes and their engines; those that ended, for a day.

    For example

    `rayguard status --address 10.0.0.1:6379` shows the cluster with this head node,

    `rayguard status --home ~/.local/state/rayguard` shows what was left there.
    """
    if address or (home is None and cluster_here()):
        show_cluster(address, as_json=as_json)
        return
    from rayguard.cli_views import show_pages  # noqa: PLC0415 - `rayguard --version` need not wait for it
    from rayguard.recovery.status import read_pages  # noqa: PLC0415

    directory = _home(home)
    pages = _or_exit(lambda: read_pages(directory))
    if as_json:
        typer.echo(json.dumps([page.to_json() for page in pages], indent=2))
    elif pages:
        show_pages(pages)
    else:
        typer.echo(f"No guarded process has left a page in {directory / 'status'}.")


def _home(home: Path | None) -> Path:
    from rayguard.config import Settings  # noqa: PLC0415

    try:
        return Settings(home=home).home if home else Settings().home
    except ConfigError as error:
        typer.echo(f"rayguard: {error}", err=True)
        raise typer.Exit(2) from None


def _journal(home: Path | None) -> Journal:
    from rayguard.recovery.journal import Journal  # noqa: PLC0415

    return Journal(_home(home))


def _or_exit(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except OSError as error:
        typer.echo(f"rayguard: cannot read it: {error}", err=True)
        raise typer.Exit(1) from None


def _read(journal: Journal) -> list[Incident]:
    found: list[Incident]
    found, errors = _or_exit(journal.read_with_errors)
    if errors:
        lines = "1 line of the journal was" if errors == 1 else f"{errors} lines of the journal were"
        typer.echo(f"{lines} skipped: torn, or not written by rayguard", err=True)
    return found


def _named(found: list[Incident], wanted: str, where: str) -> Incident:
    exact = [one for one in found if one.id == wanted]
    matching = exact or [one for one in found if one.id.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    several = f": {', '.join(one.id for one in matching[:5])}" if matching else ""
    how_many = "several incidents begin" if matching else "no incident begins"
    typer.echo(f"rayguard: {how_many} with {wanted!r} in {where}{several}", err=True)
    raise typer.Exit(1)


def _show_one(one: Incident, *, as_json: bool) -> None:
    from rayguard.cli_views import show_incident  # noqa: PLC0415

    if as_json:
        typer.echo(json.dumps([one.to_json()], indent=2))
    else:
        show_incident(one)


def _show_list(where: str, found: list[Incident], *, as_json: bool) -> None:
    from rayguard.cli_views import show_incidents  # noqa: PLC0415

    if as_json:
        typer.echo(json.dumps([one.to_json() for one in found], indent=2))
    elif found:
        show_incidents(found)
    else:
        typer.echo(f"No incidents in {where}.")


def _follow(journal: Journal, kind: str | None, last: int, *, as_json: bool) -> None:
    """Show the past and what comes, from one ``Tail``: nothing falls between the two."""
    from rayguard.cli_views import incident_line  # noqa: PLC0415
    from rayguard.recovery.tail import Tail, folded  # noqa: PLC0415

    def show(records: list[Incident]) -> None:
        for one in records:
            if kind in (None, one.kind):
                typer.echo(json.dumps(one.to_json()) if as_json else incident_line(one))

    pause = threading.Event()
    with Tail(journal.directory) as tail, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        show([one for one in folded(_or_exit(tail.poll)) if kind in (None, one.kind)][-last:])
        while not pause.wait(_POLL_S):
            show(_or_exit(tail.poll))


def main() -> None:
    """Run the command; the entry point of the package."""
    app()
