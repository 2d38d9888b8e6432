"""The one seam to an inference engine.

An ``Engine`` is one life of one engine: built once, ended once, never restarted in place. The supervisor
(``rayguard.engine.supervision.supervisor``) replaces a dead one by a new one, which is built knowing its
predecessor; ``serve`` is how it takes over what that one was doing. Real adapters: ``rayguard.engine.vllm``
(AsyncLLM and LLM), ``rayguard.engine.plain`` (any other object). A fake ships in ``rayguard.testing.fakes``;
all pass the same contract tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rayguard.engine.deadline import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from rayguard.engine.audited_answer import AuditedAnswer, Auditor
    from rayguard.engine.weights.canary import Canary
    from rayguard.engine.weights.changes import WeightChanges
    from rayguard.engine.weights.layout import Layout
    from rayguard.engine.weights.version import WeightReceipt, Weights
    from rayguard.faults.fault import ProcessExit, Role
    from rayguard.process.identity import ProcessId

    Report = Callable[[Exception, object], Future[None]]  # of a failure, and the life that it was seen in


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
    inside: Mapping[int, str] = field(default_factory=dict)  # calls that are not answered yet, by number
    calls: tuple[str, ...] = ()  # to the engine that are no requests and may change it, not answered yet
    reads: tuple[str, ...] = ()  # calls that change nothing, not answered yet
    just_ended: tuple[str, ...] = ()  # calls after whose answer next to nothing came
    # Only in what ``closely`` returns:
    beginning: int | None = None  # of those running: without a token from this life; None: nobody knows
    ahead: int = 0  # prompt tokens that may be computed for them before the next turn
    computed: int = 0  # prompt tokens of requests that were seen to begin in this life; only grows
    asked: int = 0  # calls to the engine that are no requests and not answered yet (a weight push)
    unread: int = 0  # what the engine has sent and the owner has not taken
    paused: bool = False  # by its owner: requests wait for as long as that pleases


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What an engine does for its owner: it serves, or its owner stopped it by ``call`` at ``since``."""

    state: str  # "serving", "in a call", "paused", "asleep" (its memory is somebody else's meanwhile)
    call: str = ""
    since: float = 0.0  # monotonic


SERVING = Standing(state="serving")


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
    calls: Mapping[str, str] = field(default_factory=dict)  # that are not made again -> why
    doubt: str = ""  # why the tokens so far may be wrong: who has shown none of them begins afresh


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptableEngine:
    """What another process needs to go on with an engine's processes (``rayguard.engine.adoption.lease``)."""

    core: ProcessId
    arguments: str  # a digest of what it was built with
    input_address: str
    output_address: str
    ready: bytes


class Engine(Protocol):
    """One life of one inference engine; its answers here are of one of which nothing is known."""

    @property
    def handle(self) -> object:
        """The object that the user's code works with; outlives this life where the adapter can heal."""

    @property
    def frontend(self) -> object:
        """What reaches this very life: ``handle`` once it serves, and before that an object of its kind."""
        return self.handle

    @property
    def is_async(self) -> bool:
        """Whether ``handle`` belongs to an event loop."""
        return False

    @property
    def one_thread(self) -> bool:
        """Whether one thread at a time may use ``handle``."""
        return False

    def left(self, error: BaseException) -> None:  # noqa: ARG002 - for those that are for one thread
        """Put down what ``error`` interrupted in the calling thread: nobody waits for that any more."""
        return

    @property
    def loop(self) -> object:
        """The running event loop that reads what the engine sends; None where no loop does."""
        return None

    @property
    def life(self) -> object:
        """What a failure names to say which life it saw fail; a report about an older one is late."""

    def facts(self) -> Mapping[str, object]:
        """Return the settings that the engine really uses, by argument name."""
        return {}

    def adoptable(self) -> AdoptableEngine | None:
        """Return what another process needs to go on with its processes; None where none can."""
        return None

    def layout(self) -> Layout:
        """Return dtype and shape of the tensors that its model was built from; empty: nobody knows."""
        return {}

    def processes(self) -> tuple[EngineProcess, ...]:
        """Return the engine's own processes, core first; empty for one that lives in this process."""
        return ()

    def exits(self) -> tuple[ProcessExit, ...]:
        """Return those of its processes that are gone, with exit codes where they can be known."""
        return ()

    def progress(self) -> Progress:
        """Return what came out so far. Cheap, from any thread."""
        return Progress()

    def closely(self) -> Progress:
        """Return the progress and what the engine is doing. For the watch alone, twice a second."""
        return self.progress()

    def standing(self) -> Standing:
        """Return what it does for its owner now. Cheap, from any thread."""
        return SERVING

    def interrupt(self, error: Exception) -> None:  # noqa: ARG002 - for those that know callers
        """Wake every caller that waits on this engine with ``error``. From any thread, never blocks."""
        return

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

    def replay(self, push: Callable[[Any], object], *, deadline_s: float) -> object:
        """Let the user's own ``push`` put weights into ``frontend``, and return what it returns.

        Raises:
            TimeoutError: The deadline passed.
            Exception: What ``push`` raises.
        """
        return bounded(lambda: push(self.frontend), deadline_s, "rayguard-replay")

    def follow(self, changes: WeightChanges) -> None:  # noqa: ARG002 - for those that see calls
        """Enter in ``changes`` what the user's own calls do to the weights, and refuse requests as it says.

        Called before ``serve``.
        """
        return

    def receipts(self, *, deadline_s: float) -> Sequence[WeightReceipt]:  # noqa: ARG002 - for those that can
        """Return what each rank reports to have now; none where something may have changed it unseen."""
        return ()

    def canary(self, *, deadline_s: float, closely: bool = False) -> Canary | None:  # noqa: ARG002 - as above
        """Return what it answers to the canary's prompt; None where it cannot, or not cheaply.

        ``closely``: with log-probabilities, also where those are not cheap.

        Raises:
            TimeoutError: The deadline passed.
        """
        return None

    def audited_by(self, auditor: Auditor) -> None:  # noqa: ARG002 - for those that see requests
        """Let ``auditor`` choose among greedy requests and have their answers. Called before ``serve``."""
        return

    def tells_of_spoiled(self, told: Callable[[Sequence[str]], object]) -> None:  # noqa: ARG002 - as above
        """End requests whose logits are NaN or infinite; give ``told`` their ids. Called before ``serve``."""
        return

    def answer_again(
        self,
        answer: AuditedAnswer,  # noqa: ARG002 - for those that give some
        *,
        deadline_s: float,  # noqa: ARG002
        closely: bool = False,  # noqa: ARG002
    ) -> Canary | None:
        """Return what it answers to the request of ``answer`` without its caches; None where it cannot now.

        ``closely``: with log-probabilities.

        Raises:
            TimeoutError: The deadline passed.
        """
        return None

    def can_push(self) -> bool:
        """Whether ``push`` can be called now (an engine on an event loop needs that loop first)."""
        return True

    def serve(self, verdicts: Verdicts, *, deadline_s: float) -> Carried:  # noqa: ARG002 - for those that can
        """Start serving: take over handle and unanswered requests of the life before, if there was one."""
        return Carried()

    def give_up(self) -> None:
        """There will be no next life: let callers see this one as dead."""
        return
