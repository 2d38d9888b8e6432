"""How a diagnosis looks: the cause first, then what to do, then where it stands and what came of it.

Colours and wrapping on a terminal, plain text elsewhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from rayguard.cli.logs.answer import found, nothing_failed, steps, sure
from rayguard.cli.terminal import printable, table
from rayguard.faults.quote import sentence
from rayguard.faults.signature import MIN_FRAGMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rayguard.logs.report import Evidence, Report

MAX_WIDTH = 100
_MIN_WIDTH = 20
_PIPE_WIDTH = 100_000  # lines stay whole for grep
_TYPED = re.compile(
    r"([A-Za-z_][\w.]*(?:Error|Exception|Timeout|Interrupt))(?:: (.*?))?(?: \([^()]*:\d+[^()]*\))?$"
)
_CAUSE, _TITLE, _DIM, _PLACE = "bold red", "bold", "dim", "cyan"


class DiagnosisPage:
    """Prints chapters to a terminal or a pipe."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        terminal = self._console.is_terminal
        self._console.width = min(self._console.width, MAX_WIDTH) if terminal else _PIPE_WIDTH

    def text(self, text: str, style: str = "", indent: int = 0) -> None:
        """Print one paragraph."""
        self._print(Text(printable(text), style=style), indent)

    def title(self, text: str) -> None:
        """Begin a chapter."""
        self._console.print()
        self.text(text, _TITLE)

    def point(self, text: str) -> None:
        """Print one point of a list; what stands in backticks is code."""
        body = Text(printable(text))
        body.highlight_regex(r"`[^`]{1,200}`", _PLACE)
        self._print(body, 4, Text("  - "))

    def fact(self, name: str, value: str) -> None:
        """Print a name and its value."""
        self._print(Text(printable(value)), 17, Text(f"  {name:<15}", style=_DIM))

    def quote(self, one: Evidence, *, kind: bool) -> None:
        """Print where a line stands, and the line."""
        head = Text(printable(f"{one.file}:{one.line}" if one.file else f"line {one.line}"), style=_PLACE)
        if kind and one.kind is not None:
            head.append(f"  {one.kind.value}", style="magenta")
        self._print(head, 2)
        self._print(Text(printable(one.quote)), 4)

    def links(self, links: Sequence[str]) -> None:
        """Print where others had the same."""
        if links:
            self.title("Others who had it")
        for link in links:
            self.text(link, indent=2)

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table; the last column takes what is left. Elsewhere columns are parted by tabs."""
        if not self._console.is_terminal:
            for row in rows:
                typer.echo("\t".join(map(printable, row)))
            return
        grid = table(self._console.width, *titles[:-1])
        grid.add_column(titles[-1], ratio=1, overflow="fold")
        for row in rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        self._console.print(grid)

    def _print(self, body: Text, indent: int, head: Text | None = None) -> None:
        """Print ``body`` with each of its lines indented; ``head`` stands before the first."""
        width = max(self._console.width - indent, _MIN_WIDTH)
        for number, line in enumerate(body.wrap(self._console, width, overflow="fold")):
            line.rstrip()
            before = head if head is not None and number == 0 else Text(" " * indent)
            self._console.print(before + line, soft_wrap=True)


def show_report(report: Report) -> None:
    """Print what failed, what to do, and why that is believed."""
    page, diagnosis = DiagnosisPage(), report.diagnosis
    if nothing_failed(report):
        _show_no_failure(page, report)
        return
    if not found(report):
        _show_unknown(page, report)
        return
    page.text(_headline(report), _CAUSE)
    page.text(
        f"{diagnosis.kind.value} (scope: {diagnosis.scope.value}), "
        f"{sure(diagnosis.confidence)} ({diagnosis.confidence:.2f}), {diagnosis.signature}",
        _DIM,
    )
    page.title("What to do")
    for step in (sentence(diagnosis.advice), *steps(diagnosis)):
        page.point(f"{step.rstrip('.')}.")
    _quotes(page, "Evidence", report.evidence, several=False)
    _quotes(page, "What followed from it", report.consequences, several=True)
    _quotes(page, "Also found, and to be looked at after it", report.others, several=True)
    page.links(diagnosis.links)


def _headline(report: Report) -> str:
    quote = report.evidence[0].quote if report.evidence else ""
    return f"{sentence(report.diagnosis.cause.removesuffix(f': {quote}')).rstrip('.')}."


def _quotes(page: DiagnosisPage, title: str, evidence: tuple[Evidence, ...], *, several: bool) -> None:
    if evidence:
        page.title(title)
        for one in evidence:
            page.quote(one, kind=several)


def _show_no_failure(page: DiagnosisPage, report: Report) -> None:
    page.text(f"{sentence(report.diagnosis.cause).rstrip('.')}.", _TITLE)
    page.text(f"{sentence(report.diagnosis.advice).rstrip('.')}.")


def _show_unknown(page: DiagnosisPage, report: Report) -> None:
    page.text("The catalog does not know this failure.", "bold yellow")
    _quotes(page, "The most telling lines", report.evidence, several=False)
    page.title("When you know the cause, teach it")
    quote = report.evidence[0].quote if report.evidence else report.diagnosis.cause.partition(": ")[2]
    for line in _LESSON.format(when=_when(quote)).splitlines():
        page.text(line, _DIM, indent=2)
    page.text("rayguard catalog check my.yaml && rayguard diagnose --catalog my.yaml LOG", indent=2)


_LESSON = """\
# my.yaml
signatures:
- id: mine.first
  kind: user_code
  scope: code
  cause: what happened, in half a sentence
  advice: what to do about it
  confidence: 0.9
  when: {{{when}}}"""


def _when(quote: str) -> str:
    """Return how a signature might know the line again: its type, and its longest words without numbers."""
    typed = _TYPED.match(quote)
    words = typed[2] or "" if typed else quote
    parts = re.split(r"['\"`\\]|\d+", words)
    fragment = max(parts, key=len).strip()[:60].strip()
    told = [f"types: {typed[1]}"] if typed else []
    if len(fragment) >= MIN_FRAGMENT or not told:
        told.append(f'text: "{fragment if len(fragment) >= MIN_FRAGMENT else "what it always prints"}"')
    return ", ".join(told)
