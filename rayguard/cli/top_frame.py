"""One picture of ``rayguard top``: as many rows of everything as the terminal has room for, troubles first.

A picture only: ``top`` shows one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from rayguard.cli import cluster_tables as tables
from rayguard.cli.cluster_views import headline, notes
from rayguard.cli.terminal import many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rayguard.cluster.view.cluster_view import ClusterView, NodeView

_LEAST = 3  # lines of a section: its titles and one row, which takes at most two
_WEIGHTS = {"nodes": 2}
_NOTES = 2


@dataclass(frozen=True, slots=True)
class Section:
    """Rows, how they are drawn, how many lines one takes, and what is said of those there is no room for."""

    rows: Sequence[Any]
    draw: Callable[[Sequence[Any]], RenderableType]
    tall: Callable[[Any], int] = lambda _: 1
    more: Callable[[Sequence[Any]], str] = lambda rows: f"{len(rows)} more"

    def wanted(self, most: int) -> int:
        """Return how many lines all of it takes, or ``most``; none where there is nothing to show."""
        return min(most, 1 + sum(map(self.tall, self.rows[:most]))) if self.rows else 0

    def fitted(self, room: int) -> list[RenderableType]:
        """Return what fits into ``room`` lines: at least one row, and the number of the others if it fits."""
        count, lines = 0, 1
        for row in self.rows:
            last = count + 1 == len(self.rows)
            if count and lines + self.tall(row) + (not last) > room:
                break
            lines += self.tall(row)
            count += 1
        left = self.rows[count:]
        said = [Text(f"… and {self.more(left)}", style="dim", no_wrap=True)] if left and lines < room else []
        return [self.draw(self.rows[:count]), *said]


def picture(
    view: ClusterView, width: int, height: int, forecasts: Mapping[str, float] | None = None, foot: str = ""
) -> Group:
    """Return the screen: at most ``height`` lines."""
    sections = _sections(view, width, forecasts or {})
    said = list(notes(view))[:_NOTES]
    room = height - len(said) - 2
    rooms = shared_out({name: section.wanted(height) for name, section in sections.items()}, room)
    lines = [headline(view), *said, Text(foot, style="dim")]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    shown = [part for name in rooms for part in sections[name].fitted(rooms[name])]
    return Group(lines[0], *shown, *lines[1:])


def shared_out(wanted: Mapping[str, int], lines: int) -> dict[str, int]:
    """Share ``lines`` out fairly: what one does not need, the others have. If it is too little, the last go.

    Invariant: the sum is at most ``lines``, and nobody gets more than it wants or less than it can use.
    """
    kept = {name: want for name, want in wanted.items() if want}
    while kept:
        given: dict[str, int] = {}
        left = lines
        weights = {name: _WEIGHTS.get(name, 1) for name in kept}
        for name, want in sorted(kept.items(), key=lambda pair: pair[1] / weights[pair[0]]):
            given[name] = min(want, left * weights[name] // sum(weights.values()))
            left -= given[name]
            del weights[name]
        if all(given[name] >= min(want, _LEAST) for name, want in kept.items()):
            return {name: given[name] for name in kept}
        kept.popitem()
    return {}


def _sections(view: ClusterView, width: int, forecasts: Mapping[str, float]) -> dict[str, Section]:
    unfinished = [story for story in reversed(view.stories) if story.open]
    last = view.incidents[::-1]
    return {
        "nodes": Section(
            view.nodes,
            lambda rows: tables.nodes_table(rows, width, forecasts, bare=True),
            lambda node: tables.node_lines(node, forecasts),
            _nodes_more,
        ),
        "stories": Section(unfinished, lambda rows: tables.stories_table(rows, width, bare=True)),
        "classes": Section(view.groups, lambda rows: tables.groups_table(rows, width, bare=True)),
        "jobs": Section(
            view.jobs,
            lambda rows: tables.jobs_table(rows, width, bare=True),
            lambda job: 1 + bool(job.crash_loops),
        ),
        "engines": Section(view.engines, lambda rows: tables.engines_table(rows, width, bare=True)),
        "incidents": Section(
            last, lambda rows: tables.incidents_table(rows, width, bare=True), more=lambda _: "older ones"
        ),
    }


def _nodes_more(nodes: Sequence[NodeView]) -> str:
    shares = [node.memory.share for node in nodes if node.memory]
    memory = f", memory {min(shares):.0%} to {max(shares):.0%}" if shares else ""
    fine = sum(node.fine for node in nodes)
    return f"{many(len(nodes), 'node', 'nodes')} more, {fine} of them fine{memory}"
