"""The ``rayguard flight`` command: the last minutes of a process, dead or alive.

The command only; how it looks is ``rayguard.cli.flight_views``. Reads files, starts nothing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayguard.cli.cluster import Home  # noqa: TC001 - Typer reads it
from rayguard.cli.terminal import fail, show_json

if TYPE_CHECKING:
    from rayguard.process.flight.recording import Recording


def flight(
    process: Annotated[
        str | None, typer.Argument(help="A pid, or a recording; all of them without.", metavar="PID|FILE")
    ] = None,
    *,
    seconds: Annotated[float, typer.Option(min=1, help="How far back to look.", metavar="S")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object; a list without PID.")] = False,
    home: Home = None,
) -> None:
    """Show what a guarded process did last: memory, steps, calls, garbage collections, its last words.

    For example

    `rayguard flight` lists the recordings of this machine,

    `rayguard flight 4711` shows the last minute of a process, also after its SIGKILL,

    `rayguard flight 4711 --seconds 600 --json | jq '.memory[-1]'` is for a script.
    """
    from rayguard.home import home as default_home  # noqa: PLC0415 - `rayguard --version` need not wait for it

    where = (home or default_home()).expanduser().absolute()
    if process is None:
        _show_all(where, as_json=as_json)
        return
    found = _found(process, where)
    if as_json:
        show_json(_plain(found))
        return
    from rayguard.cli.flight_views import show_recording  # noqa: PLC0415

    show_recording(found, seconds)


def _show_all(home: Path, *, as_json: bool) -> None:
    from rayguard.cli.flight_views import show_list  # noqa: PLC0415
    from rayguard.process.flight.reader import recordings  # noqa: PLC0415

    found = [one for path in recordings(home) if (one := _read(path)) is not None]
    if as_json:
        show_json([_plain(one) for one in found])
    elif found:
        show_list(found)
    else:
        typer.echo(f"No process has left a recording in {home / 'flight'}.")


def _found(process: str, home: Path) -> Recording:
    from rayguard.process.flight.reader import recording_of  # noqa: PLC0415

    if process.isdecimal():
        found, where = recording_of(home, int(process)), f"of a process {process} in {home / 'flight'}"
    else:
        found, where = _read(Path(process)), f"in {process}"
    if found is None:
        fail(f"there is no recording {where}; `rayguard flight` lists those there are")
    return found


def _read(path: Path) -> Recording | None:
    from rayguard.process.flight.reader import read_recording  # noqa: PLC0415

    try:
        return read_recording(path)
    except OSError as error:
        typer.echo(f"rayguard: cannot read it: {error}", err=True)
        return None


def _plain(recording: Recording) -> dict[str, object]:
    return {
        **dataclasses.asdict(recording),
        "running": [dataclasses.asdict(one) for one in recording.running],
        "steps_per_s": recording.steps_per_s,
        "sentence": recording.sentence(),
    }
