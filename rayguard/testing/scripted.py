"""Scripted rollout actors: the interface of real ones without Ray or engine, for fast tests and simulations.

They answer from a rule (token i of a prompt is a function of prompt, seed, i and weights), at a set pace,
and die, freeze or refuse weights when told. All live on the pool's event loop, so a thousand of them fit.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.actors.token_logs import LeftBehind
from rayguard.engine.generated import Generated
from rayguard.engine.weights.proof import Doubt, Proof
from rayguard.errors import RequestError, WeightsError, WrongSessionError
from rayguard.pool.actors.messages import PROGRESS_S, ActorReport, CallFailed, Finished, Hello
from rayguard.pool.actors.outbox import Outbox
from rayguard.pool.values.result import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rayguard.engine.weights.canary import Canary
    from rayguard.pool.values.request import Order, Request

VOCABULARY = 50_000
LOGPROB = -0.5


class ActorDiedError(RuntimeError):
    """Stands for Ray's: by this name a pool knows that an actor has no further life."""


class ActorUnavailableError(RuntimeError):
    """Stands for Ray's: the actor restarts."""


def answer(request: Request, weights: str = "") -> list[int]:
    """Return what an undisturbed engine says to ``request``."""
    salt = sum(weights.encode()) + 7919 * _whole(request, "seed", 0)
    start = sum(ord(c) for c in request.prompt) if isinstance(request.prompt, str) else sum(request.prompt)
    return [(start * 31 + i * 7 + salt) % VOCABULARY for i in range(_whole(request, "max_tokens", 16))]


def _whole(request: Request, option: str, default: int) -> int:
    value = request.sampling.get(option)
    return value if isinstance(value, int) else default


@dataclass(slots=True)
class Script:
    """How all scripted actors behave. ``weights`` is what their source says is current."""

    capacity: int = 64
    tokens_a_turn: int = 4
    turn_s: float = 0.0
    start_s: float = 0.0
    weights: str = ""
    poison: Callable[[Request], bool] = lambda _request: False
    refuse_weights: str = ""
    slow: dict[str, float] = field(default_factory=dict)  # actor -> times slower
    # What an actor's engine answers with its weights: (actor, life, weights, times that it was told to load).
    canary: Callable[[str, int, str, int], Canary | None] = lambda *_: None


class ScriptedActor:
    """One scripted actor."""

    def __init__(self, name: str, script: Script) -> None:
        self.name = name
        self.script = script
        self.life = 0
        self.session = ""
        self.dead_for_good = False
        self.frozen = asyncio.Event()
        self.frozen.set()
        self.restarting = asyncio.Event()
        self.restarting.set()
        self.proving = asyncio.Event()
        self.proving.set()
        self.taking = asyncio.Event()  # cleared: it has new weights, and does not say so
        self.taking.set()
        self.doubts: list[Doubt] = []
        self.leaving = ""  # why it asks to be replaced
        self.served: list[str] = []
        self.generated = 0
        self._begin()

    def _begin(self) -> None:
        self.outbox = Outbox()
        self.weights, self.pushes = self.script.weights, 0
        self.own_push, self.lacks = False, ""  # the user's own weights, or why it answers nobody
        self.tasks: dict[str, asyncio.Task[None]] = {}

    # -- what a test does to it

    def die(self, *, for_good: bool = False) -> None:
        """Lose everything, as by SIGKILL."""
        for task in self.tasks.values():
            task.cancel()
        self.taking.set()
        self.session, self.dead_for_good = "", for_good
        self.generated = 0
        self._begin()

    def freeze(self) -> None:
        """Stand still, as by SIGSTOP."""
        self.frozen.clear()

    def thaw(self) -> None:
        """Go on."""
        self.frozen.set()

    # -- what a pool calls

    async def hello(self) -> Hello:
        """Say which life this is."""
        await self.frozen.wait()
        await self.restarting.wait()
        if self.script.start_s:
            await asyncio.sleep(self.script.start_s)
        if self.dead_for_good:
            raise ActorDiedError(f"{self.name} is dead")
        if not self.session:
            self.life += 1
            self.session, self.weights = f"{self.name}-{self.life}", self.script.weights
        return Hello(session=self.session, capacity=self.script.capacity, weight_version=self.weights)

    def _check(self, session: str) -> None:
        if not self.session:
            raise ActorUnavailableError(f"{self.name} restarts")
        if session != self.session:
            raise WrongSessionError(f"session {session} is over")

    async def submit(self, session: str, orders: Sequence[Order]) -> None:
        """Take requests."""
        await self.frozen.wait()
        self._check(session)
        answered = set(self.outbox.answered(order.request.id for order in orders))
        for order in orders:
            name = order.request.id
            if name not in self.tasks and name not in answered:
                self.tasks[name] = asyncio.ensure_future(self._serve(order))

    async def poll(self, session: str, taken: int, wait_s: float, pace_s: float = PROGRESS_S) -> ActorReport:
        """Tell what happened."""
        await self.frozen.wait()
        self._check(session)
        first, events = await self.outbox.take(taken, wait_s, pace_s)
        await self.frozen.wait()
        self._check(session)
        return ActorReport(
            first=first,
            events=events,
            weight_version=self.weights,
            at_s=time.monotonic(),
            tokens=self.generated,
            leaving=self.leaving,
            own_push=self.own_push,
            lacks=self.lacks,
        )

    async def abort(self, session: str, ids: Sequence[str]) -> None:
        """Give up requests."""
        await self.frozen.wait()
        self._check(session)
        for name in ids:
            task = self.tasks.pop(name, None)
            if task is not None:
                task.cancel()

    async def update_weights(self, session: str, doubt: Doubt | None = None) -> str:
        """Take the current weights."""
        await self.frozen.wait()
        self._check(session)
        if self.script.refuse_weights:
            raise WeightsError(self.script.refuse_weights)
        if doubt is not None:
            self.doubts.append(doubt)
        self.pushes = self.pushes + 1 if self.weights == self.script.weights else 1
        self.weights = self.script.weights
        await self.taking.wait()
        self._check(session)
        return self.weights

    async def expect_push(self, session: str) -> None:
        """Lack what others have."""
        await self.frozen.wait()
        self._check(session)
        self.own_push, self.lacks = False, "no push"

    async def proof(self, session: str) -> Proof:
        """Say what the engine answers with its weights."""
        await self.frozen.wait()
        await self.proving.wait()
        self._check(session)
        said = self.script.canary(self.name, self.life, self.weights, self.pushes)
        return Proof(self.weights, f"digest of {self.weights}", said, tolerance=0.5)

    async def _serve(self, order: Order) -> None:
        request = order.request
        name = request.id
        if self.lacks:
            self.outbox.put(CallFailed(name, WeightsError(self.lacks), retry=True))
        elif "nonsense" in request.sampling:
            self.outbox.put(CallFailed(name, RequestError(name, "no sampling option 'nonsense'")))
        if self.lacks or "nonsense" in request.sampling:
            self.tasks.pop(name, None)
            return
        made = order.prior or Generated()
        self.outbox.expect(name, len(made))
        self.outbox.begin(name, "")
        self.outbox.append([(name, made)])  # as a real frontend does, which is given them
        self.served.append(name)
        while len(made) < len(answer(request)):
            await asyncio.sleep(self.script.turn_s * self.script.slow.get(self.name, 1.0))
            await self.frozen.wait()
            if self.script.poison(request):
                self.die()
                return
            more = self._turn(request, len(made))
            made = made.plus(more) if len(made) else more
            self.outbox.append([(name, more)])
        cuts = tuple(dict.fromkeys(order.cuts))
        sample = Sample(id=name, index=request.index, generated=made, finish_reason="length", cuts=cuts)
        self.outbox.put(Finished(name, sample))
        self.tasks.pop(name, None)
        self.outbox.done(name)

    def _turn(self, request: Request, made: int) -> Generated:
        tokens = array("i", answer(request, self.weights)[made : made + self.script.tokens_a_turn])
        self.generated += len(tokens)
        versions = ((self.weights, 0),) if self.weights else ()
        return Generated(
            tokens=tokens,
            versions=versions,
            width=1,
            ids=tokens[:],
            logprobs=array("f", [LOGPROB] * len(tokens)),
            ranks=array("i", [1] * len(tokens)),
        )


class ScriptedProvider:
    """Hires scripted actors; ``members`` are for the test to disturb."""

    target = "RolloutPool(scripted)"
    node_id = ""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.members: dict[str, ScriptedActor] = {}
        self.dismissed: list[str] = []
        self.restarted: list[str] = []
        self._gone: dict[str, Callable[[str], None]] = {}
        self._states: dict[str, str | None] = {}

    def hire(self, name: str) -> ScriptedActor:
        """Create one."""
        self.members[name] = ScriptedActor(name, self.script)
        return self.members[name]

    def handle(self, name: str) -> ScriptedActor:
        """Return it."""
        return self.members[name]

    def dismiss(self, name: str) -> None:
        """End one for good."""
        self.dismissed.append(name)
        self.members[name].die(for_good=True)

    def restart(self, name: str) -> None:
        """Begin another life."""
        self.restarted.append(name)
        self.members[name].die()
        self.members[name].thaw()

    def left_behind(self, hello: Hello) -> LeftBehind:  # noqa: ARG002 - an interface
        """Return nothing: scripted actors keep no log."""
        return LeftBehind()

    def state(self, name: str) -> str | None:
        """Return the kernel's letter of it."""
        return "S" if self.members[name].frozen.is_set() else "T"

    def watch(self, name: str, hello: Hello, gone: Callable[[str], None]) -> None:  # noqa: ARG002 - an interface
        """Remember whom to tell of a death."""
        self._gone[name] = gone

    def kill(self, name: str, *, tell: bool = True) -> None:
        """End a life of ``name``; ``tell``: at once, as the kernel does on this node."""
        self.members[name].die()
        if tell:
            self._gone[name]("killed")

    def close(self) -> None:
        """Nothing is held."""
