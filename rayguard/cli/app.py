"""The ``rayguard`` command: reads what guarded processes left on this machine, and what any process printed.

Commands only: finding, filtering, exit codes. How things look is ``rayguard.cli.incident_views``; the
commands that read logs are ``rayguard.cli.diagnose`` and ``rayguard.cli.catalog``. Starts no Ray and loads no
torch, so that it answers at once; even its own heavier imports wait until a command needs them.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import asdict
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rayguard.cli.catalog import catalog, known_kind
from rayguard.cli.cluster import Address, cluster_here, down, incidents_of, show_cluster, top, up
from rayguard.cli.diagnose import diagnose
from rayguard.cli.flight import flight
from rayguard.cli.memory import memory
from rayguard.cli.reap import reap
from rayguard.cli.terminal import Home, fail, home_or_exit, many, only_one, show_json, show_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rayguard.cluster.supervisor.stories import Story
    from rayguard.recovery.incident import Incident
    from rayguard.recovery.journal import Journal

T = TypeVar("T")

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
    where = address or str(home_or_exit(home))
    found = incidents_of(address) if address else _read(_journal(home))
    if stories:
        _show_stories(found, wanted, last=last, kind=kind, as_json=as_json)
        return
    if wanted:
        exact = [one for one in found if one.id == wanted]
        matching = exact or [one for one in found if one.id.startswith(wanted)]
        found = [only_one(matching, wanted, ("incident", "incidents"), f" in {where}")]
    else:
        found = [one for one in found if kind in (None, one.kind)]
        found = found[-last:] if last else found
    _show(where, found, whole=bool(wanted), as_json=as_json)


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
    from rayguard.cli.incident_views import show_pages  # noqa: PLC0415 - `rayguard --version` need not wait for it
    from rayguard.recovery.status import read_pages  # noqa: PLC0415

    directory = home_or_exit(home)
    pages = _or_exit(lambda: read_pages(directory))
    if as_json:
        show_json([page.to_json() for page in pages])
    elif pages:
        show_pages(pages)
    else:
        typer.echo(f"No guarded process has left a page in {directory / 'status'}.")


def _journal(home: Path | None) -> Journal:
    from rayguard.recovery.journal import Journal  # noqa: PLC0415

    return Journal(home_or_exit(home))


def _or_exit(read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:
        fail(f"cannot read it: {error}")


def _read(journal: Journal) -> list[Incident]:
    found, errors = _or_exit(journal.read_with_errors)
    if errors:
        lines = many(errors, "line of the journal was", "lines of the journal were")
        typer.echo(f"{lines} skipped: torn, or not written by rayguard", err=True)
    return found


def _show(where: str, found: list[Incident], *, whole: bool, as_json: bool) -> None:
    from rayguard.cli.incident_views import show_incident, show_incidents  # noqa: PLC0415

    if as_json:
        show_json([one.to_json() for one in found])
    elif whole:
        show_incident(found[0])
    elif found:
        show_incidents(found)
    else:
        typer.echo(f"No incidents in {where}.")


def _show_stories(
    incidents: list[Incident], wanted: str | None, *, last: int | None, kind: str | None, as_json: bool
) -> None:
    """Show the stories of ``incidents``, oldest first; or the one whose id begins with ``wanted``, whole."""
    from rayguard.cluster.supervisor.stories import stories_of  # noqa: PLC0415 - `rayguard --version` need not wait for it

    stories = stories_of(incidents)
    if wanted:
        story = _story(stories, wanted)
        members = [one for one in incidents if one.id in story.incidents]
        _show_story(story, members, as_json=as_json)
        return
    stories = [story for story in stories if kind in (None, story.kind)]
    stories = stories[-last:] if last else stories
    if as_json:
        show_json([asdict(story) for story in stories])
    elif stories:
        from rayguard.cli.cluster_views import show_stories  # noqa: PLC0415 - not for --json

        show_stories(stories)
    else:
        typer.echo("No stories: there are no incidents.")


def _story(stories: list[Story], wanted: str) -> Story:
    """Return the story with this id, or this incident in it; the beginning of one will do."""
    matching = [one for one in stories if one.id == wanted] or [
        one for one in stories if any(each.startswith(wanted) for each in (one.id, *one.incidents))
    ]
    return only_one(matching, wanted, ("story", "stories"))


def _show_story(story: Story, members: list[Incident], *, as_json: bool) -> None:
    if as_json:
        show_json([{**asdict(story), "incidents": [one.to_json() for one in members]}])
        return
    from rayguard.cli.cluster_views import story_lines  # noqa: PLC0415 - not for --json
    from rayguard.cli.incident_views import show_incident, show_incidents  # noqa: PLC0415

    show_lines(story_lines(story))
    if len(members) == 1:
        typer.echo("")
        show_incident(members[0])
    else:
        typer.echo("\nIncidents (rayguard incidents ID shows one whole)")
        show_incidents(members)


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
        show([one for one in folded(_or_exit(tail.poll)) if kind in (None, one.kind)][-last:])
        while not pause.wait(_POLL_S):
            show(_or_exit(tail.poll))


def main() -> None:
    """Run the command; the entry point of the package."""
    app()
