"""What is known of a framework's command line: the one interface that preflight and ``rayguard run`` ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.dialects.job_settings import JobSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command as it would be started: its words, what it adds to the environment, its folder."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A command with other settings: what was written into it, and what its framework has no word for."""

    command: Command
    written: tuple[str, ...] = ()  # as they stand in the command: "worker.rollout.enforce_eager=true"
    refused: Mapping[str, str] = field(default_factory=dict)  # the plain name of a setting, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace:
    """Where a command's framework keeps checkpoints, and whether it makes any."""

    folder: Path  # absolute
    pattern: str  # of one checkpoint below it, as Path.glob takes it: "global_step_*", "v*/checkpoint-*"
    saves: bool  # as the command stands: False where it never saves, or at the end only
    resumes_newest: bool  # started again as it stands, it goes on from the newest by itself


class Dialect(Protocol):
    """One framework. Pure but for reading files that a command names; nothing of it is imported."""

    @property
    def name(self) -> str:
        """Its name as its users write it: "EasyR1", "verl", "TRL", "ms-swift", "OpenRLHF"."""
        ...

    def speaks(self, command: Command) -> bool:
        """Say whether ``command`` starts this framework."""
        ...

    def settings(self, command: Command) -> JobSettings:
        """Return a command's settings by plain names, with the framework's defaults for what is not said.

        Raises:
            ConfigError: A file that it names cannot be read, or a setting makes no sense.
        """
        ...

    def write(self, name: str, value: object) -> str:
        """Return one setting, by its plain name, as the framework's command line has it."""
        ...

    def with_settings(self, command: Command, settings: Mapping[str, object]) -> Changed:
        """Return the command with these settings, by plain names: so that they win over what stands there."""
        ...

    def checkpoints(self, command: Command) -> CheckpointPlace | None:
        """Return where its checkpoints lie, None where that cannot be known (a script of the user's own)."""
        ...

    def resumed(self, command: Command, checkpoint: Path | None) -> Changed:
        """Return the command that goes on from ``checkpoint``; None: from the beginning, whatever lies there.

        The beginning is what its user said: a checkpoint that the command loads from elsewhere stays.
        """
        ...

    def saving(self, command: Command, every: int) -> Changed:
        """Return the command with a checkpoint every ``every`` steps."""
        ...
