"""``rayguard run``: a command, and what became of it. What is done is ``rayguard.runner``'s.

All that is said goes to the error stream, since the output is the command's. What a dry run finds is the
answer, and goes to the output.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from pathlib import Path  # noqa: TC003 - Typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from rayguard.cli.terminal import clean, fail, many, one_line, printable, say
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from rayguard.preflight_checks.report import PreflightReport
    from rayguard.runner.dry_run import DryRun
    from rayguard.runner.plan import RunPlan
    from rayguard.runner.run import RunOptions
    from rayguard.runner.summary import RunSummary

OWN_ERROR = 125
_SAVE_EVERY = 20
RUN_WORDS = {"allow_interspersed_args": False}  # what follows the command's first word is the command's


def run(  # noqa: PLR0913 - one option each
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run, after `--`.", metavar="-- COMMAND...")
    ] = None,
    *,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often it is started again at most ...", metavar="N")
    ] = 3,
    within: Annotated[float, typer.Option(min=1, help="... within these seconds.", metavar="S")] = 3600.0,
    save_every: Annotated[
        int,
        typer.Option(min=1, help="Steps between checkpoints, where its framework makes none.", metavar="N"),
    ] = _SAVE_EVERY,
    no_save: Annotated[bool, typer.Option("--no-save", help="Switch no checkpoints on.")] = False,
    no_preflight: Annotated[bool, typer.Option("--no-preflight", help="Check nothing before.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start it whatever preflight finds.")] = False,
    retry_unknown: Annotated[
        bool,
        typer.Option(
            "--retry-unknown", help="It may run twice from its beginning: no checkpoint of it is known."
        ),
    ] = False,
    server: Annotated[
        bool, typer.Option("--server", help="It is a server: it must not end, and may always run again.")
    ] = False,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds to end after Ctrl-C or SIGTERM, before a kill.", metavar="S")
    ] = 30.0,
    look: Annotated[
        float, typer.Option(min=1, help="Seconds to prove a checkpoint whole and finite.", metavar="S")
    ] = 600.0,
    no_watch: Annotated[
        bool,
        typer.Option("--no-watch", help="Start a server again only when it ends, not when it serves nobody."),
    ] = False,
    silence: Annotated[
        float,
        typer.Option(
            min=1, help="Seconds without a token, requests running, before a server is ended.", metavar="S"
        ),
    ] = 300.0,
    no_plugin: Annotated[
        bool, typer.Option("--no-plugin", help="Leave Ray's workers without rayguard's plugin.")
    ] = False,
    dry_run: Annotated[
        Path | None,
        typer.Option(help="Start nothing: say what would be done about a run with this log.", metavar="LOG"),
    ] = None,
    as_json: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write what became of it to FILE, as one JSON line (-: stderr).", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Run a training command: checked before, diagnosed when it fails, started again where that helps.

    Started again with what avoids *this* failure, in the framework's own spelling, from the last checkpoint
    that is whole and finite; stopped at once, with the correction, where another start would fail alike.

    For example

    `rayguard run -- python3 -m verl.trainer.main config=c.yaml` for EasyR1; verl, TRL, ms-swift and OpenRLHF
    likewise,

    `rayguard run --max-restarts 5 --within 86400 -- swift rlhf --rlhf_type grpo ...` for a long night,

    `rayguard run -- CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen2.5-7B` for a server that is to stay up,

    `rayguard run --retry-unknown -- python train.py` for a script of your own that may begin anew,

    `rayguard run --dry-run train.log -- python3 -m verl.trainer.main config=c.yaml` for what would be done.

    Exit code: the command's own (128 + n where signal n ended it); 125 rayguard's own errors, preflight's
    too; 126, 127: the command cannot be executed, is not found.
    """
    from rayguard.recovery.budget import RestartBudget  # noqa: PLC0415 - `--help` need not wait for all this
    from rayguard.runner.checkpoint_look import newest_good  # noqa: PLC0415
    from rayguard.runner.machine import RunPolicy  # noqa: PLC0415
    from rayguard.runner.run import Run, RunOptions  # noqa: PLC0415
    from rayguard.runner.serving.patience import ServingPatience  # noqa: PLC0415

    try:
        plan, serves = _planned(command or (), save_every=None if no_save or dry_run else save_every)
        serves = serves or server
        options = RunOptions(
            policy=RunPolicy(
                budget=RestartBudget(max_restarts=max_restarts, within_s=within),
                known=plan.dialect is not None or retry_unknown or serves,
                serves=serves,
            ),
            may_repeat=retry_unknown or serves,
            plugin=not no_plugin,
            grace_s=grace,
            look_s=look,
            watch=None if no_watch else ServingPatience(silent_s=silence),
        )
        if dry_run is not None:
            _show_dry_run(plan, dry_run, options, as_json)
            return
        if not no_preflight:
            _check(plan, force=force)
    except ConfigError as error:
        fail(error, code=OWN_ERROR)
    for note in plan.notes:
        _tell(note)
    summary = Run(plan, options, newest_good, _tell).run()
    _show(summary)
    _write(summary.to_json(), as_json)
    raise typer.Exit(summary.code)


def _planned(words: list[str] | tuple[()], *, save_every: int | None) -> tuple[RunPlan, bool]:
    from rayguard.dialects.known import dialect_of  # noqa: PLC0415
    from rayguard.runner.plan import RunPlan, command_of, plan, serves  # noqa: PLC0415

    command = command_of(words)
    if serves(command):
        return RunPlan(command=command), True
    return plan(command, dialect_of(command), save_every=save_every), False


def _tell(text: str) -> None:
    try:
        say(f"rayguard run: {printable(text)}", error=True)
    except OSError:  # nobody reads it any more: the command is attended all the same, to its own exit code
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what is left in Python's buffer goes there


def _check(plan: RunPlan, *, force: bool) -> None:
    """Show what preflight finds; end where the command would fail of it."""
    from rayguard.runner.plan import checked  # noqa: PLC0415

    try:
        report = checked(plan.command)
    except ConfigError as error:  # the command may read what we cannot
        _tell(f"not checked before its start: {error}")
        return
    _show_findings(report)
    if not report and not force:
        fail(
            "the command would fail of this: correct it, or start it with --force",
            code=OWN_ERROR,
        )


def _show_findings(report: PreflightReport) -> None:
    for one in report.findings:
        if one.level.value == "note":
            continue
        _tell(f"{one.level.value}: {one.message} [{one.id}]")
        if one.write:
            _tell(f"  write {one.write}")


def _show(summary: RunSummary) -> None:
    """Say what became of it; nothing of a command that simply did its work."""
    if summary.code == 0 and len(summary.lives) < 2:  # noqa: PLR2004 - more than the first start
        return
    if len(summary.lives) > 1:
        _show_lives(summary)
    if summary.why:
        _tell(f"not started again: {summary.why}")
    if summary.advice:
        _tell(f"what to do: {summary.advice}")


def _show_lives(summary: RunSummary) -> None:
    from rayguard.runner.run import duration  # noqa: PLC0415

    restarts = many(len(summary.lives) - 1, "restart", "restarts")
    _tell(f"{restarts}, {duration(summary.lost_s)} lost, exit code {summary.code}")
    for number, life in enumerate(summary.lives, start=1):
        settings = f", with {' '.join(life.changed)}" if life.changed else ""
        place = f", from {life.checkpoint}" if life.checkpoint else ""
        cause = f": {life.kind}, {life.cause}" if life.cause else ""
        _tell(f"  {number}. {life.ended} after {duration(life.lasted_s)}{settings}{place}{cause}")


def _show_dry_run(plan: RunPlan, log: Path, options: RunOptions, as_json: Path | None) -> None:
    from rayguard.logs.files import find  # noqa: PLC0415
    from rayguard.runner.checkpoint_look import newest_good  # noqa: PLC0415
    from rayguard.runner.dry_run import dry_run  # noqa: PLC0415

    found = find([str(log)]).files
    if len(found) != 1:
        raise ConfigError(f"--dry-run reads one log; {log} is a folder of {len(found)}")
    would = dry_run(plan, found[0], options, newest_good)
    for line in _lines(would):
        say(clean(line))
    _write(would.to_json(), as_json)


def _lines(would: DryRun) -> list[str]:
    diagnosis = would.failure.diagnosis
    lines = [f"cause: {would.failure.cause}", f"  {diagnosis.kind.value} (scope: {diagnosis.scope.value})"]
    lines += [f"  line {one.line}: {one_line(one.quote)}" for one in would.failure.evidence[:1]]
    lines += [f"note: {one_line(note)}" for note in would.notes]
    if not would.words:
        return [*lines, f"would stop: {would.why}", f"what to do: {one_line(diagnosis.advice)}"]
    lines.append(f"would start it again: {would.why}")
    if would.changed:
        lines.append(f"  with {' '.join(would.changed)}")
    lines.append(f"  from {would.checkpoint or 'the beginning'}")
    environment = [f"{name}={shlex.quote(value)}" for name, value in would.environment.items()]
    return [*lines, f"  {' '.join([*environment, shlex.join(would.words)])}"]


def _write(value: dict[str, object], file: Path | None) -> None:
    if file is None:
        return
    line = json.dumps(value)
    if str(file) == "-":
        say(line, error=True)
        return
    try:
        file.write_text(f"{line}\n", encoding="utf-8")
    except OSError as error:  # what the command came to is not changed by it
        say(f"rayguard: cannot write {file}: {error.strerror}", error=True)
