"""An answer that is audited, and what chooses it: values and a role, for adapters and the audit alike.

What an audit is stands in ``rayguard.engine.audit``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class AuditedAnswer:
    """One answered greedy request.

    ``request`` is the adapter's own, ``tokens`` are those of the answer, made in ``took_s`` seconds.
    ``outdated`` says that the engine or its weights are others by now: then nobody can say what is right.
    """

    name: str
    request: object
    tokens: tuple[int, ...]
    took_s: float
    outdated: Callable[[], bool]


class Auditor(Protocol):
    """Whoever has a share of the answers made again."""

    def chooses(self, *, greedy: bool) -> bool:
        """Say whether the request that comes in now is one to audit. Called by one thread."""

    def take(self, answer: AuditedAnswer) -> None:
        """Take an answer to audit; never blocks."""
