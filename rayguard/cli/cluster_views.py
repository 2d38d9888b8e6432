"""How a cluster looks: tables on a terminal, a plain line for each thing elsewhere.

Values come from ``rayguard.cluster.view.cluster_view``; the live screen is ``top``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from rayguard.cli import cluster_tables as tables
from rayguard.cli import terminal
from rayguard.cli.cluster_tables import STYLES
from rayguard.cli.memory_views import size
from rayguard.cli.terminal import many, moment, printable
from rayguard.cluster.view.cluster_view import Answers, ClusterView, NodeState, NodeView, ProcessView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rayguard.cluster.supervisor.stories import Story

MAX_WIDTH = 200
_ROWS = 40  # of processes one by one; more are shown by class


def show(view: ClusterView) -> None:
    """Print the whole of it once."""
    terminal.show(MAX_WIDTH, lines(view), lambda width: whole(view, width))


def show_stories(stories: Sequence[Story]) -> None:
    """Print one line for each story; on a terminal a table."""
    table = partial(tables.stories_table, stories, fold=True, ids=True)
    terminal.show(MAX_WIDTH, map(story_line, stories), table)


def whole(view: ClusterView, width: int) -> Group:
    """Return everything, one section under the other; nothing is cut off but many processes of one class."""
    parts: list[RenderableType] = [headline(view), tables.nodes_table(view.nodes, width)]
    if len(view.processes) <= _ROWS:
        parts += [tables.processes_table(view, width)] if view.processes else []
    else:
        parts.append(tables.groups_table(view.groups, width))
    if view.engines:
        parts.append(tables.engines_table(view.engines[:_ROWS], width))
        if len(view.engines) > _ROWS:
            parts.append(Text(f"and {len(view.engines) - _ROWS} engines more: --json has all", style="dim"))
    if view.jobs:
        parts.append(tables.jobs_table(view.jobs, width))
    unfinished = [story for story in view.stories if story.open]
    if unfinished:
        parts.append(tables.stories_table(unfinished, width, fold=True))
    return Group(*parts, *notes(view))


def headline(view: ClusterView) -> Text:
    """Return one line on the whole cluster."""
    found = Text(f"{printable(view.address)}  " if view.address else "", style="bold")
    found.append(moment(view.at, "%H:%M:%S"), style="not bold")
    for state in NodeState:
        count = sum(node.state is state for node in view.nodes)
        if count or state is NodeState.ALIVE:
            found.append(f"  {count} {state.value}", style=f"not bold {STYLES[state] if count else 'red'}")
    unfinished = sum(one.open for one in view.stories)
    if unfinished:
        found.append(f"  {many(unfinished, 'story', 'stories')} open", style="not bold red")
    guarded, watched = (sum(getattr(one, what) for one in view.processes) for what in ("guarded", "watched"))
    said = f"{guarded} guarded" + (f", {watched} watched" if watched else "")
    found.append(f"  {many(len(view.processes), 'process', 'processes')}, {said}", "not bold")
    return found


def notes(view: ClusterView) -> Iterator[Text]:
    """Yield what else is to be said."""
    yield from (Text(f"Note: {printable(note)}", style="yellow") for note in view.notes)
    missing = [node for node in view.nodes if node.agent is Answers.MISSING]
    if missing:
        yield Text(f"{many(len(missing), 'node has', 'nodes have')} no agent: rayguard up", style="yellow")


def lines(view: ClusterView) -> Iterator[str]:
    """Yield one plain line for each node, process, engine, job and open story."""
    for one in view.nodes:
        yield _facts("node", one.id, _of_node(one)) + (f" ({printable(one.why)})" if one.why else "")
    for process in view.processes:
        yield _facts("process", process.name, _of_process(process))
    for engine in view.engines:
        facts = {
            "pid": engine.pid,
            "node": engine.node[:8],
            "state": engine.state.replace(" ", "-"),
            "epoch": engine.epoch,
            "rung": engine.rung,
            "weights": engine.weight_version,
            "running": engine.requests_running,
            "tokens": engine.tokens_generated,
        }
        yield _facts("engine", engine.name, facts)
    for each in view.jobs:
        facts = {
            "state": "running" if each.running else "ended",
            "plugin": "on" if each.plugin else "off",
            "supervisor": each.supervisor.value.replace(" ", "-"),
            "budget_left": None if each.budget_left is None else f"{each.budget_left:.0%}",
            "open_stories": each.open_stories,
        }
        yield _facts("job", each.id, facts)
    yield from (f"story {story_line(story)}" for story in view.stories if story.open)
    yield from (note.plain for note in notes(view))


def _of_node(node: NodeView) -> dict[str, object]:
    return {
        "host": node.host,
        "state": node.state.value,
        "agent": node.agent.value.replace(" ", "-"),
        "memory": f"{node.memory.share:.0%}" if node.memory else None,
        "store": f"{node.store.share:.0%}" if node.store else None,
        "processes": node.processes,
        "metrics": node.url,
    }


def _of_process(one: ProcessView) -> dict[str, object]:
    return {
        "pid": one.pid,
        "node": one.node[:8],
        "job": tables.job(one.job_id),
        "state": "frozen" if one.stopped else "alive",
        "guarded": "yes" if one.guarded else "no",
        "watched": "yes" if one.watched else "no",
        "restarts": one.restarts,
        "memory": None if one.memory_bytes is None else size(one.memory_bytes).replace(" ", "") or "0",
    }


def _facts(what: str, name: str, facts: dict[str, object]) -> str:
    said = (f"{key}={'-' if value in (None, '') else value}" for key, value in facts.items())
    return printable(f"{what} {name} {' '.join(said)}")


def story_lines(story: Story) -> Iterator[str]:
    """Yield all that is told of one story but its incidents."""
    yield printable(f"story {story.id}: {story.kind} ({story.scope})")
    facts = {
        "began": moment(story.began_at),
        "over": "not yet" if story.ended_at is None else moment(story.ended_at),
        "actors hit": str(story.actors),
        "job": story.job_id,
        "node": story.node,
    }
    yield from (printable(f"  {name:<12}{said}") for name, said in facts.items() if said not in ("", "0"))
    for title, said in (("Cause", story.cause), ("What to do", story.advice), ("In short", story.sentence)):
        if said:
            yield from ("", title, f"  - {printable(said)}")


def story_line(story: Story) -> str:
    """Return one line for logs and pipes."""
    count = many(len(story.incidents), "incident", "incidents")
    return printable(
        f"{moment(story.began_at)} {story.id} {story.kind} ({story.scope}) {count}: {story.sentence}"
    )
