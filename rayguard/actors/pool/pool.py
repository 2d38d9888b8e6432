"""``RolloutPool``: any number of rollout actors behind one ``generate``.

The public face. What happens is in ``core`` (requests), ``versions`` (weights), ``connection`` (one actor's
lives), ``ray_staff`` (Ray).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from rayguard.actors.pool import stream
from rayguard.actors.pool.background import Background
from rayguard.actors.pool.batch import Job, Terms, answer, collect, jobs
from rayguard.actors.pool.core import PoolCore
from rayguard.actors.pool.gcs import listen
from rayguard.actors.pool.ledger_place import open_ledger
from rayguard.actors.pool.notice import Notices
from rayguard.actors.pool.policy import PoolPolicy
from rayguard.actors.pool.presence import hide, show
from rayguard.actors.pool.progress import bar
from rayguard.actors.pool.status import status_of
from rayguard.actors.pool.versions import Versions
from rayguard.actors.pool.watcher import look_after
from rayguard.errors import ConfigError, RecoveryTimeoutError
from rayguard.metrics.pool_tally import Hire
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from rayguard.actors.pool.batch import Partial
    from rayguard.actors.pool.result import Batch, Generation
    from rayguard.actors.pool.staff import Staff
    from rayguard.engine.generated import Generated

_CLOSE_S = 10.0


class RolloutPool:
    """Rollout actors of one class, as one sampler that outlives each of them.

    Every request is answered once: when an engine dies its actor goes on with it, when an actor or its node
    dies another actor does, from the tokens that were generated. All methods may be called from any thread.

    Args:
        cls: A class with ``build_engine`` (see ``RolloutMixin``) whose engine is vLLM's ``AsyncLLM``; plain,
            or what ``@ray.remote`` made of it.
        *args: What each actor's ``__init__`` gets, with ``**kwargs``.
        engines: How many actors.
        options: Ray's actor options, e.g. ``{"num_gpus": 1}``; over those of ``@ray.remote``.
        policy: What the pool may do and for how long.
        **kwargs: See ``*args``.
    """

    def __init__(
        self,
        cls: Any,
        *args: Any,
        engines: int = 1,
        options: Mapping[str, Any] | None = None,
        policy: PoolPolicy | None = None,
        **kwargs: Any,
    ) -> None:
        from rayguard.actors.pool.ray_staff import RayStaff  # noqa: PLC0415 - `import rayguard` stays free

        _check(engines)
        self._begin(RayStaff(cls, args, kwargs, options or {}), engines, policy or PoolPolicy())

    @classmethod
    def of(cls, staff: Staff, *, engines: int = 1, policy: PoolPolicy | None = None) -> Self:
        """Return a pool whose actors come from ``staff`` instead of Ray: for tests and simulations."""
        _check(engines)
        pool = cls.__new__(cls)
        pool._begin(staff, engines, policy or PoolPolicy())  # noqa: SLF001 - the other constructor
        return pool

    def _begin(self, staff: Staff, engines: int, policy: PoolPolicy) -> None:
        self._ledger = open_ledger(policy.ledger)
        self._staff = staff
        self._policy = policy
        self._closed = False
        self._background = Background("rayguard-pool")
        self._versions = Versions(policy.max_weight_lag, staff.restart)
        self._core: PoolCore = self._background.call(lambda: self._made(engines))
        show(self._core)

    def _made(self, engines: int) -> PoolCore:
        core = PoolCore(self._staff, self._versions, self._policy)
        core.take_up(self._ledger)
        core.crew.hire(engines, Hire.START)
        core.spawn(look_after(core, self._staff, self._policy))
        if self._staff.node_id:
            notices = Notices(core, self._policy.drain_s)
            core.spawn(listen(self._staff.node_id, notices))
        return core

    # -- sampling

    def generate(
        self,
        prompts: Sequence[Any],
        sampling: Any = None,
        *,
        ids: Sequence[str] | None = None,
        deadline_s: float | None = None,
        partial: Partial = "wait",
        spare: Iterable[Any] = (),
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

    async def generate_async(
        self,
        prompts: Sequence[Any],
        sampling: Any = None,
        *,
        ids: Sequence[str] | None = None,
        deadline_s: float | None = None,
        partial: Partial = "wait",
        spare: Iterable[Any] = (),
    ) -> Batch:
        """Do as ``generate``, without blocking the caller's event loop and without a progress bar."""
        todo, terms = self._jobs(prompts, sampling, ids), self._terms(deadline_s, partial, spare)
        return await asyncio.wrap_future(self._background.begin(collect(self._core, todo, terms)))

    def as_completed(
        self,
        prompts: Sequence[Any],
        sampling: Any = None,
        *,
        ids: Sequence[str] | None = None,
        deadline_s: float | None = None,
    ) -> Iterator[Generation]:
        """Yield each prompt's generation as soon as it is there; ``error`` is set where there is none.

        Who stops reading gives up the rest.
        """
        todo, terms = self._jobs(prompts, sampling, ids), self._terms(deadline_s)
        return stream.generations(self._background, self._core, todo, terms)

    def as_completed_async(
        self,
        prompts: Sequence[Any],
        sampling: Any = None,
        *,
        ids: Sequence[str] | None = None,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Generation]:
        """Do as ``as_completed``, for an event loop."""
        todo, terms = self._jobs(prompts, sampling, ids), self._terms(deadline_s)
        return stream.generations_async(self._background, self._core, todo, terms)

    def submit(
        self,
        prompt: Any,
        sampling: Any = None,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Future[Generation]:
        """Ask for one prompt and return a future of its generation; blocks while the queue is full."""
        job, terms = self._job(prompt, sampling, request_id), self._terms(deadline_s)
        task = self._background.wait(self._entered(job, terms))

        async def result() -> Generation:
            return await task

        return self._background.begin(result())

    def stream(
        self,
        prompt: Any,
        sampling: Any = None,
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

    def update_weights(self, *, deadline_s: float | None = None) -> str:
        """Bring all engines to the current weights and return their version (``PoolPolicy.max_weight_lag``).

        Raises:
            WeightsError: No engine took them: refused untouched, the old ones serve on; found bad, none does.
        """
        return self._background.wait(self._versions.update(deadline_s or self._policy.weights_s))

    async def update_weights_async(self, *, deadline_s: float | None = None) -> str:
        """Do as ``update_weights``, without blocking the caller's event loop."""
        update = self._versions.update(deadline_s or self._policy.weights_s)
        return await asyncio.wrap_future(self._background.begin(update))

    def wait_ready(self, engines: int | None = None, *, timeout_s: float | None = None) -> int:
        """Wait until ``engines`` of the pool (default: all that it still has) can serve; return how many do.

        Raises:
            RecoveryTimeoutError: They could not in time.
            GaveUpError: None is left.
        """
        crew = self._core.crew
        limit_s = self._policy.start_s if timeout_s is None else timeout_s

        def wanted() -> int:
            return crew.size if engines is None else engines

        def ready() -> bool:
            return self._serving() >= wanted() or crew.nobody

        if not self._background.wait(self._core.wait_until(ready, time.monotonic() + limit_s)):
            raise RecoveryTimeoutError(f"{self._serving()} of {wanted()} engines serve after {limit_s:.0f} s")
        self._background.call(self._core.raise_if_given_up)
        return self._serving()

    def resize(self, engines: int) -> None:
        """Have ``engines`` actors from now on; those that go finish what they have.

        Raises ``GaveUpError`` when none is left, and none will come.
        """
        _check(engines)
        self._background.wait(self._core.crew.resize(engines, self._policy.drain_s))

    def drain(self, name: str, *, replace: bool = True) -> None:
        """Let one actor finish and go (its node will be taken away), by default after hiring another one."""
        if name not in self._core.connections:
            raise ConfigError(f"no engine {name!r}; there are {', '.join(self._core.connections)}")
        if replace:
            self._background.call(lambda: self._core.crew.succeed(name))
        self._background.wait(self._core.crew.dismiss(name, self._policy.drain_s))

    def forget(self, ids: Iterable[str]) -> None:
        """Forget answers: nobody will ask for these ids again. The oldest are forgotten anyway."""
        names = list(ids)
        self._background.call(lambda: self._core.desk.forget(names))

    def status(self) -> dict[str, Any]:
        """Return what runs here, in plain types."""
        return self._background.call(lambda: status_of(self._core))

    @property
    def handles(self) -> dict[str, Any]:
        """The actors' handles by name, for calls of your own."""
        return {name: self._staff.handle(name) for name in list(self._core.connections)}

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
            self._staff.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- small things

    def _jobs(self, prompts: Any, sampling: Any, ids: Sequence[str] | None) -> list[Job]:
        if self._closed:
            raise ConfigError("the pool is closed")
        return jobs(prompts, sampling, ids, uuid.uuid4().hex[:12])

    def _job(self, prompt: Any, sampling: Any, request_id: str | None) -> Job:
        return self._jobs([prompt], sampling, None if request_id is None else [request_id])[0]

    def _terms(self, deadline_s: float | None, partial: Partial = "wait", spare: Iterable[Any] = ()) -> Terms:
        return Terms(
            deadline_s=deadline_s, partial=partial, spare=spare, queue_limit=self._policy.queue_limit
        )

    async def _entered(self, job: Job, terms: Terms) -> asyncio.Task[Generation]:
        """Wait for room in the queue, and take it."""
        await self._core.wait_until(self._has_room, time.monotonic() + self._policy.start_s)
        task = asyncio.ensure_future(answer(self._core, job, terms))
        await asyncio.sleep(0)
        self._core.desk.ledger.flush()  # who has the future may say that the request was accepted
        return task

    def _has_room(self) -> bool:
        return self._core.book.queued < self._policy.queue_limit

    def _serving(self) -> int:
        return sum(slot.open for slot in list(self._core.book.slots.values()))

    def _engines(self) -> str:
        return f"{self._serving()}/{self._core.crew.size} engines"


def _check(engines: Any) -> None:
    if isinstance(engines, bool) or not isinstance(engines, int) or engines < 1:
        raise ConfigError(f"RolloutPool(engines=...) takes a whole number from 1, got {engines!r}")
