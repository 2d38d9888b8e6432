"""A scripted engine for fast tests: the same contract as the real ones, no vLLM, no processes unless asked.

It answers from a seeded rule (token i of a prompt is a function of prompt, i and weights), dies when told,
and heals like vLLM does: a successor goes on with unanswered requests from their tokens so far. Not for
showing that something works on a real engine; for that there is vLLM on the CPU.
"""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

from rayguard.engine.protocol import Carried, Engine, EngineProcess, Progress, Verdicts
from rayguard.engine.weights.changes import WeightChanges
from rayguard.engine.weights.version import WeightReceipt, Weights
from rayguard.errors import WeightsError
from rayguard.faults.fault import ProcessExit, Role
from rayguard.process.identity import ProcessId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rayguard.engine.protocol import Report


class FakeEngineDeadError(RuntimeError):
    """What the fake's callers see when it dies: as little as vLLM tells."""


@dataclass(slots=True)
class FakeRequest:
    """One request and its tokens so far."""

    id: str
    prompt: int
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    error: str = ""
    finished: bool = False


def answer(prompt: int, tokens: int, weights: str = "") -> list[int]:
    """Return what an undisturbed engine says."""
    salt = sum(weights.encode())
    return [(prompt * 31 + i * 7 + salt) % 97 for i in range(tokens)]


class FakeLLM:
    """What the user's code holds. ``script`` is called before each token and may raise to kill the engine.

    ``on_push`` is called with each version that is pushed, and may raise; ``takes_weights`` says whether it
    can be pushed to now. With ``process`` it has one of its own, which does nothing but live.
    """

    def __init__(
        self,
        script: Callable[[FakeLLM, FakeRequest], None] | None = None,
        *,
        process: bool = False,
        **settings: object,
    ) -> None:
        self.settings = settings
        self.script = script
        self.weights = ""
        self.requests: dict[str, FakeRequest] = {}
        self._numbers = itertools.count()
        self.tokens = 0
        self.core: object = object()
        self.dead: Exception | None = None
        self.report: Report | None = None
        self.suspects: list[str] = []
        self.lock = threading.Lock()
        self.on_push: Callable[[str], None] = lambda _version: None
        self.takes_weights = True
        self.process = subprocess.Popen(["sleep", "3600"]) if process else None
        self.changes = WeightChanges()

    def generate(self, prompts: Sequence[int], max_tokens: int = 16) -> list[FakeRequest]:
        """Answer every prompt; across deaths, where someone takes reports."""
        if refusal := self.changes.asked(time.monotonic()):
            raise WeightsError(refusal)
        requests = [FakeRequest(f"r{p}-{next(self._numbers)}", p, max_tokens) for p in prompts]
        with self.lock:
            self.requests.update({r.id: r for r in requests})
        while any(not r.finished for r in requests):
            core = self.core
            try:
                self._turn(requests)
            except Exception as error:
                self.dead = error
                if self.report is None:
                    raise
                self.report(error, core).result(30)
                if self.changes.refusal:
                    raise WeightsError(self.changes.refusal) from error
        return requests

    def collective_rpc(self, method: str, version: str = "") -> None:
        """Stand in for a worker extension of the user's: ``version`` is what it loads, past rayguard."""
        self.weights = version or self.weights
        self.changes.called(method, time.monotonic(), differ=bool(version))

    def rayguard_engine(self, report: Report, predecessor: Engine | None) -> FakeEngine:
        """Bring an adapter of our own (``rayguard.engine.build.builder`` asks for it)."""
        return FakeEngine(self, report, predecessor)

    def _turn(self, requests: Sequence[FakeRequest]) -> None:
        if self.dead is not None:
            raise self.dead
        alone = self.suspects[:1]
        for request in [r for r in requests if not r.finished]:
            if request.id in self.suspects and request.id not in alone:
                continue
            if self.script is not None:
                self.script(self, request)
            token = answer(request.prompt, len(request.tokens) + 1, self.weights)[-1]
            request.tokens.append(token)
            self.tokens += 1
            if len(request.tokens) < request.max_tokens:
                continue
            request.finished = True
            with self.lock:
                self.requests.pop(request.id, None)
                if request.id in self.suspects:
                    self.suspects.remove(request.id)


class FakeEngine(Engine):
    """One life of a ``FakeLLM``."""

    def __init__(self, built: FakeLLM, report: Report, predecessor: Engine | None) -> None:
        self._built = built
        self._report = report
        self._front = predecessor.handle if isinstance(predecessor, FakeEngine) else None
        self._life = built.core
        self.closed = False
        self.pushes = 0
        self._receipts: list[WeightReceipt] = []
        started = None if built.process is None else ProcessId.of(built.process.pid)
        self._known = () if started is None else (EngineProcess(Role.ENGINE_CORE, started),)

    @property
    @override
    def handle(self) -> FakeLLM:
        return self._built if self._front is None else self._front

    @property
    @override
    def frontend(self) -> FakeLLM:
        return self.handle if self.handle.core is self._life else self._built

    @override
    def follow(self, changes: WeightChanges) -> None:
        self._built.changes = changes

    @property
    @override
    def life(self) -> object:
        return self._life

    @override
    def facts(self) -> Mapping[str, object]:
        return dict(self._built.settings)

    @override
    def processes(self) -> tuple[EngineProcess, ...]:
        return self._known

    @override
    def exits(self) -> tuple[ProcessExit, ...]:
        process = self._built.process
        if process is None or process.poll() is None:
            return ()
        return (ProcessExit(role=Role.ENGINE_CORE, pid=process.pid, exitcode=process.returncode),)

    @override
    def progress(self) -> Progress:
        front = self.handle
        with front.lock:
            running = tuple(r for r in front.requests if r not in front.suspects[1:])
            held = tuple(front.suspects[1:])
        return Progress(turns=front.tokens, tokens=front.tokens, running=running, held=held)

    @override
    def interrupt(self, error: Exception) -> None:
        if self.handle.core is self._life:
            self.handle.dead = error

    @override
    def close(self, *, polite_s: float, force_s: float) -> tuple[EngineProcess, ...]:
        self.closed = True
        if self._built.process is not None:
            self._built.process.kill()
            self._built.process.wait(force_s)
        return ()

    @override
    def receipts(self, *, deadline_s: float) -> Sequence[WeightReceipt]:
        return self._receipts

    @override
    def can_push(self) -> bool:
        return self._built.takes_weights

    @override
    def push(self, weights: Weights, *, deadline_s: float) -> Sequence[WeightReceipt]:
        self._receipts = []
        self._built.on_push(weights.version)
        self._built.weights = weights.version
        if self.handle.core is self._life:
            self.handle.weights = weights.version
        self.pushes += 1
        self._receipts = [
            WeightReceipt(version=weights.version, digest=weights.digest, tensors=len(weights.names()))
        ]
        return self._receipts

    @override
    def serve(self, verdicts: Verdicts, *, deadline_s: float) -> Carried:
        front = self.handle
        front.report = self._report
        saved = 0
        with front.lock:
            for request in list(front.requests.values()):
                saved += len(request.tokens)
                if request.id in verdicts.quarantined:
                    request.error, request.finished = verdicts.quarantined[request.id], True
                    del front.requests[request.id]
            front.suspects = [r for r in verdicts.suspects if r in front.requests]
            front.settings, front.script = self._built.settings, self._built.script
            front.weights, front.core, front.dead = self._built.weights, self._life, None
            front.changes = self._built.changes
            if front.changes.refusal:
                front.requests.clear()
            return Carried(requests=len(front.requests), tokens_saved=saved)
