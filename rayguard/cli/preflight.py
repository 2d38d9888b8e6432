"""``rayguard preflight``: what a job would fail of. The checks are ``rayguard.preflight_checks``'s."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayguard.cli.terminal import fail, many, one_line, show, show_json
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Group

    from rayguard.preflight_checks.finding import PreflightFinding
    from rayguard.preflight_checks.report import PreflightReport

_SIZE = re.compile(r"(?i)\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*\Z")
_MAX_WIDTH = 120
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def preflight(  # noqa: PLR0913 - one option each
    command: Annotated[
        list[str] | None, typer.Argument(help="The job's command, after `--`.", metavar="[-- COMMAND...]")
    ] = None,
    *,
    config: Annotated[str | None, typer.Option(help="A file of EasyR1's settings.", metavar="FILE")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs on each node.", metavar="N")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes.", metavar="N")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Of each GPU, where it is not this machine's.", metavar="80GiB")
    ] = None,
    host_memory: Annotated[str | None, typer.Option(help="Of each node.", metavar="512GiB")] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            "-a",
            metavar="A",
            help="Of a Ray cluster whose nodes' versions to compare: auto, HOST:PORT, or ray://HOST:10001. "
            "Without it RAY_ADDRESS, or none.",
        ),
    ] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting by its plain name; wins over the command.", metavar="NAME=VALUE"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check a job before it starts: batches, lengths, memory, weights, launcher, ports, this machine.

    Starts nothing; of a cluster that is named, each node is asked for its versions.

    Each finding has the corrected setting in the framework's own spelling. The exit code is 1 where the job
    would fail, 2 where the command cannot be read.

    For example

    `rayguard preflight -- python3 -m verl.trainer.main config=c.yaml trainer.n_gpus_per_node=6` for EasyR1,

    `rayguard preflight --set prompts=512 --set answers=5 --gpus 6` for settings of your own,

    `rayguard preflight --gpu-memory 80GiB --json -- python train.py` for another machine, for a script,

    `rayguard preflight --address auto` for the versions of a cluster's nodes.
    """
    from rayguard.dialects.values import value_of  # noqa: PLC0415 - `--help` need not wait
    from rayguard.preflight_checks.report import preflight as check  # noqa: PLC0415

    settings: dict[str, Any] = {"gpus": gpus, "nodes": nodes}
    for word in chosen or ():
        name, equals, value = word.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set needs NAME=VALUE; got {word!r}")
        settings[name] = value_of(value)
    settings |= {
        "gpu_bytes": _bytes("--gpu-memory", gpu_memory),
        "host_bytes": _bytes("--host-memory", host_memory),
    }
    said = {name: value for name, value in settings.items() if value is not None}
    if not command and config is None and not said and not address:
        raise typer.BadParameter(
            "name the job: rayguard preflight -- python3 -m verl.trainer.main config=c.yaml"
        )
    try:
        report = check(command or None, config=config, address=address, **said)
    except ConfigError as error:
        fail(error, code=2)
    if as_json:
        show_json({"ok": bool(report), "findings": [asdict(one) for one in report.findings]})
    else:
        _show(report)
    if not report:
        raise typer.Exit(1)


def _bytes(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    found = _SIZE.match(text)
    if found is None or not float(found[1]):
        raise typer.BadParameter(f"{option} must be a size like 80GiB; got {text!r}")
    base = 1024 if found[3] or not found[2] else 1000
    return int(float(found[1]) * base ** _POWERS[found[2].lower()])


def _show(report: PreflightReport) -> None:
    show(_MAX_WIDTH, _lines(report), lambda _: _picture(report))


def _lines(report: PreflightReport) -> Iterator[str]:
    for one in report.findings:
        yield f"{one.level.value}: {one_line(one.message)} [{one.id}]"
        if one.write:
            yield f"  write {one_line(one.write)}"
    yield _sum(report.findings)


def _picture(report: PreflightReport) -> Group:
    from rich.console import Group  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts: list[Text | Padding] = []
    for one in report.findings:
        head = Text(f"{one.level.value}: ", style=_STYLES[one.level.value])
        parts.append(
            head.append(one_line(one.message), "not bold default").append(f" [{one.id}]", "not bold dim")
        )
        if one.write:
            parts.append(Padding(Text(f"write {one_line(one.write)}", style="green"), (0, 0, 0, 2)))
    return Group(*parts, Text(_sum(report.findings), style="" if report else "bold"))


def _sum(findings: Sequence[PreflightFinding]) -> str:
    levels = [one.level.value for one in findings]
    errors, warnings = levels.count("error"), levels.count("warning")
    if not errors and not warnings:
        return "Nothing was found that the job would fail of."
    return f"{many(errors, 'error', 'errors')}, {many(warnings, 'warning', 'warnings')}."
