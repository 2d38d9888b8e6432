"""``LLMServerClient.generate`` of verl: a request whose server is lost is made again on another replica.

A request is pure: prompt and settings are the caller's, and each attempt is a request of its own to vLLM. The
balancer forgets which server a conversation went to once that is taken out, and the next turns follow the new
one. Stands on verl 0.8 to 0.9; of another shape, that is said once and nothing is changed.
"""

from __future__ import annotations

import functools
import inspect
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayguard.faults.diagnosis import Kind
from rayguard.frameworks.change_once import change_once
from rayguard.frameworks.verl_rollouts import server_managers
from rayguard.frameworks.verl_rollouts.asking import asked
from rayguard.frameworks.verl_rollouts.lost_servers import NAIVE, Losses, RolloutLimits, loss_of
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

    from rayguard.frameworks.verl_rollouts.lost_servers import TakenOut
    from rayguard.recovery.incident import Incident

MODULE = "verl.workers.rollout.llm_server"  # after whose import ``attach`` is to be called
_ATTACHED = "__rayguard_rollouts__"
_BALANCER = ("remove_servers", "get_all_servers")
_with_weights: set[str] = set()  # the servers that have answered with a step of the trainer's
_told_here: set[str] = set()  # the servers that were told here, and maybe not in the balancer


@dataclass(slots=True)
class _Attempt:
    """To which server a request was sent."""

    server: str = ""
    actor: str = ""
    handle: object = None


_attempt: ContextVar[_Attempt | None] = ContextVar("rayguard_rollout_attempt", default=None)


def attach(module: ModuleType, limits: RolloutLimits | None = None) -> bool:
    """Have the requests of all clients in this process looked after; say whether they are."""
    return change_once(
        module,
        _ATTACHED,
        lambda: _change(module, limits or RolloutLimits()),
        unknown=_unknown,
        framework="verl",
        otherwise="requests are not made again elsewhere",
    )


def attach_rebuilding(module: ModuleType) -> bool:
    """Attach, and take note of who made which replica: for lost ones that are made again."""
    server_managers.attach(module)
    return attach(module)


def _change(module: ModuleType, limits: RolloutLimits) -> None:
    client_class: Any = module.LLMServerClient
    client_class._acquire_server = _noting(client_class._acquire_server)  # noqa: SLF001 - the framework's seam
    client_class.generate = _repeating(client_class.generate, limits)


def _unknown(module: ModuleType) -> str:
    """Say what is not as it is known; '' if all is."""
    from rayguard.ray_internals.actor_classes import is_actor_class, written_class  # noqa: PLC0415 - Ray is there

    client_class, balancer = (
        getattr(module, name, None) for name in ("LLMServerClient", "GlobalRequestLoadBalancer")
    )
    if is_actor_class(balancer):  # of verl 0.8 and 0.9.0
        balancer = written_class(balancer)
    missing = [name for name in _BALANCER if not callable(getattr(balancer, name, None))]
    if missing:
        return f"GlobalRequestLoadBalancer.{missing[0]}"
    if not inspect.isclass(client_class):
        return "LLMServerClient"
    acquire, generate = (getattr(client_class, name, None) for name in ("_acquire_server", "generate"))
    if not inspect.iscoroutinefunction(acquire) or _first_two(acquire) != ("self", "request_id"):
        return "LLMServerClient._acquire_server"
    if not inspect.iscoroutinefunction(generate) or _first_two(generate) != ("self", "request_id"):
        return "LLMServerClient.generate"
    code = getattr(inspect.unwrap(generate), "__code__", None)
    if code is None or not {"_acquire_server", "_release_server"} <= set(code.co_names):
        return "LLMServerClient.generate"
    return "" if "_load_balancer" in client_class.__init__.__code__.co_names else "LLMServerClient.__init__"


def _first_two(function: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)[:2]


def _noting(acquire: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return ``acquire`` with note taken of the server that a request was given."""

    @functools.wraps(acquire)
    async def _acquire_server(self: object, *args: object, **kwargs: object) -> object:
        from rayguard.ray_internals.actor_classes import actor_id  # noqa: PLC0415 - where verl is, Ray is

        found = await acquire(self, *args, **kwargs)
        with harmless("rollout"):
            attempt = _attempt.get()
            if attempt is not None:
                attempt.server, attempt.handle = found
                attempt.actor = actor_id(attempt.handle)
        return found

    return _acquire_server


def _repeating(bare: Callable[..., Awaitable[Any]], limits: RolloutLimits) -> Callable[..., Awaitable[Any]]:
    """Return ``generate`` with requests made again whose servers were lost."""

    @functools.wraps(bare)
    async def generate(self: Any, *args: object, **kwargs: object) -> object:
        return await _Request(self, limits).made(lambda: bare(self, *args, **kwargs))

    return generate


class _Request:
    """One request, until it is answered."""

    def __init__(self, client: Any, limits: RolloutLimits) -> None:
        self._client, self._limits = client, limits
        self._losses, self._since = Losses(), 0.0
        self._open: list[Incident] = []

    async def made(self, attempt: Callable[[], Awaitable[object]]) -> object:
        """Make it, and again. Raises what the last attempt raised."""
        try:
            while True:
                at = _Attempt()
                before = _attempt.get()
                _attempt.set(at)
                answer, error, kind = None, None, None
                try:
                    answer = await attempt()
                except Exception as raised:
                    kind = loss_of(raised, at.actor) if at.actor else None
                    if kind is None:
                        self._failed(raised, "another error came")
                        raise
                    error = raised
                finally:
                    _attempt.set(before)  # by hand: a coroutine may be closed in another context
                if error is None and not _is_blank(answer, at):
                    self._answered(at)
                    return answer
                if not await self._goes_on(at, kind or Kind.ACTOR_DIED, error):
                    if error is None:
                        return answer  # as bare: there is nothing better
                    raise error
        finally:
            self._failed(None, "the request was ended")

    def _answered(self, at: _Attempt) -> None:
        if self._open:
            from rayguard.frameworks.verl_rollouts import server_incidents  # noqa: PLC0415 - only after a loss

            with harmless("incident"):
                server_incidents.recovered(self._open, at.server)
            self._open.clear()

    def _failed(self, error: BaseException | None, why: str) -> None:
        if self._open:
            from rayguard.frameworks.verl_rollouts import server_incidents  # noqa: PLC0415 - as above

            with harmless("incident"):
                server_incidents.failed(self._open, error, why)
            self._open.clear()

    async def _goes_on(self, at: _Attempt, kind: Kind, error: BaseException | None) -> bool:
        """Have the lost server taken out, tell it once, and say whether the request is made again."""
        why = "rayguard's own error"
        with harmless("rollout"):
            self._since = self._since or time.monotonic()
            backend = _backend_of(self._client)
            stays = kind is Kind.ACTOR_UNAVAILABLE and await self._is_as_it_was(at)
            taken = await self._take_out(at, remove=not stays and backend != NAIVE)
            self._losses = self._losses.with_one(taken)
            since_s = time.monotonic() - self._since
            why = self._losses.why_not_again(
                taken, self._limits, since_s=since_s, backend="" if stays else backend
            )
            if taken.first if taken is not None else at.actor not in _told_here:
                _told_here.add(at.actor)
                from rayguard.frameworks.verl_rollouts import server_incidents  # noqa: PLC0415 - as above

                self._open.append(server_incidents.opened(at.server, kind, error))
        if why:
            self._failed(error, why)
        return not why

    async def _is_as_it_was(self, at: _Attempt) -> bool:
        """Say whether a server that could not be reached is there, in the process that has the weights.

        Not where requests have names of their own (``full_determinism``): the first may still run there.
        """
        from rayguard.frameworks.verl_rollouts import in_actor  # noqa: PLC0415 - as above

        rollout = getattr(getattr(self._client.config, "actor_rollout_ref", None), "rollout", None)
        if getattr(rollout, "full_determinism", False):
            return False
        found = await asked(at.handle, in_actor.look, within_s=self._limits.ask_s)
        return found is not None and found.has_weights and not found.engine_dead

    async def _take_out(self, at: _Attempt, *, remove: bool) -> TakenOut | None:
        from rayguard.frameworks.verl_rollouts import in_actor  # noqa: PLC0415 - as above

        balancer = vars(self._client)["_load_balancer"]
        out = functools.partial(in_actor.take_out, remove=remove)
        return await asked(balancer, out, at.server, at.actor, within_s=self._limits.ask_s)


def _backend_of(client: Any) -> str:
    """Return how this job pushes weights, as its configuration says it; '' if it does not."""
    rollout = getattr(getattr(client.config, "actor_rollout_ref", None), "rollout", None)
    return str(getattr(getattr(rollout, "checkpoint_engine", None), "backend", "") or "")


def _is_blank(answer: object, at: _Attempt) -> bool:
    """Say whether a server that had the trainer's weights answers without: its process is a new one."""
    fields = getattr(answer, "extra_fields", None)
    if not at.actor or not isinstance(fields, dict) or "global_steps" not in fields:
        return False
    if fields["global_steps"] is not None:
        _with_weights.add(at.actor)
        return False
    return at.actor in _with_weights
