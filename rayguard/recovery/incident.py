"""One fault from detection to closure, as people and machines read it.

The journal (``rayguard.recovery.journal``) keeps incidents; the guard attaches the one that explains a
final error to that error (``attach``), and a caller on the other side of Ray finds it (``incident_of``).
"""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from rayguard.harmless import harmless
from rayguard.redact import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.faults.diagnosis import Diagnosis
    from rayguard.faults.fault import Fault

_ATTRIBUTE = "__rayguard_incident__"
MAX_CHAIN = 16


class Outcome(str, Enum):
    """How an incident ended. ``OPEN`` in a journal means: not closed yet, or its process died."""

    OPEN = "open"
    RECOVERED = "recovered"
    ANSWERED = "answered"  # the caller got the error that was its own
    QUARANTINED = "quarantined"
    STATE_LOST = "state_lost"  # Ray began an actor anew, or it goes on from an older state: not recovered
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault: what, where, when, why, what was done, what it cost.

    Times ``*_at`` are wall-clock seconds, ``*_s`` durations in seconds. ``detect_s`` runs from the fault's
    own time stamp (the engine's record, the process's exit) to its detection, ``recover_s`` from
    detection to the moment the engine served again; ``resume_s``, where others went on with what was
    interrupted, until the first of it had its next token. None when unknown or not reached. ``tokens_lost``
    is None when nobody knows: the count died with its process, or the incident is still open.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    kind: str
    scope: str
    cause: str
    signature: str = "unknown"
    confidence: float = 0.0
    evidence: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()  # what followed from the cause: what the caller saw
    advice: str = ""
    target: str = ""  # class or engine name
    actor_id: str = ""
    job_id: str = ""
    node: str = ""
    pid: int = 0
    epoch: int = 0
    incarnation: int = 0
    detected_at: float = 0.0
    closed_at: float | None = None
    detect_s: float | None = None
    recover_s: float | None = None
    resume_s: float | None = None
    remedy: str = ""
    rung: int = 0
    settings: tuple[str, ...] = ()  # safe settings in force after the remedy
    requests: int = 0  # requests that were interrupted
    tokens_saved: int = 0
    tokens_lost: int | None = 0
    outcome: Outcome = Outcome.OPEN
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Take secrets and long quotes out: from here on it is written, sent and shown in many places."""
        for name in ("cause", "advice", "evidence", "consequences", "notes"):
            found = getattr(self, name)
            if isinstance(found, str):
                object.__setattr__(self, name, redacted(found))
            elif isinstance(found, tuple):
                clean = (redacted(one) if isinstance(one, str) else one for one in found)
                object.__setattr__(self, name, tuple(clean))

    @classmethod
    def of(cls, fault: Fault, diagnosis: Diagnosis) -> Incident:
        """Return the open incident that ``diagnosis`` makes of ``fault``; whose it is, the caller adds."""
        return cls(
            kind=diagnosis.kind.value,
            scope=diagnosis.scope.value,
            cause=diagnosis.cause,
            signature=diagnosis.signature,
            confidence=diagnosis.confidence,
            evidence=diagnosis.evidence,
            consequences=_followed(fault, diagnosis),
            advice=diagnosis.advice,
            detected_at=fault.at,
        )

    @property
    def tokens_told(self) -> str:
        """Say what became of the tokens, in the same words everywhere."""
        lost = "loss unknown" if self.tokens_lost is None else f"{self.tokens_lost} lost"
        return f"{self.tokens_saved} saved, {lost}"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON types; ``from_json`` is the inverse."""
        return {**dataclasses.asdict(self), "outcome": self.outcome.value}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Incident:
        """Rebuild an incident; unknown keys (of a newer version) are dropped, lists become tuples."""
        known = {f.name for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known
        }
        values["outcome"] = Outcome(values.get("outcome", Outcome.OPEN.value))
        return cls(**values)

    def sentence(self) -> str:
        """Say in one line what happened and what came of it."""
        cost = "" if self.recover_s is None else f" in {self.recover_s:.1f} s"
        came = f"{self.remedy or 'no remedy'}: {self.outcome.value}{cost}"
        if self.resume_s is not None:
            came += f"; the first of {self.requests} requests went on after {self.resume_s:.1f} s"
            came += f"; tokens: {self.tokens_told}"
        return f"{self.kind} ({self.scope}) in {self.target}: {self.cause}; {came}"


def _followed(fault: Fault, diagnosis: Diagnosis) -> tuple[str, ...]:
    with harmless("diagnosis"):
        from rayguard.faults.diagnose import consequences  # noqa: PLC0415 - loads the catalog, only on failure

        return consequences(fault, diagnosis)
    return ()


def attach(error: BaseException, incident: Incident) -> None:
    """Hang ``incident`` on ``error`` so that it survives pickling; silently skip errors without a dict.

    As plain JSON types: whoever reads the error may not have rayguard (a driver of a cluster that has).
    """
    try:
        setattr(error, _ATTRIBUTE, incident.to_json())
    except (AttributeError, TypeError):
        return
    if hasattr(error, "add_note"):  # Python 3.11+: shows in every traceback
        error.add_note(f"rayguard incident {incident.id}: {incident.sentence()}")


def incident_of(error: BaseException) -> Incident | None:
    """Return the incident attached to ``error`` or to anything in its chain, Ray's wrappers included."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return None
        found = getattr(link, _ATTRIBUTE, None)
        if isinstance(found, dict):
            return Incident.from_json(found)
        wrapped = getattr(link, "cause", None)
        link = wrapped if isinstance(wrapped, BaseException) else (link.__cause__ or link.__context__)
    return None
