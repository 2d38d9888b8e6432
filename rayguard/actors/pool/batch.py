"""A batch of prompts through the pool: handed in with back-pressure, collected, completed as was said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rayguard.actors.pool.request import check_sampling, fan_out
from rayguard.actors.pool.result import Batch, Generation, Sample
from rayguard.errors import BatchError, ConfigError, RayguardError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.actors.pool.core import PoolCore

Partial = Literal["wait", "shrink", "replace"]
_AT_ONCE = 1024  # prompts that enter the queue in one turn of the loop
PARTIAL = ("wait", "shrink", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt of a batch."""

    id: str
    prompt: Any
    sampling: Any
    named: bool = False  # by the caller, who can ask for it again


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a batch is to be answered."""

    deadline_s: float | None = None
    partial: Partial = "wait"
    spare: Iterable[Any] = ()
    queue_limit: int = 1 << 20

    def __post_init__(self) -> None:
        """Refuse terms that mean nothing."""
        if self.partial not in PARTIAL:
            raise ConfigError(f"partial must be one of {', '.join(PARTIAL)}, got {self.partial!r}")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ConfigError(f"deadline_s must be more than 0 seconds, got {self.deadline_s}")


def jobs(prompts: Any, sampling: Any, ids: Sequence[str] | None, prefix: str) -> list[Job]:
    """Return the jobs of a batch: one for each prompt, with an id and sampling options of its own.

    Raises:
        RequestError: There are not as many ids or options as prompts, or an id is none.
    """
    if isinstance(prompts, (str, bytes, Mapping)):
        raise RequestError("", "generate takes a list of prompts; put the one prompt into a list")
    listed = list(prompts)
    if listed and all(isinstance(prompt, int) for prompt in listed):
        raise RequestError(
            "", "generate takes a list of prompts, these are the tokens of one: put them into a list"
        )
    names = [f"{prefix}-{n}" for n in range(len(listed))] if ids is None else list(ids)
    options = list(sampling) if isinstance(sampling, (list, tuple)) else [sampling] * len(listed)
    for what, there in (("ids", names), ("sampling", options)):
        if len(there) != len(listed):
            raise RequestError(
                "", f"{len(listed)} prompts, but {len(there)} {what}: give one for each prompt"
            )
    for name in names:
        if not isinstance(name, str) or not name:
            raise RequestError("", f"a request id is text that is not empty, got {name!r}")
    return [
        Job(id=name, prompt=prompt, sampling=option, named=ids is not None)
        for name, prompt, option in zip(names, listed, options, strict=True)
    ]


async def answer(core: PoolCore, job: Job, terms: Terms) -> Generation:
    """Return all samples of one prompt; what could not be had is in ``error``."""
    try:
        requests = fan_out(job.id, job.prompt, check_sampling(job.sampling))
        futures = [core.submit(request, terms.deadline_s, keep=job.named) for request in requests]
    except RayguardError as refused:
        return Generation(id=job.id, error=_named(refused, job.id))
    # Shielded: someone else may wait for the same ids.
    if len(futures) == 1:
        try:
            return Generation(id=job.id, samples=(await asyncio.shield(futures[0]),))
        except RayguardError as error:
            return Generation(id=job.id, error=error)
    answers = await asyncio.gather(*(asyncio.shield(f) for f in futures), return_exceptions=True)
    errors = [e for e in answers if isinstance(e, Exception)]
    return Generation(
        id=job.id,
        samples=tuple(a for a in answers if isinstance(a, Sample)),
        error=errors[0] if errors else None,
    )


def _named(refused: RayguardError, name: str) -> RayguardError:
    return (
        RequestError(name, refused.reason)
        if type(refused) is RequestError and not refused.request
        else refused
    )


async def as_completed(
    core: PoolCore, todo: Sequence[Job], terms: Terms
) -> AsyncIterator[tuple[int, Generation]]:
    """Yield place and generation of each prompt, in the order in which they are answered.

    When the reader goes away, what was not answered yet is given up.
    """
    done: asyncio.Queue[tuple[int, Generation]] = asyncio.Queue()  # asyncio.wait would look at all, each time
    waiting: dict[int, asyncio.Task[None]] = {}

    async def one(place: int, job: Job) -> None:
        done.put_nowait((place, await answer(core, job, terms)))

    left = list(enumerate(todo))[::-1]
    try:
        while left or waiting:
            while left and core.book.queued < terms.queue_limit:
                # Together, so that they are dispatched together: one call for all that an actor gets.
                for place, job in [left.pop() for _ in range(min(len(left), _room(core, terms)))]:
                    waiting[place] = asyncio.ensure_future(one(place, job))
                await asyncio.sleep(0)  # they are in the queue now, where the limit sees them
            place, generation = await done.get()
            del waiting[place]
            yield place, generation
    finally:
        for task in waiting.values():
            task.cancel()
        if waiting:
            core.cancel_groups({todo[place].id for place in waiting})


def _room(core: PoolCore, terms: Terms) -> int:
    return max(1, min(_AT_ONCE, terms.queue_limit - core.book.queued))


async def collect(
    core: PoolCore, todo: Sequence[Job], terms: Terms, seen: Callable[[Generation], None] | None = None
) -> Batch:
    """Return the whole batch in the order of its prompts.

    Raises:
        BatchError: ``partial`` is "wait" and some prompts have no whole answer.
    """
    found: dict[int, Generation] = {}
    missing: list[Generation] = []
    spare = iter(terms.spare)
    round_ = list(enumerate(todo))
    tried = 0
    while round_:
        places = [place for place, _ in round_]
        again: list[tuple[int, Job]] = []
        async for at, generation in as_completed(core, [job for _, job in round_], terms):
            if generation.error is None:
                found[places[at]] = generation
            else:
                missing.append(generation)
                if terms.partial == "replace":
                    again.extend(_replaced(places[at], todo[places[at]], spare, tried := tried + 1))
            if seen is not None:
                seen(generation)
        round_ = again
    batch = Batch([found[place] for place in sorted(found)], missing)
    if terms.partial == "wait" and missing:
        raise BatchError(len(missing), str(missing[0].error), batch)
    return batch


def _replaced(place: int, job: Job, spare: Any, number: int) -> list[tuple[int, Job]]:
    """Return what takes the place of a prompt, nothing where there is no other prompt left."""
    for prompt in spare:
        return [(place, Job(id=f"{job.id}+{number}", prompt=prompt, sampling=job.sampling))]
    return []
