"""How incidents and status pages look: tables of at most 100 columns on a terminal, plain lines elsewhere.

Which ones are shown, is ``rayguard.cli``. What they say is foreign text (messages of exceptions), so it never
reaches the terminal with control characters, nor Rich as markup.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.recovery.status import EnginePage, Page

MAX_WIDTH = 100
_CAUSE_CHARS = 300  # of a cause in a table; the whole one is a command away
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OUTCOME_STYLES = {Outcome.FAILED: "red", Outcome.OPEN: "yellow", Outcome.RECOVERED: "green"}
_LIVES = {True: "alive", False: "ended", None: "elsewhere"}


def show_incidents(incidents: list[Incident]) -> None:
    """Print a table, or a line for each where the output is no terminal."""
    console = _terminal()
    if console is None:
        for incident in incidents:
            typer.echo(incident_line(incident))
        return
    table = _table(console)
    table.add_column("incident", no_wrap=True)
    table.add_column("what happened", ratio=3, overflow="fold")
    table.add_column("what was done", min_width=34, overflow="fold")  # restart_engine+chunked_prefill_off
    for incident in incidents:
        what = Text(f"{_where(incident)}\n", style="bold")
        what.append(_shortened(_line(incident.cause), _CAUSE_CHARS), style="not bold")
        done = Text(f"{_line(incident.remedy) or 'nothing yet'}\n")
        done.append(_came_of(incident), style=_OUTCOME_STYLES.get(incident.outcome, ""))
        short = f"{_shortened(_line(incident.id), 16)}\n{_when(incident.detected_at, '%m-%d %H:%M:%S')}"
        table.add_row(Text(short), what, done)
    console.print(table)


def incident_line(incident: Incident) -> str:
    """Return one line for logs, pipes and ``--follow``."""
    return f"{_when(incident.detected_at)} {_line(incident.id)} {_line(incident.sentence())}"


def show_incident(incident: Incident) -> None:
    """Print everything known about one incident."""
    typer.echo(f"incident {_line(incident.id)}: {_where(incident)}")
    for name, text in _facts(incident):
        typer.echo(f"  {name:<14}{text}")
    chapters = {
        "Cause": (incident.cause,),
        "Evidence": incident.evidence,
        "What followed": incident.consequences,
        "What to do": (incident.advice,) if incident.advice else (),
        "Notes": incident.notes,
    }
    for title, paragraphs in chapters.items():
        if paragraphs:
            typer.echo(f"\n{title}")
        for paragraph in paragraphs:
            first, *more = _clean(paragraph).splitlines() or [""]
            typer.echo("\n".join([f"  - {first}", *(f"    {line}" for line in more)]))


def show_pages(pages: list[Page]) -> None:
    """Print a row for each engine of each process, or a line where the output is no terminal."""
    console = _terminal()
    rows = [(page, engine) for page in pages for engine in (page.engines or (None,))]
    if console is None:
        for page, engine in rows:
            typer.echo(_page_line(page, engine))
        return
    table = _table(console)
    table.add_column("process", ratio=3, overflow="fold")
    table.add_column("engine", ratio=3, overflow="fold")
    table.add_column("safe settings", ratio=3, overflow="fold")
    table.add_column("weights", overflow="fold")
    table.add_column("running", justify="right")
    table.add_column("tokens", justify="right")
    for page, engine in rows:
        table.add_row(*(Text(cell) for cell in _page_cells(page, engine)), style="" if page.alive else "dim")
    console.print(table)


def _terminal() -> Console | None:
    console = Console(highlight=False)
    if not console.is_terminal:
        return None
    console.width = min(console.width, MAX_WIDTH)
    return console


def _table(console: Console) -> Table:
    return Table(box=box.SIMPLE, width=console.width, padding=(0, 1, 0, 0), pad_edge=False)


def _where(incident: Incident) -> str:
    target = f" in {_line(incident.target)}" if incident.target else ""
    return f"{_line(incident.kind)} ({_line(incident.scope)}){target}"


def _came_of(incident: Incident) -> str:
    took = "" if incident.recover_s is None else f" in {incident.recover_s:.1f} s"
    tokens = f"\ntokens: {incident.tokens_told}" if incident.tokens_saved or incident.tokens_lost != 0 else ""
    return incident.outcome.value + took + tokens


def _facts(incident: Incident) -> Iterator[tuple[str, str]]:
    late = "" if incident.detect_s is None else f", {incident.detect_s:.2f} s after the fault"
    yield "detected", _when(incident.detected_at) + late
    yield "signature", f"{_line(incident.signature)} (confidence {incident.confidence:.2f})"
    yield "remedy", _line(incident.remedy) or "nothing yet"
    yield "outcome", _came_of(incident).partition("\n")[0]
    if incident.settings:
        yield "safe settings", _line(", ".join(incident.settings))
    if incident.requests:
        yield "interrupted", f"{incident.requests} requests"
    if incident.requests or incident.tokens_lost is None:
        yield "tokens", incident.tokens_told
    yield "process", f"{incident.pid} on {_line(incident.node) or 'this node'}"
    yield "engine", f"epoch {incident.epoch}, rung {incident.rung}"
    if incident.actor_id:
        ids = f"{incident.actor_id}, incarnation {incident.incarnation}, job {incident.job_id or 'unknown'}"
        yield "actor", _line(ids)


def _page_cells(page: Page, engine: EnginePage | None) -> tuple[str, ...]:
    process = f"{_line(page.who.actor_class) or 'process'}\n{page.pid} {_LIVES[page.alive]} {_ago(page.at)}"
    if page.last_incident:
        process += f"\nlast incident {_line(page.last_incident)}"
    if engine is None:
        return (process, "none", "", "", "", "")
    state = "serving" if engine.serving else "not serving"
    return (
        process,
        f"{_line(engine.name)} {state}\nepoch {engine.epoch}, rung {engine.rung}, {engine.restarts} restarts",
        _line(", ".join(engine.settings)) or "none needed",
        _line(engine.weight_version) or "-",
        str(engine.requests_running),
        str(engine.tokens_generated),
    )


def _page_line(page: Page, engine: EnginePage | None) -> str:
    words = [
        f"{_line(page.who.actor_class) or 'process'} pid={page.pid} {_LIVES[page.alive]}",
        f"incarnation={page.who.incarnation}",
    ]
    if engine is not None:
        words += [
            f"engine={_line(engine.name)} {'serving' if engine.serving else 'not-serving'}",
            f"epoch={engine.epoch} rung={engine.rung} restarts={engine.restarts}",
            f"settings={_line(','.join(engine.settings)) or '-'}",
            f"weights={_line(engine.weight_version) or '-'}",
            f"running={engine.requests_running} tokens={engine.tokens_generated}",
        ]
    words.append(f"last_incident={_line(page.last_incident) or '-'} updated={_when(page.at)}")
    return " ".join(words)


def _when(at: float, form: str = "%Y-%m-%dT%H:%M:%S") -> str:
    return time.strftime(form, time.localtime(at)) if at > 0 else "unknown time"


def _ago(at: float) -> str:
    return f"{max(0.0, time.time() - at):.0f} s ago"


def _shortened(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def _line(text: str) -> str:
    return " ".join(_clean(text).split())


def _clean(text: str) -> str:
    return _CONTROL.sub("", text)
