"""All commands of ``rayguard``, as Typer reads them: finding, filtering, exit codes.

What ``incidents`` and ``status`` show of this machine is ``rayguard.cli.this_machine``, how it looks
``rayguard.cli.incident_views``; the commands that read logs are in ``rayguard.cli.logs``. Starts no Ray and
loads no torch, so that it answers at once; even its own heavier imports wait until a command needs them.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from rayguard.cli import this_machine
from rayguard.cli.cluster import Address, Home, down, incidents_of, show_cluster, top, up
from rayguard.cli.flight import flight
from rayguard.cli.logs.catalog import catalog, known_kind
from rayguard.cli.logs.diagnose import diagnose
from rayguard.cli.memory import memory
from rayguard.cli.preflight import preflight
from rayguard.cli.reap import reap
from rayguard.cli.run import RUN_WORDS, run
from rayguard.cli.terminal import home_or_exit

if TYPE_CHECKING:
    from rayguard.recovery.incident import Incident
    from rayguard.recovery.journal import Journal

_POLL_S = 0.25
_FOLLOWED = 10  # incidents that --follow shows before the new ones, as journalctl does

app = typer.Typer(
    name="rayguard",
    help="See what rayguard saw and did on this machine or a cluster, and what any log says of a failure.\n\n"
    "Examples: `rayguard run -- python train.py`, `rayguard up`, `rayguard top`, "
    "`rayguard incidents --last 5`, `rayguard diagnose train.log`"
    "\n\n`rayguard --version` prints the version.",  # no option of Typer's: --help would take twice as long
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich would take twice as long as all the rest
)


app.command()(diagnose)
app.command()(flight)
app.command()(memory)
app.command()(preflight)
app.command()(reap)
app.command(context_settings=RUN_WORDS)(run)
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
        from rayguard.recovery.journal import Journal  # noqa: PLC0415 - `rayguard --version` need not wait for it

        _follow(Journal(home_or_exit(home)), kind, last or _FOLLOWED, as_json=as_json)
        return
    if address is None:
        this_machine.incidents(wanted, last=last, kind=kind, as_json=as_json, stories=stories, home=home)
        return
    found = incidents_of(address)
    if stories:
        this_machine.show_stories(found, wanted, last=last, kind=kind, as_json=as_json)
    else:
        this_machine.show_chosen(address, found, wanted, last=last, kind=kind, as_json=as_json)


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

    Of this machine it shows the guarded and watched processes and their engines; those that ended, for a day.

    For example

    `rayguard status --address 10.0.0.1:6379` shows the cluster with this head node,

    `rayguard status --home ~/.local/state/rayguard` shows what was left there.
    """
    if address or not this_machine.status(as_json=as_json, home=home):
        show_cluster(address, as_json=as_json)


def _follow(journal: Journal, kind: str | None, last: int, *, as_json: bool) -> None:
    """Show the past and what comes, from one ``Tail``: nothing falls between the two."""
    from rayguard.cli.incident_views import incident_line  # noqa: PLC0415
    from rayguard.recovery.tail import Tail, folded  # noqa: PLC0415

    def show(records: list[Incident]) -> None:
        for one in records:
            if kind in (None, one.kind):
                typer.echo(json.dumps(one.to_json()) if as_json else incident_line(one))

    pause = threading.Event()
    with Tail(journal.directory) as tail, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        show([one for one in folded(this_machine.or_exit(tail.poll)) if kind in (None, one.kind)][-last:])
        while not pause.wait(_POLL_S):
            show(this_machine.or_exit(tail.poll))
