"""Why a command failed: from what it printed, Ray's logs, the incidents that its text names, and its end.

The text of the command comes first. What names no cause is looked for where it may stand: in the files of the
Ray session that began with the command, in incidents of rayguard's own, in what the kernel counted.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.faults.catalog_in_use import catalog_in_use
from rayguard.faults.diagnose import diagnose
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.faults.fault import Fault, ProcessExit, Role
from rayguard.faults.quote import cut
from rayguard.harmless import harmless
from rayguard.logs.files import find
from rayguard.logs.many_files import Across
from rayguard.logs.scan import Anchors
from rayguard.logs.worker_files import read_on
from rayguard.process.death_cause.killer import HOST_OOM, DeathEvidence, who_killed
from rayguard.process.flight.readings import Machine
from rayguard.recovery.incident import Outcome
from rayguard.recovery.journal import default_journal
from rayguard.redact import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rayguard.faults.catalog import Catalog
    from rayguard.logs.files import LogFile
    from rayguard.logs.report import Evidence, Report
    from rayguard.process.flight.readings import MachineReading
    from rayguard.recovery.incident import Incident
    from rayguard.runner.ending import Ending

_SESSION = re.compile(r"session_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)_\d+_\d+")
_RAYS = Path("/tmp/ray")  # noqa: S108 - Ray's own folder
_USAGE = re.compile(rb"(?mi)^usage: ")
_REFUSED = re.compile(rb"(?mi)^(?:[\w. /-]{1,80}: )?error: ")
_REFUSED_CODE = 2
_CAUSE_CHARS = 400
_KILLED, _EXIT_CONFIDENCE = 9, 0.75
# What a process raises, or prints and goes on; nobody is killed by another for it.
_RAISED = frozenset(
    {
        Kind.SCHEDULER_ASSERTION,
        Kind.ENGINE_INTERNAL_ERROR,
        Kind.BATCH_INDIVISIBLE,
        Kind.CONFIG_INVALID,
        Kind.REQUEST_INVALID,
        Kind.WEIGHT_SYNC_FAILED,
        Kind.NUMERIC_NAN,
        Kind.USER_CODE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailure:
    """The verdict on one failed life of a command. ``refused``: it printed how it is used, and no more."""

    diagnosis: Diagnosis
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Evidence, ...] = ()
    refused: bool = False
    notes: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """Return what failed, in one line and without secrets."""
        return redacted(cut(self.diagnosis.cause, _CAUSE_CHARS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known of a life beside its output. ``before``: what the machine showed as it began."""

    ending: Ending
    began_at: float  # wall clock
    pid: int = 0
    last_words: bytes = b""
    before: MachineReading | None = None


def failure_of(logs: Sequence[LogFile], life: Circumstances) -> RunFailure:
    """Return why the command failed whose output is ``logs``."""
    catalog, notes = catalog_in_use(), list[str]()
    across = Across(catalog, Anchors(catalog))
    report = read_on(across, logs, notes, across.diagnose(logs, notes))
    if _is_open(report):
        report = _with_session(across, logs, notes, report, life.began_at)
    diagnosis, outlived = report.diagnosis, _is_outlived(report, life.ending)
    if _is_open(report) or outlived:
        told = _told_of(life, across, catalog)
        nothing_known = outlived or diagnosis.kind is Kind.UNKNOWN
        diagnosis = told or (_of_end(diagnosis, life) if nothing_known else diagnosis)
    return RunFailure(
        diagnosis=diagnosis,
        evidence=() if outlived else report.evidence,
        consequences=report.consequences,
        refused=_is_refused(life),
        notes=tuple(notes),
    )


def _is_open(report: Report) -> bool:
    return report.causeless or report.diagnosis.kind is Kind.UNKNOWN


def _is_outlived(report: Report, ending: Ending) -> bool:
    """Say whether what was printed cannot have brought about the end: it was killed later, by another."""
    return ending.signal == _KILLED and report.said and report.diagnosis.kind in _RAISED


def _is_refused(life: Circumstances) -> bool:
    """Say whether a command that was misspelt printed how it is used, and no more."""
    said = life.last_words
    return life.ending.returncode == _REFUSED_CODE and bool(_USAGE.search(said) and _REFUSED.search(said))


def _with_session(
    across: Across, logs: Sequence[LogFile], notes: list[str], report: Report, since: float
) -> Report:
    """Return what the logs of the Ray session say that began with the command, where there is one of it."""
    sessions = [path for path in _sessions() if _begun(path) >= since - 1.0]
    if len(sessions) != 1:
        return report
    with suppress(ConfigError):
        more = [one for one in find([str(sessions[0])]).files if one.written_at >= since]
        fuller = across.diagnose([*logs, *more], notes) if more else report
        return report if _is_open(fuller) else fuller
    return report


def _sessions() -> Iterator[Path]:
    for root in dict.fromkeys((Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray", _RAYS)):  # noqa: S108
        with suppress(OSError):
            yield from (path for path in root.glob("session_2*") if path.is_dir())


def _begun(session: Path) -> float:
    """Return when a Ray session began, by its name; 0 where it does not say."""
    named = _SESSION.match(session.name)
    return datetime.strptime(named[1], "%Y-%m-%d_%H-%M-%S").astimezone().timestamp() if named else 0.0


def _told_of(life: Circumstances, across: Across, catalog: Catalog) -> Diagnosis | None:
    """Return the verdict of the first incident since the command began that its text names."""
    with harmless("incidents of a run"):
        text = life.last_words.decode("utf-8", "replace")
        pids = {*across.scene.gone, *across.scene.processes}
        for one in default_journal().read():
            if one.detected_at >= life.began_at and _is_named(one, text, pids):
                return _diagnosed(one, catalog)
    return None


def _is_named(one: Incident, text: str, pids: set[str]) -> bool:
    named = one.id in text or (bool(one.actor_id) and one.actor_id in text) or str(one.pid) in pids
    return (
        named
        and one.outcome is not Outcome.RECOVERED
        and one.kind != Kind.UNKNOWN.value
        and one.confidence >= _EXIT_CONFIDENCE
    )


def _diagnosed(one: Incident, catalog: Catalog) -> Diagnosis | None:
    known = catalog.named(one.signature)
    with suppress(ValueError):  # of a newer version
        verdict = Diagnosis(
            signature=one.signature,
            kind=Kind(one.kind),
            scope=Scope(one.scope),
            cause=one.cause,
            confidence=one.confidence,
            evidence=one.evidence,
            advice=one.advice,
        )
        if known is None:
            return verdict
        return replace(
            verdict,
            cures=known.cures,
            retry_same_settings=known.retry_same_settings,
            deterministic=known.deterministic,
            settings_help=known.settings_help,
        )
    return None


def _of_end(unknown: Diagnosis, life: Circumstances) -> Diagnosis:
    """Return what the end alone tells, where it was by a signal."""
    number = life.ending.signal
    if number is None:
        said = f"nobody said why; {unknown.cause.partition('; ')[2] or unknown.cause}"
        return replace(unknown, cause=said)
    exited = ProcessExit(role=Role.DRIVER, pid=life.pid, exitcode=-number)
    told = diagnose(Fault(role=Role.DRIVER, operation="run", exits=(exited,)))
    if number != _KILLED:
        return replace(told, cause=f"nobody said why; {life.ending}")
    killer = who_killed(_evidence(life, number))
    verdict = replace(told, cause=f"it {killer.how}", evidence=killer.evidence)
    if killer.kind != HOST_OOM:
        return verdict
    return replace(
        verdict,
        kind=Kind.HOST_OOM,
        signature="run.host_oom",
        retry_same_settings=False,
        confidence=killer.confidence,
    )


def _evidence(life: Circumstances, number: int) -> DeathEvidence:
    before, now = life.before, Machine().read()
    counts = (None, None) if before is None else (before.group_kills, before.node_kills)
    later = [
        None if was is None or is_now is None else max(0, is_now - was)
        for was, is_now in zip(counts, (now.group_kills, now.node_kills), strict=True)
    ]
    return DeathEvidence(
        pid=life.pid, exitcode=-number, group_kills=later[0], node_kills=later[1], recorded=False
    )
