"""The end of the run for people: one table of what was broken and what came of it, and a few sentences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from examples.grpo.outcome.verdict import join, killed_ranks

if TYPE_CHECKING:
    from rich.console import RenderableType

    from examples.grpo.history import History
    from examples.grpo.outcome.verdict import Joined

_PATH = re.compile(r"(?<![\w.])/(?:[^\s/]+/)+([^\s/]+/[^\s/]+:\d+)")


def summary(history: History, found: list[str]) -> RenderableType:
    """Return what is printed last."""
    parts: list[RenderableType] = []
    if history.guarded and history.fired:
        parts += [_table(history), Text()]
    if history.memory:
        parts += [_memory(history), Text()]
    parts += [_numbers(history), *_verdict(found)]
    return Group(*parts)


def _table(history: History) -> Table:
    table = Table(title="what was broken, and what came of it", title_justify="left", show_lines=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("fault, its cause as found, its remedy", ratio=1, overflow="fold")
    for column in ("found\nin", "cured\nin", "tokens\nsaved", "tokens\nlost"):
        table.add_column(column, justify="right", no_wrap=True)
    for joined in join(history):
        table.add_row(*_row(joined))
    for killed, incident in killed_ranks(history):
        name = (f"kill rank {killed.rank} of the gang of trainers", "bold")
        if incident is None:
            table.add_row(str(killed.step), Text.assemble(name, ("\nno incident", "red")))
            continue
        end = (f"\n{incident.remedy}: {incident.outcome.value}", "green")
        story = Text.assemble(name, f"\n{incident.kind}, scope {incident.scope}: {incident.cause}", end)
        costs = (_seconds(incident.detected_at - killed.at), _seconds(incident.recover_s))
        table.add_row(str(killed.step), story, *costs, "", "")
    return table


def _row(joined: Joined) -> list[RenderableType]:
    planned, incident = joined.fault.planned, joined.incident
    step, name = str(planned.step), f"{planned.what.value.replace('_', ' ')}, rollout {planned.target}"
    if incident is None:
        return [step, Text.assemble((name, "bold"), ("\nno incident", "red"))]
    story = Text.assemble(
        (name, "bold"),
        f"\n{incident.kind}, scope {incident.scope}: ",
        (brief(incident.cause), "dim"),
        (f"\n{incident.remedy.replace('+', ' + ')}: {incident.outcome.value}", "green"),
    )
    costs = (_seconds(joined.detect_s), _seconds(incident.recover_s))
    return [step, story, *costs, str(incident.tokens_saved), _count(incident.tokens_lost)]


def _memory(history: History) -> Table:
    table = Table(title="memory of the guarded processes, their engines apart", title_justify="left")
    for column in ("process", "MB at first", "at most", "at last", "over"):
        table.add_column(column, justify="left" if column == "process" else "right", no_wrap=True)
    table.add_column("relief", ratio=1, overflow="fold")
    ids = [rollout.actor_id for rollout in history.rollouts]
    for one in history.memory:
        who = f"rollout {ids.index(one.actor_id)}" if one.actor_id in ids else "another"
        used = (f"{size / 1e6:.0f}" for size in (one.first, one.most, one.last))
        told = "; ".join(one.told) or "none"
        table.add_row(f"{who} ({one.pid})", *used, f"{one.seconds:.0f} s", told)
    return table


def _numbers(history: History) -> Text:
    done, steps = history.deliveries, history.steps
    wall = (history.ended_at or history.started_at) - history.started_at
    text = Text(f"{len(steps)} of {history.steps_planned} steps in {wall:.0f} s")
    if steps:
        text.append(f", reward {steps[0].reward:.2f} -> {steps[-1].reward:.2f}")
        worst = max(step.logp_diff for step in steps)
        text.append(f", rollout and trainer logprobs differ by at most {worst:.1e}")
    text.append(
        f"\n{done.delivered} of {done.expected} requests came back, "
        f"{done.duplicated} twice, {done.stale} from stale weights"
    )
    return text


def _verdict(found: list[str]) -> list[Text]:
    if not found:
        return [
            Text("All well: every fault was found, named and cured, and the training never noticed.", "green")
        ]
    return [Text(f"- {sentence}", "red", no_wrap=False) for sentence in found]


def brief(text: str) -> str:
    """Return ``text`` on one line, with only the last two parts of each path."""
    return _PATH.sub(r"\1", " ".join(text.split()))


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)  # noqa: RUF001 - a dash for what nobody knows


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f} s"
