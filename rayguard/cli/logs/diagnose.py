"""``rayguard diagnose``: what a log says, for a person or a program.

What it reads and decides is ``rayguard.logs``; how it looks is ``rayguard.cli.logs.diagnose_views``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from rayguard.cli.logs.catalog import Files, catalog_or_exit
from rayguard.cli.terminal import fail, many, show_json
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rayguard.faults.catalog import Catalog
    from rayguard.logs.files import FoundLogs

UNKNOWN, NO_FAILURE = 3, 4  # exit codes
_PROGRESS_BYTES = 50_000_000


def diagnose(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Logs, folders of them, a Ray session; - is standard input.", metavar="FILE|DIR|-"
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    jsonl: Annotated[
        str | None,
        typer.Option(
            help="Objects with `id` and `text`, one a line (- is standard input); answers one object a line.",
            metavar="FILE",
        ),
    ] = None,
    files: Files = None,
) -> None:
    """Say what failed first, what to do about it, and where it stands.

    For example

    `rayguard diagnose train.log` reads one log of many processes, also compressed,

    `rayguard diagnose /tmp/ray` reads the logs of the latest Ray session of this machine,

    `rayguard diagnose node1/ node2/ driver.log` finds the cause among the files of several nodes,

    `kubectl logs job/train --all-containers | rayguard diagnose` reads a pipe,

    `rayguard diagnose --json train.log | jq -r .remedy` is for a script.

    Where a text says only that a Ray worker died, its own file of the session is read too, if it lies here.

    Exit code: 0 found, 3 unknown, 4 no failure seen, 2 bad usage.
    """
    _write_anything()
    if jsonl is not None:
        if inputs or as_json:
            raise typer.BadParameter("--jsonl reads its own file, so it takes no other input and no --json")
        _answer_lines(jsonl, catalog_or_exit(files))
        return
    if not inputs and sys.stdin.isatty():
        raise typer.BadParameter("name a log, a folder or - for standard input: rayguard diagnose train.log")
    _answer_one(_find(inputs or ["-"]), catalog_or_exit(files), as_json=as_json)


def _write_anything() -> None:
    """Let foreign characters through a terminal or locale that has no name for them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _find(inputs: list[str]) -> FoundLogs:
    from rayguard.logs.files import find  # noqa: PLC0415 - `--help` need not wait for it

    try:
        found = find(inputs)
    except ConfigError as error:
        fail(error, code=2)
    if not found.files:
        fail("; ".join(found.notes), code=2)
    return found


def _answer_one(found: FoundLogs, catalog: Catalog, *, as_json: bool) -> None:
    from rayguard.cli.logs.answer import answer, nothing_failed, without_secrets_in  # noqa: PLC0415
    from rayguard.cli.logs.answer import found as known  # noqa: PLC0415
    from rayguard.logs.many_files import Across  # noqa: PLC0415
    from rayguard.logs.scan import Anchors  # noqa: PLC0415
    from rayguard.logs.worker_files import read_on  # noqa: PLC0415

    across = Across(catalog, Anchors(catalog))
    with _progress(sum(file.size_bytes for file in found.files)) as advance:
        report = across.diagnose(found.files, found.notes, advance)
        report = without_secrets_in(read_on(across, found.files, found.notes, report))
    for note in found.notes:
        typer.echo(note, err=True)
    if as_json:
        show_json({**answer(report), "files": len(found.files), "notes": found.notes})
    else:
        from rayguard.cli.logs.diagnose_views import show_report  # noqa: PLC0415

        show_report(report)
    if not known(report):
        raise typer.Exit(NO_FAILURE if nothing_failed(report) else UNKNOWN)


@contextlib.contextmanager
def _progress(size: int) -> Iterator[Callable[[int], object] | None]:
    """Show a bar on a terminal while much is read."""
    if size < _PROGRESS_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=size)
        yield lambda count: progress.advance(task, count)


def _answer_lines(path: str, catalog: Catalog) -> None:
    """Answer each line by itself; what is wrong with a line is its answer."""
    wrong = 0
    with contextlib.ExitStack() as opened:
        try:
            lines = sys.stdin.buffer if path == "-" else opened.enter_context(Path(path).open("rb"))
        except (OSError, ValueError) as error:
            fail(f"cannot read {path}: {error}", code=2)
        for said in _answers(lines, catalog):
            wrong += "error" in said
            sys.stdout.write(f"{json.dumps(said)}\n")
            sys.stdout.flush()
    if wrong:
        fail(f"{many(wrong, 'line was', 'lines were')} not answered: see `error` in the output", code=2)


def _answers(lines: IO[bytes], catalog: Catalog) -> Iterator[dict[str, object]]:
    from rayguard.cli.logs.answer import answer, without_secrets_in  # noqa: PLC0415
    from rayguard.logs.report import diagnose_text  # noqa: PLC0415

    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        asked, wrong = _asked(line)
        if wrong:
            yield {"id": asked.get("id"), "error": f"line {number}: {wrong}"}
        else:
            yield {"id": asked.get("id"), **answer(without_secrets_in(diagnose_text(asked["text"], catalog)))}


def _asked(line: bytes) -> tuple[dict[str, Any], str]:
    """Return the object that a line holds, and what is wrong with it."""
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {}, f"no JSON: {error}"
    if not isinstance(asked, dict):
        return {}, "no JSON object"
    return asked, "" if isinstance(asked.get("text"), str) else "needs a string under `text`"
