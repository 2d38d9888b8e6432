"""A report as an object for programs, and what to do about it in one string for a person.

How it looks on a terminal is ``rayguard.cli.logs.diagnose_views``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.engine.settings import EngineSettings
from rayguard.faults.counsel import NO_FAILURE
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.faults.quote import sentence
from rayguard.redact import without_secrets

if TYPE_CHECKING:
    from rayguard.faults.signature import Signature
    from rayguard.logs.report import Evidence, Report

# What is started anew. Nothing is where the same code would fail again: that is corrected first.
RESTART = {
    Scope.REQUEST: "Nothing needs a restart: answer this one request with its error",
    Scope.ENGINE: "Restart the engine; its process and the job can stay",
    Scope.PROCESS: "Restart the process (with Ray: its actor); the job can stay",
    Scope.GROUP: "Restart all ranks of the group together: none of them can go on alone",
    Scope.NODE: "Go on with another node; leave this one out until it was looked at",
    Scope.JOB: "Restart the job from its last checkpoint",
    Scope.CODE: "Correct the code first: as it is, it fails again",
    Scope.UNKNOWN: "Find the cause first: the catalog does not know this failure",
}
_JOB_AS_IT_IS = "Correct the job's settings first: as they are, it fails again"
_NO_BLIND_RESTART = frozenset(
    {Kind.CONFIG_INVALID, Kind.BATCH_INDIVISIBLE, Kind.USER_CODE, Kind.DEPENDENCY_MISMATCH}
)
_SURE = ((0.95, "almost certain"), (0.85, "very likely"), (0.7, "likely"), (0.5, "perhaps"))

_OF_SIGNATURE = ("cause", "advice", "cures", "retry_same_settings", "deterministic", "poisoned", "links")


def steps(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return what to do, as sentences: what to restart, with which settings."""
    if diagnosis.signature == NO_FAILURE:
        return ("Nothing needs a restart",)
    scope, again = diagnosis.scope, diagnosis.retry_same_settings and not diagnosis.deterministic
    if scope in (Scope.UNKNOWN, Scope.REQUEST, Scope.CODE):
        return (RESTART[scope],)
    if diagnosis.kind in _NO_BLIND_RESTART or (scope is Scope.JOB and not again):
        return (_JOB_AS_IT_IS,)
    sentences = [RESTART[scope]]
    if diagnosis.poisoned:
        sentences.append("The process that saw it must end: its state cannot be trusted")
    if again:
        sentences.append("The same settings may be tried again")
    elif scope is Scope.NODE:
        sentences.append("On this node it fails again until that is put right")
    else:
        sentences.append("Change the settings first: the same ones fail again")
    if diagnosis.cures:
        sentences.append(f"Known to avoid it: {', '.join(spelled(cure) for cure in diagnosis.cures)}")
    return tuple(sentences)


def spelled(cure: str) -> str:
    """Return a safe setting with what it means to vLLM: ``eager (enforce_eager=True)``."""
    changed = EngineSettings(applied=(cure,)).overrides({})
    return f"{cure} ({', '.join(f'{name}={value}' for name, value in changed.items())})"


def remedy(diagnosis: Diagnosis) -> str:
    """Return the whole of what to do in one string."""
    advice = sentence(diagnosis.advice)
    return " ".join(f"{text.rstrip('.')}." for text in (*steps(diagnosis), advice) if text)


def sure(confidence: float) -> str:
    """Return a confidence in words."""
    return next((word for least, word in _SURE if confidence >= least), "a guess")


def without_secrets_in(report: Report) -> Report:
    """Return ``report`` as it may be shown: a log is pasted into a public thread with what was said of it."""
    diagnosis = report.diagnosis
    said = replace(
        diagnosis, cause=without_secrets(diagnosis.cause), advice=without_secrets(diagnosis.advice)
    )
    return replace(
        report,
        diagnosis=said,
        evidence=_without_secrets(report.evidence),
        consequences=_without_secrets(report.consequences),
        others=_without_secrets(report.others),
    )


def _without_secrets(quotes: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    return tuple(replace(one, quote=without_secrets(one.quote)) for one in quotes)


def answer(report: Report) -> dict[str, object]:
    """Return everything about ``report`` as plain JSON values."""
    diagnosis = report.diagnosis
    return {
        **plain(diagnosis),
        "confidence": round(diagnosis.confidence, 3),
        "signature": diagnosis.signature,
        "outcome": "found" if found(report) else "no_failure" if nothing_failed(report) else "unknown",
        "remedy": remedy(diagnosis),
        "evidence": [_place(one) for one in report.evidence],
        "consequences": [_place(one) for one in report.consequences],
        "others": [_place(one) for one in report.others],
    }


def plain(one: Diagnosis | Signature) -> dict[str, object]:
    """Return what a diagnosis has of its signature as plain JSON values."""
    kept = {name: getattr(one, name) for name in _OF_SIGNATURE}
    return {"kind": one.kind.value, "scope": one.scope.value, **kept}


def found(report: Report) -> bool:
    """Say whether the catalog knows the failure."""
    return report.diagnosis.kind is not Kind.UNKNOWN


def nothing_failed(report: Report) -> bool:
    """Say whether the text tells of no failure at all."""
    return report.diagnosis.signature == NO_FAILURE


def _place(one: Evidence) -> dict[str, object]:
    kind = {} if one.kind is None else {"kind": one.kind.value}
    return {"file": one.file, "line": one.line, "quote": one.quote, **kind}
