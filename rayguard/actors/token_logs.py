"""Tokens that outlive a rollout actor's process: this life keeps a log, and takes up what the last one left.

The log itself is ``rayguard.engine.tokens.log``; what goes into it and how a request goes on from it is
``rayguard.engine.vllm.inflight``. Another node cannot read it: there a pool has what was told to it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.actors.life.incarnation import ActorMemory
from rayguard.engine.tokens.log import TokenLog, log_path, read_left, read_log, sweep
from rayguard.harmless import harmless
from rayguard.home import home
from rayguard.private import open_private

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.engine.generated import Generated

_PART = "tokens"


def keep_tokens(engine: object, actor_id: str, *, go_on: bool = True) -> TokenLog | None:
    """Begin to log the tokens in flight on ``engine``; None where nothing inside it is known.

    ``go_on``: requests that come again go on from what the last life left.
    """
    inflight = getattr(engine, "inflight", None)
    if inflight is None:
        return None
    with harmless("token_log"):
        memory, folder = ActorMemory(actor_id, _PART), home() / "tokens"
        before = str(memory.load().get("path", ""))
        if before and go_on:
            left = read_log(Path(before))
            inflight.left({name: (logged.fingerprint, logged.generated) for name, logged in left.items()})
        os.close(open_private(folder))  # made, and ours alone
        log = TokenLog(log_path(folder))
        inflight.keep(log)
        memory.save({"path": str(log.path)})
        sweep(folder)
        return log
    return None


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a dead process left of the requests that ran in it."""

    tokens: Mapping[str, Generated] = field(default_factory=dict)  # by request id
    questions: Mapping[str, str] = field(default_factory=dict)  # the fingerprints of those requests
    lost: int | None = None  # tokens that had reached it and are nowhere; None: nobody knows

    def answer_to(self, request_id: str, question: str) -> Generated | None:
        """Return what it has of a request, if that asked the same (empty: whatever it asked).

        Of an id that was used before, and now again, the log may still have what was said then.
        """
        same = question in {"", self.questions.get(request_id, "")}
        return self.tokens.get(request_id) if same else None


def left_in(path: str) -> LeftBehind:
    """Return what a dead process of this node left in its log."""
    if not path:
        return LeftBehind()
    found, lost = read_left(Path(path))
    questions = {name: logged.fingerprint for name, logged in found.items()}
    return LeftBehind({name: logged.generated for name, logged in found.items()}, questions, lost)
