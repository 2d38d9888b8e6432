"""``rayguard incidents --stories``: incidents told as one story per cause, all or one of them whole.

The rule that joins them is ``rayguard.cluster.stories``; the incidents are the journal's or a cluster's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rayguard.cluster.view import StoryView
    from rayguard.recovery.incident import Incident


def show_stories(
    incidents: list[Incident], wanted: str | None, *, last: int | None, kind: str | None, as_json: bool
) -> None:
    """Show the stories of ``incidents``, oldest first; or the one whose id begins with ``wanted``, whole."""
    from rayguard.cluster.stories import told  # noqa: PLC0415 - `rayguard --version` need not wait for it
    from rayguard.cluster.view import StoryView  # noqa: PLC0415

    stories = [StoryView.of(story) for story in told(incidents)]
    if wanted:
        story = _named(stories, wanted)
        members = [one for one in incidents if one.id in story.incidents]
        _show_one(story, members, as_json=as_json)
        return
    stories = [story for story in stories if kind in (None, story.kind)]
    stories = stories[-last:] if last else stories
    if as_json:
        from dataclasses import asdict  # noqa: PLC0415

        typer.echo(json.dumps([asdict(story) for story in stories], indent=2))
    elif stories:
        from rayguard.cli_cluster_views import show_stories as table  # noqa: PLC0415 - not for --json

        table(stories)
    else:
        typer.echo("No stories: there are no incidents.")


def _named(stories: list[StoryView], wanted: str) -> StoryView:
    """Return the story with this id, or this incident in it; the beginning of one will do."""
    matching = [one for one in stories if one.id == wanted] or [
        one for one in stories if any(each.startswith(wanted) for each in (one.id, *one.incidents))
    ]
    if len(matching) == 1:
        return matching[0]
    several = f": {', '.join(one.id for one in matching[:5])}" if matching else ""
    how_many = "several stories begin" if matching else "no story begins"
    typer.echo(f"rayguard: {how_many} with {wanted!r}{several}", err=True)
    raise typer.Exit(1)


def _show_one(story: StoryView, members: list[Incident], *, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict  # noqa: PLC0415

        plain = {**asdict(story), "incidents": [one.to_json() for one in members]}
        typer.echo(json.dumps([plain], indent=2))
        return
    from rayguard.cli_cluster_views import story_lines  # noqa: PLC0415 - not for --json
    from rayguard.cli_views import show_incident, show_incidents  # noqa: PLC0415

    for line in story_lines(story):
        typer.echo(line)
    if len(members) == 1:
        typer.echo("")
        show_incident(members[0])
    else:
        typer.echo("\nIncidents (rayguard incidents ID shows one whole)")
        show_incidents(members)
