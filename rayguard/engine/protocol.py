"""The one seam to an inference engine.

An ``Engine`` is one life of one engine: built once, ended once, never restarted in place. The supervisor
(``rayguard.engine.supervisor``) replaces a dead one by a new one, which is built knowing its predecessor;
``serve`` is how it takes over what that one was doing. Real adapters: ``rayguard.engine.vllm`` (AsyncLLM
and LLM), ``rayguard.engine.plain`` (any other object). A fake ships in ``rayguard.testing.fakes``; all
pass the same contract tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rayguard.engine.weights.canary import Canary
    from rayguard.engine.weights.version import WeightReceipt, Weights
    from rayguard.faults.fault import ProcessExit, Role
    from rayguard.process.identity import ProcessId


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process of an engine and what it is there for."""

    role: Role
    process: ProcessId


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What an engine has done so far; read by the watchdog from another thread.

    ``turns`` grows with everything that comes back from the engine, tokens or not (a long prefill
    reports its steps); ``tokens`` counts generated tokens; ``running`` the ids of unanswered requests.
    """

    turns: int = 0
    tokens: int = 0
    running: tuple[str, ...] = ()
    held: tuple[str, ...] = ()  # suspects that wait for their turn
    # Only in what ``closely`` returns:
    beginning: int | None = None  # of those running: without a token from this life; None: nobody knows
    ahead: int = 0  # prompt tokens that may be computed for them before the next turn
    computed: int = 0  # prompt tokens of requests that were seen to begin in this life; only grows
    asked: int = 0  # calls to the engine that are no requests and not answered yet (a weight push)
    unread: int = 0  # what the engine has sent and the owner has not taken
    paused: bool = False  # by its owner: requests wait for as long as that pleases


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a successor took over. Tokens of requests that had to begin afresh are lost."""

    requests: int = 0
    tokens_saved: int = 0
    tokens_lost: int = 0
    afresh: Mapping[str, str] = field(default_factory=dict)  # request id -> why it began afresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What was decided about the interrupted requests; a successor carries it out."""

    quarantined: Mapping[str, str] = field(default_factory=dict)  # request id -> why
    suspects: tuple[str, ...] = ()  # run one at a time


class Engine(Protocol):
    """One life of one inference engine."""

    @property
    def handle(self) -> Any:
        """The object that the user's code works with; outlives this life where the adapter can heal."""

    @property
    def is_async(self) -> bool:
        """Whether ``handle`` belongs to an event loop."""

    @property
    def loop(self) -> Any:
        """The running event loop that reads what the engine sends; None where no loop does."""
        return None

    @property
    def life(self) -> object:
        """What a failure names to say which life it saw fail; a report about an older one is late."""

    @property
    def heals(self) -> bool:
        """Whether a successor continues interrupted requests, so that callers never see the fault."""

    def facts(self) -> Mapping[str, Any]:
        """Return the settings that the engine really uses, by argument name."""

    def processes(self) -> tuple[EngineProcess, ...]:
        """Return the engine's own processes, core first; empty for one that lives in this process."""

    def exits(self) -> tuple[ProcessExit, ...]:
        """Return those of its processes that are gone, with exit codes where they can be known."""

    def progress(self) -> Progress:
        """Return what came out so far. Cheap, from any thread."""

    def closely(self) -> Progress:
        """Return the progress and what the engine is doing. For the watch alone, twice a second."""
        return self.progress()

    def interrupt(self, error: Exception) -> None:
        """Wake every caller that waits on this engine with ``error``. From any thread, never blocks."""

    def close(self, *, polite_s: float, force_s: float) -> tuple[EngineProcess, ...]:
        """End it to the last process: politely for ``polite_s`` seconds, then by force.

        Returns the processes that would not die.
        """

    def push(self, weights: Weights, *, deadline_s: float) -> Sequence[WeightReceipt]:
        """Load ``weights`` and return what each rank reports to have now.

        Raises:
            WeightsError: They did not arrive, or the engine cannot take any.
            RecoveryTimeoutError: The deadline passed.
        """

    def receipts(self, *, deadline_s: float) -> Sequence[WeightReceipt]:
        """Return what each rank reports to have now; none where something may have changed it unseen."""

    def canary(self, *, deadline_s: float) -> Canary | None:  # noqa: ARG002 - for those that can
        """Return what it answers to the canary's prompt; None where it cannot, or not cheaply.

        Raises:
            TimeoutError: The deadline passed.
        """
        return None

    def can_push(self) -> bool:
        """Whether ``push`` can be called now (an engine on an event loop needs that loop first)."""

    def serve(self, verdicts: Verdicts, *, deadline_s: float) -> Carried:
        """Start serving: take over handle and unanswered requests of the life before, if there was one."""

    def give_up(self) -> None:
        """There will be no next life: let callers see this one as dead."""
