"""What users do to an engine beside a batch, and the death that comes in the midst of it.

When is told by ``strike``; what each caller must get is ``own_answer``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from tests.benchmarks.trials.oracle import GREEDY
from tests.benchmarks.trials.own_answer import CALL_S, Told, way
from tests.benchmarks.trials.plan import Fault
from tests.benchmarks.trials.rollouts import adapters

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.trials.plan import Trial
    from tests.benchmarks.trials.strike import Target

PATIENCE_S = 240.0  # for any answer, on a machine that is very busy
_BEGUN_S = 20.0  # for a request of our own to reach the core
_SLEEP_S = 0.5  # how long an engine that died asleep is left alone
_TOKENS = 60
_PARTS = ([20, 7, 90, 11] * 5, [21, 7, 93, 11] * 5)
_PROMPTS = [[30 + n, 9, 80 + 3 * n, 12] * 4 for n in range(4)]
_SAMPLING = {**GREEDY, "max_tokens": _TOKENS, "ignore_eos": True}


class Asking(threading.Thread):
    """One call of a user's, in a thread of its own; ``told`` is what came of it."""

    def __init__(self, what: str, ask: Callable[[], Any]) -> None:
        super().__init__(name=f"trials-{what}", daemon=True)
        self._what, self._ask = what, ask
        self.began = time.monotonic()
        self.told = Told(what=what, kinds=("NeverEnded",), text="it did not end", after_s=PATIENCE_S)
        self.start()

    def run(self) -> None:
        try:
            value = self._ask()
        except Exception as error:  # whatever is raised is what the user gets
            self.told = Told.of(self._what, error, time.monotonic() - self.began)
        else:
            self.told = Told(what=self._what, value=value, after_s=time.monotonic() - self.began)

    def end(self) -> Told:
        """Wait for it; return what came of it."""
        self.join(PATIENCE_S)
        return self.told


@dataclass(slots=True)
class Act:
    """What is done in one trial to one engine of ``pool``."""

    trial: Trial
    pool: Any
    folder: Path
    name: str  # of the engine
    kill: Callable[[], None] = lambda: None  # its core, now
    mark: Callable[[int], None] = lambda _pid: None  # the fault begins now, and will end this process
    offer: Callable[[str], str] = lambda how: how  # makes weights current, and pushes them
    current: str = ""  # the weights now
    wanted: Any = None
    told: list[Told] = field(default_factory=list)

    @property
    def handle(self) -> Any:
        """The actor."""
        return self.pool.handles[self.name]

    def prepare(self) -> None:
        """Ask before the batch what will be asked in it: the answer of an undisturbed engine."""
        if self.trial.fault is Fault.KILL_STREAM:
            self.wanted = self._stream("before")
        if self.trial.fault is Fault.KILL_ADAPTERS:
            if self.trial.variant % 2:
                ray.get(self.handle.load_adapter.remote(adapters(self.folder)[0]), timeout=PATIENCE_S)
            self.wanted = self._adapted("before")

    def do(self, target: Target) -> None:
        """Do it; returns when the caller has his answer and the engine is awake."""
        _DO[self.trial.fault](self, target)

    # -- one for each kind

    def refused_request(self, _target: Target) -> None:
        self.mark(0)
        options = {"max_tokens": 4, "temperature": 1.0, "seed": 2**70}
        if way(self.trial) == "pool":
            self.ask("request", lambda: _raised(self.pool.submit([5, 6, 7], options).result(PATIENCE_S)))
        else:
            self.ask(
                "request", lambda: self._got(self.handle.ask.remote(self._id("x"), [[5, 6, 7]], options))
            )

    def killing_call(self, target: Target) -> None:
        method = way(self.trial)
        if method == "update_weight_version":
            self.mark(0)
            self.ask("call", lambda: self.call(method, 7))
            return
        self.mark(target.worker.pid if method == "exit_now" else target.core.pid)
        self.ask("call", lambda: self.call("collective_rpc", method))

    def hung_call(self, target: Target) -> None:
        self.mark(target.worker.pid)
        if way(self.trial) == "vLLM's deadline":
            self.ask("call", lambda: self.call("collective_rpc", "hang", timeout=CALL_S))
        else:
            within = self.handle.call_within.remote(CALL_S, "collective_rpc", "hang")
            self.ask("call", lambda: self._got(within))

    def misfit_push(self, _target: Target) -> None:
        self.mark(0)
        self.ask("push", lambda: self.offer(way(self.trial)))
        self.ask("next push", lambda: self.offer(self.current))

    def kill_asleep(self, _target: Target) -> None:
        self.ask("sleep", self._sleep)
        self.kill()
        threading.Event().wait(_SLEEP_S)
        self.ask("wake", lambda: self.call("wake_up"))

    def kill_in_sleep(self, _target: Target) -> None:
        sleeping = Asking("cut off: sleep", self._sleep)
        threading.Event().wait(self.trial.delay_s)
        self.kill()
        self.told.append(sleeping.end())
        self.ask("wake", lambda: self.call("wake_up"))

    def kill_in_wake(self, _target: Target) -> None:
        self.ask("sleep", self._sleep)
        waking = Asking("cut off: wake", lambda: self.call("wake_up"))
        threading.Event().wait(self.trial.delay_s / 10)
        self.kill()
        self.told.append(waking.end())
        self.ask("wake", lambda: self.call("wake_up"))

    def kill_stream(self, target: Target) -> None:
        self._kill_within(target, "stream", self._stream)

    def kill_adapters(self, target: Target) -> None:
        self._kill_within(target, "ask", self._adapted)

    def _kill_within(self, target: Target, what: str, ask: Callable[[str], Any]) -> None:
        asking, name = Asking(what, lambda: ask("in")), self._id("in")
        until = time.monotonic() + _BEGUN_S
        while not target.has(name) and asking.is_alive() and time.monotonic() < until:
            threading.Event().wait(0.001)
        threading.Event().wait(self.trial.delay_s)
        self.kill()
        self.told.append(asking.end())

    # -- small things

    def ask(self, what: str, ask: Callable[[], Any]) -> None:
        """Ask, and note what came of it."""
        self.told.append(Asking(what, ask).end())

    def call(self, name: str, *given: Any, **options: Any) -> Any:
        """Make a call to the engine that is no request."""
        return self._got(self.handle.call.remote(name, *given, **options))

    def _got(self, reference: Any) -> Any:
        return ray.get(reference, timeout=PATIENCE_S)

    def _sleep(self) -> Any:
        return self.call("sleep", level=1, mode=way(self.trial))

    def _id(self, which: str) -> str:
        return f"own-{self.trial.number}-{self.name}-{which}"

    def _stream(self, which: str) -> Any:
        pause_s = 0.1 * (self.trial.variant % 3)
        return self._got(self.handle.stream.remote(self._id(which), _PARTS, _SAMPLING, pause_s))

    def _adapted(self, which: str) -> Any:
        both = adapters(self.folder)
        return self._got(self.handle.ask.remote(self._id(which), _PROMPTS, _SAMPLING, both))


def _raised(generation: Any) -> Any:
    if generation.error is not None:
        raise generation.error
    return len(generation.samples)


_DO = {
    Fault.UNENCODABLE: Act.refused_request,
    Fault.KILLING_CALL: Act.killing_call,
    Fault.HUNG_CALL: Act.hung_call,
    Fault.MISFIT_PUSH: Act.misfit_push,
    Fault.KILL_ASLEEP: Act.kill_asleep,
    Fault.KILL_IN_SLEEP: Act.kill_in_sleep,
    Fault.KILL_IN_WAKE: Act.kill_in_wake,
    Fault.KILL_STREAM: Act.kill_stream,
    Fault.KILL_ADAPTERS: Act.kill_adapters,
}
