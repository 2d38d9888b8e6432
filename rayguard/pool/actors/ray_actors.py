"""Rollout actors on Ray: hired, watched, dismissed. The real ``ActorProvider`` and ``RolloutActor``."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import os
import signal
from typing import TYPE_CHECKING, Any

from rayguard.actors.guard.no_recipe import found_wrong
from rayguard.actors.life.incarnation import Incarnation
from rayguard.actors.quarantined_nodes import elsewhere
from rayguard.actors.token_logs import LeftBehind, left_in
from rayguard.engine.adoption import heirs
from rayguard.engine.build.recipe_source import passed_to_vllm
from rayguard.engine.context import OfPool
from rayguard.engine.deadline import begun
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.home import home
from rayguard.options import nearest
from rayguard.pool.actors.messages import PROGRESS_S
from rayguard.pool.actors.pool_actor import ASYNC_ONLY, PoolActor
from rayguard.pool.actors.spares import Spares, with_imports
from rayguard.process.deaths import DeathWatch
from rayguard.process.identity import ProcessId
from rayguard.process.tree import end_group_of
from rayguard.ray_internals.actor_classes import default_options, is_actor_class, written_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rayguard.engine.weights.proof import Doubt, Proof
    from rayguard.pool.actors.messages import ActorReport, Hello
    from rayguard.pool.values.policy import PoolPolicy
    from rayguard.pool.values.request import Order

_log = logging.getLogger("rayguard")
_OPTIONS = ("engines", "options", "policy")  # of RolloutPool
_numbers = itertools.count()  # of this process's pools
_KILLS = "rayguard-pool-kill"  # the threads that wait for Ray to end an actor


class RayPoolActor:
    """One rollout actor, by its handle. Ray repeats no call: a new process would know nothing of it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    async def hello(self) -> Hello:
        """Say hello."""
        hello: Hello = await self._call("rayguard_hello")
        return hello

    async def submit(self, session: str, orders: Sequence[Order]) -> None:
        """Hand over requests."""
        await self._call("rayguard_submit", session, orders)

    async def poll(self, session: str, taken: int, wait_s: float, pace_s: float = PROGRESS_S) -> ActorReport:
        """Ask what happened."""
        report: ActorReport = await self._call("rayguard_poll", session, taken, wait_s, pace_s)
        return report

    async def abort(self, session: str, ids: Sequence[str]) -> None:
        """Give up requests."""
        await self._call("rayguard_abort", session, ids)

    async def update_weights(self, session: str, doubt: Doubt | None = None) -> str:
        """Bring the engine to the current weights."""
        why = () if doubt is None else (doubt,)
        version: str = await self._call("rayguard_update_weights", session, *why)
        return version

    async def expect_push(self, session: str) -> None:
        """Let it answer nobody before the user's own push."""
        await self._call("rayguard_expect_push", session)

    async def proof(self, session: str) -> Proof:
        """Ask what its engine proved."""
        proof: Proof = await self._call("rayguard_proof", session)
        return proof

    async def _call(self, name: str, *arguments: Any) -> Any:
        call = getattr(self.handle, name).options(max_task_retries=0, retry_exceptions=False)
        return await asyncio.wrap_future(call.remote(*arguments).future())


class RayActors:
    """Hires actors of one class, with the same arguments."""

    def __init__(
        self,
        cls: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        policy: PoolPolicy,
    ) -> None:
        self._pool = _known_as()
        self._spares = Spares(policy.spares, some_left=self._pool.life > 0)
        self._actor_class = actor_class(cls, options, self._pool, policy)
        _refuse_arguments(written_class(cls) if is_actor_class(cls) else cls, args, kwargs)
        self.target = f"RolloutPool({getattr(cls, '__name__', None) or self._actor_class.__name__})"
        self._args, self._kwargs = args, dict(kwargs)
        self._actors: dict[str, RayPoolActor] = {}
        self._lives: dict[str, ProcessId] = {}
        self._deaths = DeathWatch("rayguard-pool-deaths")
        self.node_id = _here()

    def hire(self, name: str) -> RayPoolActor:
        """Create the actor; its engine is built meanwhile."""
        actor_class = self._actor_class
        with harmless("quarantine"):
            placed = {key: value for key, value in default_options(actor_class).items() if value is not None}
            away = elsewhere(placed)
            actor_class = actor_class.options(**away) if away else actor_class
        actor = self._actors[name] = RayPoolActor(actor_class.remote(*self._args, **self._kwargs))
        return actor

    def handle(self, name: str) -> Any:
        """Return the actor's handle."""
        return self._actors[name].handle

    def dismiss(self, name: str) -> None:
        """End the actor for good, beside."""
        self._unwatch(name)
        actor = self._actors.pop(name, None)
        if actor is not None:
            begun(lambda: _kill(actor.handle, no_restart=True), _KILLS)

    def restart(self, name: str) -> None:
        """End the actor's process, so that Ray starts it anew."""
        process, actor = self._lives.get(name), self._actors.get(name)
        if process is not None:
            with harmless("pool"):
                if process.alive():
                    os.kill(process.pid, signal.SIGKILL)  # at once; Ray waits 5 s for one that is stopped
                return
        if actor is not None:
            begun(lambda: _kill(actor.handle, no_restart=False), _KILLS)

    def left_behind(self, hello: Hello) -> LeftBehind:
        """Read the dead life's token log, where it ran on this node."""
        here = bool(hello.node_id) and hello.node_id == self.node_id
        return left_in(hello.token_log if here else "")

    def state(self, name: str) -> str | None:
        """Return the kernel's letter of the actor's process, None where it cannot be seen from here."""
        process = self._lives.get(name)
        return None if process is None else process.state()

    def watch(self, name: str, hello: Hello, gone: Callable[[str], None]) -> None:
        """Learn of the process's death from the kernel, where it runs on this node; keep spares ready."""
        self._unwatch(name)
        if missing := self._spares.missing(hello.node_id, hello.age_s):
            self._actors[name].handle.rayguard_start_spares.remote(missing)
        if not hello.node_id or hello.node_id != self.node_id:
            return
        process = ProcessId(hello.pid, hello.started)

        def died(dead: ProcessId) -> None:
            gone(f"its process {dead.pid} died")
            with harmless("pool"):
                left = end_group_of(dead)
                if left:
                    _log.warning("rayguard: process %d left %d forked children; ended", dead.pid, len(left))

        self._lives[name] = process
        self._deaths.watch(process, died)

    def _unwatch(self, name: str) -> None:
        process = self._lives.pop(name, None)
        if process is not None:
            self._deaths.unwatch(process)

    def close(self) -> None:
        """Watch nothing any more, and let no engine wait for this pool."""
        self._deaths.close()
        heirs.let_go(home(), self._pool.name)


def actor_class(
    cls: Any, options: Mapping[str, Any], pool: OfPool | None = None, policy: PoolPolicy | None = None
) -> Any:
    """Return the actor class to hire: the user's, that takes a pool's requests as well.

    ``pool``: which one it is, where its owner may have a next life. ``policy`` says whether its lives begin
    with vLLM imported.

    Raises:
        ConfigError: The class owns no engine.
    """
    import ray  # noqa: PLC0415 - only where actors are made

    given: dict[str, object] = {}
    plain = cls
    if is_actor_class(cls):
        given = {name: value for name, value in default_options(cls).items() if value is not None}
        plain = written_class(cls)
    is_member = hasattr(plain, "rayguard_hello")  # it takes a pool's requests itself: in tests
    if not isinstance(plain, type) or not (is_member or hasattr(plain, "build_engine")):
        raise ConfigError(
            "RolloutPool needs a class with build_engine(self, settings), as rayguard.RolloutMixin says; "
            f"got {cls!r}"
        )
    named = {"__module__": plain.__module__, "__doc__": plain.__doc__, "rayguard_pool": pool or OfPool()}
    made = plain if is_member else type(plain.__name__, (PoolActor, plain), named)
    made.__qualname__ = plain.__qualname__
    chosen = {**given, **options}
    if policy is not None and (policy.preload or policy.spares):
        chosen = with_imports(chosen, _runtime_env(), spares=policy.spares)
    return ray.remote(**chosen)(made) if chosen else ray.remote(made)


def _refuse_arguments(cls: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse what ``__init__`` cannot take, before an actor fails of it: a misspelt option, say.

    Raises:
        ConfigError: The arguments do not fit, or the class has no recipe.
    """
    wrong = found_wrong(cls)
    if wrong is not None:
        raise wrong
    recipe = getattr(cls, "build_engine", cls)  # a member of a test has none
    if passed_to_vllm(recipe).classes == {"LLM"}:  # before an engine has started for nothing
        raise ConfigError(ASYNC_ONLY)
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):  # a metaclass of its own
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = [name for name in kwargs if name not in signature.parameters]
        near = next(
            filter(None, (nearest(name, [*_OPTIONS, *signature.parameters]) for name in unknown)), None
        )
        write = f". Did you mean RolloutPool({near}=...)?" if near else ""
        raise ConfigError(
            f"RolloutPool hands {cls.__name__}.__init__ what it cannot take ({error}); its own options are "
            f"{', '.join(_OPTIONS)}{write}"
        ) from None


def _kill(handle: Any, *, no_restart: bool) -> None:
    import ray  # noqa: PLC0415

    with harmless("pool"):
        if ray.is_initialized():
            ray.kill(handle, no_restart=no_restart)


def _known_as() -> OfPool:
    """Return by what the next life of this process's actor knows its pool; without a name where none comes.

    An actor's first pool has the same name in each of its lives, as has its second.
    """
    with harmless("incarnation"):
        life = Incarnation.current()
        if life.actor_id and life.max_restarts:
            name = f"{life.actor_id}-{next(_numbers)}"
            return OfPool(name=name, life=life.number, node=life.node_id, owner=ProcessId.me())
    return OfPool()


def _runtime_env() -> Mapping[str, Any]:
    """Return the runtime environment that those of actors hired here are added to."""
    import ray  # noqa: PLC0415 - only where actors are made

    with harmless("pool"):
        if ray.is_initialized():
            return dict(ray.get_runtime_context().runtime_env)
    return {}


def _here() -> str:
    import ray  # noqa: PLC0415

    with harmless("pool"):
        return str(ray.get_runtime_context().get_node_id())
    return ""
