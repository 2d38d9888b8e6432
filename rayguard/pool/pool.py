"""``RolloutPool``: any number of rollout actors behind one ``generate``.

The public face. What happens is in ``core`` (requests), ``weights`` (their versions),
``rayguard.pool.actors.connection`` (one actor's lives), ``ray_actors`` (Ray).
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.metrics.instruments.pool_tally import Hire
from rayguard.options import explained
from rayguard.pool import stream
from rayguard.pool.actor_watch import look_after
from rayguard.pool.background_loop import Background
from rayguard.pool.batch import Job, Partial, Terms, collect, enter, jobs
from rayguard.pool.core import PoolCore
from rayguard.pool.gcs_watch import Notices, listen
from rayguard.pool.ledger.location import open_ledger
from rayguard.pool.progress import bar
from rayguard.pool.status import hide, show, status_of
from rayguard.pool.values.policy import PoolPolicy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from rayguard.engine.generated import Generated
    from rayguard.pool.ports import ActorProvider
    from rayguard.pool.values.result import Batch, Generation

_CLOSE_S = 10.0


class RolloutPool:
    """Rollout actors of one class, as one sampler that outlives each of them.

    Every request is answered once: when an engine dies its actor goes on with it, when an actor or its node
    dies another actor does, from the tokens that were generated. All methods may be called from any thread.

    Args:
        cls: A class with ``build_engine`` (see ``RolloutMixin``) whose engine is vLLM's ``AsyncLLM``; plain,
            or what ``@ray.remote`` made of it.
        *args, **kwargs: What each actor's ``__init__`` gets.
        engines: How many actors.
        options: Ray's actor options, e.g. ``{"num_gpus": 1}``; over those of ``@ray.remote``.
        policy: What the pool may do and for how long.
    """

    def __init__(
        self,
        cls: object,
        *args: object,
        engines: int = 1,
        options: Mapping[str, object] | None = None,
        policy: PoolPolicy | None = None,
        **kwargs: object,
    ) -> None:
        from rayguard.pool.actors.ray_actors import RayActors  # noqa: PLC0415 - `import rayguard` stays free

        _check(engines)
        policy = policy or PoolPolicy()
        self._begin(RayActors(cls, args, kwargs, options or {}, policy), engines, policy)

    @classmethod
    def of(cls, provider: ActorProvider, *, engines: int = 1, policy: PoolPolicy | None = None) -> Self:
        """Return a pool whose actors come from ``provider`` instead of Ray: for tests and simulations."""
        _check(engines)
        pool = cls.__new__(cls)
        pool._begin(provider, engines, policy or PoolPolicy())  # noqa: SLF001 - the other constructor
        return pool

    def _begin(self, provider: ActorProvider, engines: int, policy: PoolPolicy) -> None:
        self._ledger = open_ledger(policy.ledger)
        self._provider = provider
        self._policy = policy
        self._closed = False
        self._background = Background("rayguard-pool")
        self._core: PoolCore = self._background.call(lambda: self._made(engines))
        show(self._core)

    def _made(self, engines: int) -> PoolCore:
        core = PoolCore(self._provider, self._policy)
        core.take_up(self._ledger)
        core.fleet.hire(engines, Hire.START)
        core.spawn(look_after(core, self._provider, self._policy))
        if self._provider.node_id:
            core.spawn(listen(self._provider.node_id, Notices(core, self._policy.drain_s)))
        return core

    # -- sampling

    @explained
    def generate(
        self,
        prompts: Sequence[object],
        sampling: object = None,
        *,
        ids: Sequence[str] | None = None,
        deadline_s: float | None = None,
        partial: Partial = "wait",
        spare: Iterable[object] = (),
    ) -> Batch:
        """Return samples for all prompts, in their order, whatever happens to engines and actors meanwhile.

        Args:
            prompts: Texts or lists of token ids.
            sampling: vLLM's sampling options by name, for all or one mapping for each prompt. With ``n > 1``
                each sample is a request of its own (``seed + index`` where a seed is given, as in vLLM).
            ids: One for each prompt. A request that is repeated with its id (after a restart of the caller)
                is not generated twice: it joins the one that is running, or gets its answer.
            deadline_s: For each request, from now.
            partial: What becomes of prompts that cannot be answered (refused, quarantined, late): "wait" for
                all, then raise; "shrink": leave them out; "replace" them with prompts from ``spare``. What
                was left out is in ``Batch.missing``.
            spare: Prompts to replace others with.

        Raises:
            BatchError: ``partial`` is "wait" and some prompts could not be answered; it holds the others.
        """
        todo, terms = self._jobs(prompts, sampling, ids), self._terms(deadline_s, partial, spare)
        with bar(len(todo), wanted=self._policy.progress, engines=self._engines) as seen:
            return self._background.wait(collect(self._core, todo, terms, seen))

    @explained
    async def generate_async(
        self,
        prompts: Sequence[object],
        sampling: object = None,
        *,
        ids: Sequence[str] | None = None,
        deadline_s: float | None = None,
        partial: Partial = "wait",
        spare: Iterable[object] = (),
    ) -> Batch:
        """Do as ``generate``, without blocking the caller's event loop and without a progress bar."""
        todo, terms = self._jobs(prompts, sampling, ids), self._terms(deadline_s, partial, spare)
        return await asyncio.wrap_future(self._background.begin(collect(self._core, todo, terms)))

    @explained
    def as_completed(
        self,
        prompts: Sequence[object],
        sampling: object = None,
        *,
        ids: Sequence[str] | None = None,
        deadline_s: float | None = None,
    ) -> Iterator[Generation]:
        """Yield each prompt's generation as soon as it is there; ``error`` is set where there is none.

        Who stops reading gives up the rest.
        """
        todo, terms = self._jobs(prompts, sampling, ids), self._terms(deadline_s)
        return stream.generations(self._background, self._core, todo, terms)

    @explained
    def as_completed_async(
        self,
        prompts: Sequence[object],
        sampling: object = None,
        *,
        ids: Sequence[str] | None = None,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Generation]:
        """Do as ``as_completed``, for an event loop."""
        todo, terms = self._jobs(prompts, sampling, ids), self._terms(deadline_s)
        return stream.generations_async(self._background, self._core, todo, terms)

    @explained
    def submit(
        self,
        prompt: object,
        sampling: object = None,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Future[Generation]:
        """Ask for one prompt and return a future of its generation; blocks while the queue is full."""
        job, terms = self._job(prompt, sampling, request_id), self._terms(deadline_s)
        return self._background.wait(enter(self._core, job, terms, self._policy.start_s))

    @explained
    def stream(
        self,
        prompt: object,
        sampling: object = None,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Generated]:
        """Yield the tokens of one completion as they come, several at a time, across faults.

        Raises:
            RayguardError: It cannot be answered, or had to begin afresh after tokens were given out.
        """
        job = self._job(prompt, sampling, request_id)
        return stream.tokens(self._background, self._core, job, self._terms(deadline_s))

    # -- weights and actors

    @explained
    def update_weights(self, *, deadline_s: float | None = None) -> str:
        """Bring all engines to the current weights and return their version (``PoolPolicy.max_weight_lag``).

        Raises:
            WeightsError: No engine took them: refused untouched, the old ones serve on; found bad, none does.
        """
        return self._background.wait(self._core.versions.update(deadline_s or self._policy.weights_s))

    @explained
    def wait_ready(self, engines: int | None = None, *, timeout_s: float | None = None) -> int:
        """Wait until ``engines`` of the pool (default: all that it still has) can serve; return how many do.

        Raises:
            RecoveryTimeoutError: They could not in time.
            GaveUpError: None is left.
        """
        limit_s = self._policy.start_s if timeout_s is None else timeout_s
        return self._background.wait(self._core.fleet.wait_ready(engines, limit_s))

    @explained
    def resize(self, engines: int) -> None:
        """Have ``engines`` actors from now on; those that go finish what they have.

        Raises ``GaveUpError`` when none is left, and none will come.
        """
        _check(engines)
        self._background.wait(self._core.fleet.resize(engines, self._policy.drain_s))

    @explained
    def drain(self, name: str, *, replace: bool = True) -> None:
        """Let one actor finish and go (its node will be taken away), by default after hiring another one."""
        if name not in self._core.connections:
            raise ConfigError(f"no engine {name!r}; there are {', '.join(self._core.connections)}")
        if replace:
            self._background.call(lambda: self._core.fleet.succeed(name))
        self._background.wait(self._core.fleet.dismiss(name, self._policy.drain_s))

    def forget(self, ids: Iterable[str]) -> None:
        """Forget answers: nobody will ask for these ids again. The oldest are forgotten anyway."""
        names = list(ids)
        self._background.call(lambda: self._core.tickets.forget(names))

    def status(self) -> dict[str, Any]:
        """Return what runs here, in plain types."""
        return self._background.call(lambda: status_of(self._core))

    @property
    def handles(self) -> dict[str, Any]:
        """The actors' handles by name, for calls of your own."""
        return {name: self._provider.handle(name) for name in list(self._core.connections)}

    def close(self) -> None:
        """End all actors; whoever still waits for a request is told."""
        if self._closed:
            return
        self._closed = True
        with harmless("pool"):
            self._background.wait(self._core.close(), _CLOSE_S)
        self._background.stop()
        hide(self._core)
        self._ledger.close(remove=self._policy.ledger is None)
        with harmless("pool"):
            self._provider.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- small things

    def _jobs(self, prompts: object, sampling: object, ids: Sequence[str] | None) -> list[Job]:
        if self._closed:
            raise ConfigError("the pool is closed")
        return jobs(prompts, sampling, ids, uuid.uuid4().hex[:12])

    def _job(self, prompt: object, sampling: object, request_id: str | None) -> Job:
        return self._jobs([prompt], sampling, None if request_id is None else [request_id])[0]

    def _terms(
        self, deadline_s: float | None, partial: Partial = "wait", spare: Iterable[object] = ()
    ) -> Terms:
        limit = self._policy.queue_limit
        return Terms(deadline_s=deadline_s, partial=partial, spare=spare, queue_limit=limit)

    def _engines(self) -> str:
        return f"{self._core.book.serving}/{self._core.fleet.size} engines"


def _check(engines: object) -> None:
    if isinstance(engines, bool) or not isinstance(engines, int) or engines < 1:
        raise ConfigError(f"RolloutPool(engines=...) takes a whole number from 1, got {engines!r}")
