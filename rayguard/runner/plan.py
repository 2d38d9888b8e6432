"""A command as its framework reads it: what is switched on at first, what may be changed, how it goes on.

Starts nothing. A command that no dialect knows has no settings, and no checkpoints that anybody knows of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.dialects.dialect import Command
from rayguard.engine.settings import SAFE_SETTINGS
from rayguard.errors import ConfigError
from rayguard.preflight_checks.machine import this_machine
from rayguard.preflight_checks.report import PreflightReport, preflight
from rayguard.runner.correction import Correction, JobFacts, corrections
from rayguard.runner.resume import Start, own_good, start, there
from rayguard.runner.serving.address import is_known_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rayguard.dialects.dialect import CheckpointPlace, Dialect
    from rayguard.faults.diagnosis import Diagnosis
    from rayguard.preflight_checks.finding import PreflightFinding
    from rayguard.runner.machine import NoStart
    from rayguard.runner.resume import FindsGood

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def command_of(words: Sequence[str]) -> Command:
    """Return the command that ``words`` are; ``NAME=value`` before the program is its environment.

    Raises:
        ConfigError: There is no program.
    """
    rest = list(words)
    environment: dict[str, str] = {}
    if rest[:1] == ["env"] and rest[1:] and _ASSIGNMENT.match(rest[1]):
        rest = rest[1:]
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, environment[name] = rest.pop(0).partition("=")
    if not rest or not rest[0]:
        raise ConfigError("name the command to run: rayguard run -- python train.py")
    if any("\0" in word for word in words):
        raise ConfigError("a command's words hold no NUL")
    return Command(words=tuple(rest), environment=environment)


def serves(command: Command) -> bool:
    """Say whether a command is a server, which runs until it is told to end."""
    return is_known_server(command.words)


def checked(command: Command) -> PreflightReport:
    """Return what preflight says of ``command``.

    Raises:
        ConfigError: It cannot be read.
    """
    return preflight([*(f"{name}={value}" for name, value in command.environment.items()), *command.words])


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A command with changes: what stands in it now, and what its framework has no word for."""

    command: Command
    written: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What is known of one command. ``before``: the checkpoints that lay there when it was first started."""

    command: Command
    dialect: Dialect | None = None
    place: CheckpointPlace | None = None
    before: Mapping[Path, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def on_ray(self) -> bool:
        """Say whether its framework starts its workers on Ray."""
        if self.dialect is None:
            return False
        try:
            return self.dialect.settings(self.command).launcher == "ray"
        except ConfigError:
            return False

    def changed(self, made: Sequence[Correction]) -> Planned:
        """Return the command with all of ``made``, the later ones over the earlier.

        Raises:
            ConfigError: One of them makes no sense to its framework.
        """
        settings: dict[str, object] = {}
        for one in made:
            settings |= one.settings
        if self.dialect is None or not settings:
            return Planned(command=self.command)
        changed = self.dialect.with_settings(self.command, settings)
        return Planned(command=changed.command, written=changed.written, refused=changed.refused)

    def corrections(self, diagnosis: Diagnosis, made: Sequence[Correction]) -> tuple[Correction, ...]:
        """Return what may be changed for ``diagnosis`` beside what is ``made``, and can be written."""
        if self.dialect is None:
            return ()
        try:
            now = self.changed(made).command
            facts = JobFacts(
                settings=self.dialect.settings(now),
                findings=_findings(now),
                gpus=this_machine(dict(now.environment)).gpus,
            )
            found = corrections(diagnosis, facts)
            return tuple(one for one in found if self._can_write(one, now))
        except ConfigError:  # the user's own mistake, most often: then its diagnosis says so
            return ()

    def goes_on(
        self, made: Sequence[Correction], find: FindsGood, *, within_s: float, made_nothing: bool
    ) -> Start | NoStart:
        """Return how the command is started again with ``made``: from its last good checkpoint."""
        command = self.changed(made).command
        if self.place is None or self.dialect is None:
            return start(self.dialect, command, None, None, made_nothing=made_nothing)
        seen = own_good(find, self.place, self.before, within_s)
        return start(self.dialect, command, self.place, seen, made_nothing=made_nothing)

    def _can_write(self, one: Correction, now: Command) -> bool:
        assert self.dialect is not None
        try:
            changed = self.dialect.with_settings(now, one.settings)
        except ConfigError:
            return False
        # Half of a safe setting is none. What stands there is no change; a default is written all the same:
        # the version that runs may have another one.
        half = one.name in SAFE_SETTINGS and bool(changed.refused)
        before, after = sorted(now.words), sorted(changed.command.words)
        return (
            bool(changed.written)
            and not half
            and (before, now.environment) != (after, changed.command.environment)
        )


def _findings(command: Command) -> tuple[PreflightFinding, ...]:
    try:
        return checked(command).findings
    except ConfigError:
        return ()


def plan(command: Command, dialect: Dialect | None, *, save_every: int | None) -> RunPlan:
    """Return the plan for ``command``; checkpoints are switched on where its framework makes none.

    Raises:
        ConfigError: A file that it names cannot be read.
    """
    place = None if dialect is None else dialect.checkpoints(command)
    notes: tuple[str, ...] = ()
    if dialect is not None and place is not None and not place.saves and save_every is not None:
        saving = dialect.saving(command, save_every)
        if saving.written:
            command = saving.command
            place = dialect.checkpoints(command)
            written = " ".join(saving.written)
            notes = (
                f"{dialect.name} saves no checkpoints as it is set: {written} is added (--no-save leaves it)",
            )
        else:
            why = "; ".join(saving.refused.values())
            notes = (f"{dialect.name} saves no checkpoints as it is set, and cannot be told to: {why}",)
    return RunPlan(command=command, dialect=dialect, place=place, before=there(place), notes=notes)
