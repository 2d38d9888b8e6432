"""How incidents and status pages look: tables of at most 100 columns on a terminal, plain lines elsewhere.

Which ones are shown, is ``rayguard.cli.app``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from rayguard.cli import terminal
from rayguard.cli.terminal import clean, moment, one_line, say, table
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group
    from rich.table import Table

    from rayguard.recovery.status import Page
    from rayguard.recovery.tally import EngineTally

MAX_WIDTH = 100
_CAUSE_CHARS = 300  # of a cause in a table; the whole one is a command away
_OUTCOME_STYLES = {Outcome.FAILED: "red", Outcome.OPEN: "yellow", Outcome.RECOVERED: "green"}
_LIVES = {True: "alive", False: "ended", None: "elsewhere"}


def show_incidents(incidents: list[Incident]) -> None:
    """Print a table, or a line for each where the output is no terminal."""
    terminal.show(MAX_WIDTH, map(incident_line, incidents), partial(_table, incidents))


def _table(incidents: list[Incident], width: int) -> Table:
    from rich.text import Text  # noqa: PLC0415 - a terminal alone needs it

    grid = table(width)
    grid.add_column("incident", no_wrap=True)
    grid.add_column("what happened", ratio=3, overflow="fold")
    grid.add_column("what was done", min_width=34, overflow="fold")  # restart_engine+chunked_prefill_off
    for incident in incidents:
        what = Text(f"{_where(incident)}\n", style="bold")
        what.append(_shortened(one_line(incident.cause), _CAUSE_CHARS), style="not bold")
        done = Text(f"{one_line(incident.remedy) or 'nothing yet'}\n")
        done.append(_came_of(incident), style=_OUTCOME_STYLES.get(incident.outcome, ""))
        short = f"{_shortened(one_line(incident.id), 16)}\n{moment(incident.detected_at, '%m-%d %H:%M:%S')}"
        grid.add_row(Text(short), what, done)
    return grid


def incident_line(incident: Incident) -> str:
    """Return one line for logs, pipes and ``--follow``."""
    return f"{moment(incident.detected_at)} {one_line(incident.id)} {one_line(incident.sentence())}"


def show_incident(incident: Incident) -> None:
    """Print everything known about one incident."""
    say(f"incident {one_line(incident.id)}: {_where(incident)}")
    for name, text in _facts(incident):
        say(f"  {name:<14}{text}")
    chapters = {
        "Cause": (incident.cause,),
        "Evidence": incident.evidence,
        "What followed": incident.consequences,
        "What to do": (incident.advice,) if incident.advice else (),
        "Notes": incident.notes,
    }
    for title, paragraphs in chapters.items():
        if paragraphs:
            say(f"\n{title}")
        for paragraph in paragraphs:
            first, *more = clean(paragraph).splitlines() or [""]
            say("\n".join([f"  - {first}", *(f"    {line}" for line in more)]))


def show_pages(pages: list[Page]) -> None:
    """Print a row for each engine of each process, or a line where the output is no terminal.

    Below it, what Ray's changes have switched off.
    """
    rows = [(page, engine) for page in pages for engine in (page.engines or (None,))]
    lines = (_page_line(page, engine) for page, engine in rows)
    terminal.show(MAX_WIDTH, chain(lines, _off_lines(pages)), partial(_pages, pages, rows))


def _pages(pages: list[Page], rows: list[tuple[Page, EngineTally | None]], width: int) -> Group:
    from rich.console import Group  # noqa: PLC0415 - a terminal alone needs it
    from rich.text import Text  # noqa: PLC0415

    grid = table(width)
    for title in ("process", "engine", "safe settings"):
        grid.add_column(title, ratio=3, overflow="fold")
    grid.add_column("weights", overflow="fold")
    for title in ("running", "tokens"):
        grid.add_column(title, justify="right")
    for page, engine in rows:
        grid.add_row(*(Text(cell) for cell in _page_cells(page, engine)), style="" if page.alive else "dim")
    return Group(grid, *map(Text, _off_lines(pages)))


def _off_lines(pages: list[Page]) -> Iterator[str]:
    """Yield what is off in processes that live, and why: once for all that say the same."""
    off: dict[tuple[str, str], list[str]] = defaultdict(list)
    for page in pages:
        for item in page.off.items() if page.alive is not False else ():
            off[item].append(str(page.pid))
    for (name, why), pids in off.items():
        yield f"{one_line(name)}: off, {one_line(why)} (pid {', '.join(pids)})"


def _where(incident: Incident) -> str:
    target = f" in {one_line(incident.target)}" if incident.target else ""
    return f"{one_line(incident.kind)} ({one_line(incident.scope)}){target}"


def _came_of(incident: Incident) -> str:
    took = "" if incident.recover_s is None else f" in {incident.recover_s:.1f} s"
    tokens = f"\ntokens: {incident.tokens_told}" if incident.tokens_saved or incident.tokens_lost != 0 else ""
    return incident.outcome.value + took + tokens


def _facts(incident: Incident) -> Iterator[tuple[str, str]]:
    late = "" if incident.detect_s is None else f", {incident.detect_s:.2f} s after the fault"
    yield "detected", moment(incident.detected_at) + late
    yield "signature", f"{one_line(incident.signature)} (confidence {incident.confidence:.2f})"
    yield "remedy", one_line(incident.remedy) or "nothing yet"
    yield "outcome", _came_of(incident).partition("\n")[0]
    if incident.settings:
        yield "safe settings", one_line(", ".join(incident.settings))
    if incident.requests:
        went_on = "" if incident.resume_s is None else f"; the first went on after {incident.resume_s:.2f} s"
        yield "interrupted", f"{incident.requests} requests{went_on}"
    if incident.requests or incident.tokens_lost is None:
        yield "tokens", incident.tokens_told
    yield "process", f"{incident.pid} on {one_line(incident.node) or 'this node'}"
    yield "engine", f"epoch {incident.epoch}, rung {incident.rung}"
    if incident.actor_id:
        ids = f"{incident.actor_id}, incarnation {incident.incarnation}, job {incident.job_id or 'unknown'}"
        yield "actor", one_line(ids)


def _page_cells(page: Page, engine: EngineTally | None) -> tuple[str, ...]:
    age_s = max(0.0, time.time() - page.at)
    name, state = one_line(page.who.actor_class) or "process", _LIVES[page.alive]
    process = f"{name}\n{page.pid} {_care(page)} {state} {age_s:.0f} s ago"
    if page.last_incident:
        process += f"\nlast incident {one_line(page.last_incident)}"
    if engine is None:
        return (process, "none", "", "", "", "")
    lives = f"epoch {engine.epoch}, rung {engine.rung}, {engine.restarts} restarts"
    return (
        process,
        f"{one_line(engine.name)} {one_line(engine.state)}\n{lives}",
        one_line(", ".join(engine.settings)) or "none needed",
        one_line(engine.weight_version) or "-",
        str(engine.requests_running),
        str(engine.tokens_generated),
    )


def _care(page: Page) -> str:
    """Return what rayguard does for a process."""
    return "watched" if page.who.watched else "guarded"


def _page_line(page: Page, engine: EngineTally | None) -> str:
    words = [
        f"{one_line(page.who.actor_class) or 'process'} pid={page.pid} {_LIVES[page.alive]}",
        f"incarnation={page.who.incarnation}",
    ]
    if engine is not None:
        words += [
            f"engine={one_line(engine.name)} {one_line(engine.state.replace(' ', '-'))}",
            f"epoch={engine.epoch} rung={engine.rung} restarts={engine.restarts}",
            f"settings={one_line(','.join(engine.settings)) or '-'}",
            f"weights={one_line(engine.weight_version) or '-'}",
            f"running={engine.requests_running} tokens={engine.tokens_generated}",
        ]
    words.append(
        f"last_incident={one_line(page.last_incident) or '-'} updated={moment(page.at)} {_care(page)}"
    )
    return " ".join(words)


def _shortened(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
