"""``rayguard incidents`` and ``status`` of this machine: what its journal and its status pages say.

Loads no Typer, Ray or pydantic, and Rich only on a terminal: somebody is waiting. Clusters, ``--follow`` and
mistakes in the command are ``rayguard.cli.app``'s.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from rayguard.cli.terminal import fail, home_or_exit, many, only_one, say, show_json, show_lines
from rayguard.recovery.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rayguard.cluster.supervisor.stories import Story
    from rayguard.recovery.incident import Incident

T = TypeVar("T")


def incidents(  # noqa: PLR0913 - one option each
    incident: str | None = None,
    *,
    last: int | None = None,
    kind: str | None = None,
    as_json: bool = False,
    identifier: str | None = None,
    stories: bool = False,
    home: Path | None = None,
) -> bool:
    """Show the incidents of this machine's journal; say that it is done."""
    directory = home_or_exit(home)
    found = read(Journal(directory))
    wanted = incident or identifier
    if stories:
        show_stories(found, wanted, last=last, kind=kind, as_json=as_json)
    else:
        show_chosen(str(directory), found, wanted, last=last, kind=kind, as_json=as_json)
    return True


def status(*, as_json: bool = False, home: Path | None = None) -> bool:
    """Show the processes of this machine, guarded ones and watched; False where a cluster is to be asked."""
    if home is None:
        from rayguard.cluster.view.connect import address_here, listens  # noqa: PLC0415 - not with --home

        found = address_here()
        if found is not None and listens(found):
            return False
    from rayguard.cli.incident_views import show_pages  # noqa: PLC0415 - not for incidents
    from rayguard.recovery.status import read_pages  # noqa: PLC0415

    directory = home_or_exit(home)
    pages = or_exit(lambda: read_pages(directory))
    if as_json:
        show_json([page.to_json() for page in pages])
    elif pages:
        show_pages(pages)
    else:
        say(f"No guarded process has left a page in {directory / 'status'}, and no watched one.")
    return True


def or_exit(read: Callable[[], T]) -> T:
    """Return what ``read`` does, or end with what is wrong with the disk."""
    try:
        return read()
    except OSError as error:
        fail(f"cannot read it: {error}")


def read(journal: Journal) -> list[Incident]:
    """Return the incidents of a journal; says on the error stream how many lines were none."""
    found, errors = or_exit(journal.read_with_errors)
    if errors:
        lines = many(errors, "line of the journal was", "lines of the journal were")
        say(f"{lines} skipped: torn, or not written by rayguard", error=True)
    return found


def show_chosen(
    where: str,
    found: list[Incident],
    wanted: str | None,
    *,
    last: int | None,
    kind: str | None,
    as_json: bool,
) -> None:
    """Show the newest of a kind, or the one whose id begins with ``wanted``."""
    if wanted:
        exact = [one for one in found if one.id == wanted]
        matching = exact or [one for one in found if one.id.startswith(wanted)]
        found = [only_one(matching, wanted, ("incident", "incidents"), f" in {where}")]
    else:
        found = [one for one in found if kind in (None, one.kind)]
        found = found[-last:] if last else found
    if as_json:
        show_json([one.to_json() for one in found])
        return
    from rayguard.cli.incident_views import show_incident, show_incidents  # noqa: PLC0415 - not for --json

    if wanted:
        show_incident(found[0])
    elif found:
        show_incidents(found)
    else:
        say(f"No incidents in {where}.")


def show_stories(
    incidents: list[Incident], wanted: str | None, *, last: int | None, kind: str | None, as_json: bool
) -> None:
    """Show the stories of ``incidents``, oldest first; or the one whose id begins with ``wanted``, whole."""
    from rayguard.cluster.supervisor.stories import stories_of  # noqa: PLC0415 - only for --stories

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
        from rayguard.cli.cluster_views import show_stories as show_them  # noqa: PLC0415 - not for --json

        show_them(stories)
    else:
        say("No stories: there are no incidents.")


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
        say("")
        show_incident(members[0])
    else:
        say("\nIncidents (rayguard incidents ID shows one whole)")
        show_incidents(members)
