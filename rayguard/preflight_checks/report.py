"""All checks of a job: ``rayguard.preflight(...)`` and what ``rayguard preflight`` shows."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rayguard.dialects import easyr1, options
from rayguard.dialects.dialect import Command
from rayguard.dialects.job_settings import JobSettings, settings_of
from rayguard.dialects.known import dialect_of
from rayguard.errors import ConfigError
from rayguard.preflight_checks import batches, lengths, memory, place, ports, versions, weight_sync
from rayguard.preflight_checks.finding import Level, PreflightFinding
from rayguard.preflight_checks.listening import port_facts
from rayguard.preflight_checks.machine import MachineFacts, this_machine
from rayguard.preflight_checks.model import model_facts
from rayguard.preflight_checks.node_versions import connected_here, of_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Spelling = Callable[[str, object], str]  # how a framework writes a setting

_ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELL = frozenset({"&&", "||", ";", "|", "&"})
_UNEVEN = frozenset({"verl", "OpenRLHF"})  # they pad, or split unevenly: a size that does not divide is fine


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """What was found, the worst first. False as a condition where the job would fail."""

    findings: tuple[PreflightFinding, ...] = ()
    settings: JobSettings

    @property
    def errors(self) -> tuple[PreflightFinding, ...]:
        """What the job fails of."""
        return tuple(one for one in self.findings if one.level is Level.ERROR)

    def __bool__(self) -> bool:
        """Say whether no error was found."""
        return not self.errors


def preflight(
    command: str | Sequence[str] | None = None,
    /,
    *,
    config: str | os.PathLike[str] | None = None,
    address: str | None = None,
    **settings: Any,
) -> PreflightReport:
    """Check a job before it starts: a command, a file of settings, settings by plain names, or together.

    ``rayguard.preflight("python3 -m verl.trainer.main config=c.yaml trainer.n_gpus_per_node=6")``, or
    ``rayguard.preflight(prompts=512, gpus=6, micro_update=4)``; names given here win over the command's.
    ``JobSettings`` has the names. Starts nothing, downloads nothing, and loads neither torch nor vLLM.

    Where a cluster is named (``address``, ``RAY_ADDRESS``), or this process is connected to one, each of its
    nodes is asked for its versions, by a task without CPUs: seconds, 45 at most.

    Args:
        command: As a shell takes it, or word by word; ``NAME=value`` before the program is its environment.
        config: A file of settings of EasyR1, where no command names it.
        address: Of a cluster, as ``ray.init`` takes it: "auto", "10.0.0.1:6379", "ray://10.0.0.1:10001".
        settings: By plain name, e.g. ``gpu_bytes`` for a machine that is not this one.

    Raises:
        ConfigError: It cannot be read, or a setting makes no sense.
    """
    job, spell, environment = _job(_words(command), config)
    if settings:
        kept = {name: getattr(job, name) for name in JobSettings.__dataclass_fields__ if name != "spelled"}
        if isinstance(settings.get("ports"), dict):  # one by one, as the others
            settings["ports"] = {**job.ports, **settings["ports"]}
        job = settings_of({**kept, **settings}, spelled=job.spelled)
    machine = this_machine({**os.environ, **environment})
    return _checked(job, machine, spell, _cluster(address, machine))


def _cluster(address: str | None, machine: MachineFacts) -> versions.ClusterVersions | None:
    """Return the versions of the cluster that is meant, None where none is."""
    if address is not None and (not isinstance(address, str) or not address.strip()):
        raise ConfigError(f"address must be that of a Ray cluster, e.g. 'auto'; got {address!r}")
    if address is None and connected_here():
        return of_cluster(None)
    named = address or machine.environment.get("RAY_ADDRESS", "").strip()
    if not named or named.startswith(("http://", "https://")) or named == "local":
        return None  # a dashboard, or a cluster that is yet to be
    return of_cluster(named)


def _words(command: str | Sequence[str] | None) -> list[str]:
    if not isinstance(command, str):
        return [str(word) for word in command or ()]
    try:
        return shlex.split(command, comments=True)
    except ValueError as error:
        raise ConfigError(f"the command cannot be read: {error}") from None


def _job(
    words: list[str], config: str | os.PathLike[str] | None
) -> tuple[JobSettings, Spelling, dict[str, str]]:
    """Return settings, how their framework writes one, and the environment that a command sets."""
    environment: dict[str, str] = {}
    if words[:1] == ["env"]:
        words = words[1:]
    while words and _ASSIGNMENT.match(words[0]):
        name, _, environment[name] = words[0].partition("=")
        words = words[1:]
    wrong = next((word for word in words if word in _SHELL), None)
    if wrong is not None:
        raise ConfigError(f"a command is one program with its arguments; got {wrong!r} among them")
    if config is not None:
        if words:
            raise ConfigError("give a command or config=, not both: the command names its own file")
        words = ["-m", easyr1.MODULE, f"config={os.fspath(config)}"]
    return *_spoken(words, environment), environment


def _spoken(words: list[str], environment: dict[str, str]) -> tuple[JobSettings, Spelling]:
    command = Command(words=tuple(words), environment=environment)
    dialect = dialect_of(command)
    if dialect is not None:
        return dialect.settings(command), dialect.write
    if words:
        return options.read(words, environment), options.write
    return JobSettings(), _plainly


def _plainly(name: str, value: object) -> str:
    return f"{name}={value!r}"


def _checked(
    job: JobSettings, machine: MachineFacts, spell: Spelling, cluster: versions.ClusterVersions | None
) -> PreflightReport:
    model = None if job.model is None else model_facts(job.model, job.tokenizer)
    found = [
        *(
            one
            for one in batches.check(job)
            if job.framework not in _UNEVEN or not one.id.startswith("batch.")
        ),
        *lengths.check(job, model),
        *memory.check(job, model, machine),
        *place.check(job, machine),
        *weight_sync.check(job, machine),
        *(ports.check(job, port_facts(set(job.ports.values()))) if job.ports else ()),
        *(versions.check(cluster) if cluster is not None else ()),
    ]
    written = [
        replace(one, write=" ".join(spell(name, value) for name, value in one.settings.items()))
        for one in found
    ]
    return PreflightReport(findings=tuple(sorted(written, key=lambda one: _ORDER[one.level])), settings=job)
