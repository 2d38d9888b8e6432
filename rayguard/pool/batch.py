"""A batch of prompts through the pool: handed in with back-pressure, collected, completed as was said."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from rayguard.errors import BatchError, ConfigError, RayguardError, RequestError
from rayguard.pool.values.request import check_sampling, fan_out
from rayguard.pool.values.result import Batch, Generation, Sample

if TYPE_CHECKING:
    from rayguard.pool.core import PoolCore

Partial = Literal["wait", "shrink", "replace"]
_AT_ONCE = 1024  # prompts that enter the queue in one turn of the loop,
_EACH = 16  # or this many for each actor, where that is more: what one gets comes in few calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt of a batch."""

    id: str
    prompt: object
    sampling: object
    named: bool = False  # by the caller, who can ask for it again


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a batch is to be answered."""

    deadline_s: float | None = None
    partial: Partial = "wait"
    spare: Iterable[object] = ()
    queue_limit: int = 1 << 20

    def __post_init__(self) -> None:
        """Refuse terms that mean nothing."""
        if self.partial not in get_args(Partial):
            raise ConfigError(f"partial must be one of {', '.join(get_args(Partial))}, got {self.partial!r}")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ConfigError(f"deadline_s must be more than 0 seconds, got {self.deadline_s}")


def jobs(prompts: object, sampling: object, ids: Sequence[str] | None, prefix: str) -> list[Job]:
    """Return the jobs of a batch: one for each prompt, with an id and sampling options of its own.

    Raises:
        RequestError: There are not as many ids or options as prompts, or an id is none.
    """
    if isinstance(prompts, (str, bytes, Mapping)):
        raise RequestError("", "generate takes a list of prompts; put the one prompt into a list")
    if not isinstance(prompts, Iterable):
        raise RequestError("", f"generate takes a list of prompts, got {type(prompts).__name__}")
    listed = list(prompts)
    if listed and all(isinstance(prompt, int) for prompt in listed):
        raise RequestError(
            "", "generate takes a list of prompts, these are the tokens of one: put them into a list"
        )
    names = [f"{prefix}-{n}" for n in range(len(listed))] if ids is None else list(ids)
    options = list(sampling) if isinstance(sampling, (list, tuple)) else [_plain_once(sampling)] * len(listed)
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


def _plain_once(sampling: object) -> object:
    """Return as plain values what all prompts share; what is refused is refused for each of them later."""
    with contextlib.suppress(RequestError):
        return check_sampling(sampling)
    return sampling


async def enter(core: PoolCore, job: Job, terms: Terms, limit_s: float) -> Future[Generation]:
    """Wait for room in the queue, and take it; what is returned gets the answer, for any thread."""
    await core.wait_until(lambda: core.book.queued < terms.queue_limit, time.monotonic() + limit_s)
    whole: Future[Generation] = Future()

    def tell(generation: Generation) -> None:
        with contextlib.suppress(InvalidStateError):  # who asked may have cancelled it
            whole.set_result(generation)

    ask(core, job, terms, tell)
    core.tickets.ledger.flush()  # who has the future may say that the request was accepted
    return whole


def ask(core: PoolCore, job: Job, terms: Terms, tell: Callable[[Generation], object]) -> None:
    """Ask for all samples of one prompt; ``tell`` is called once, with all that could be had.

    Nothing is awaited, since a task for each request would cost more than the request. The futures are never
    cancelled: someone else may wait for the same ids.
    """
    try:
        requests = fan_out(job.id, job.prompt, check_sampling(job.sampling))
        futures = [core.submit(request, terms.deadline_s, keep=job.named) for request in requests]
    except RayguardError as refused:
        tell(Generation(id=job.id, error=_named(refused, job.id)))
        return
    left = len(futures)

    def one_is_done(_: asyncio.Future[Sample]) -> None:  # ``gather`` takes several times as long
        nonlocal left
        left -= 1
        if not left:
            errors = [e for future in futures if isinstance(e := future.exception(), Exception)]
            samples = tuple(future.result() for future in futures if future.exception() is None)
            tell(Generation(id=job.id, samples=samples, error=errors[0] if errors else None))

    for future in futures:
        future.add_done_callback(one_is_done)


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
    waiting: set[int] = set()

    def tell(place: int, generation: Generation) -> None:
        done.put_nowait((place, generation))

    begun = 0
    try:
        while begun < len(todo) or waiting:
            while begun < len(todo) and core.book.queued < terms.queue_limit:
                # Together, so that they are dispatched together: one call for all that an actor gets.
                for place in range(begun, min(len(todo), begun + _room(core, terms))):
                    waiting.add(place)
                    ask(core, todo[place], terms, partial(tell, place))
                    begun += 1
                await asyncio.sleep(0)  # they are dispatched now; the others of this loop have their turn
            place, generation = await done.get()
            waiting.remove(place)
            yield place, generation
    finally:
        if waiting:
            core.cancel(core.tickets.of_groups({todo[place].id for place in waiting}))


def _room(core: PoolCore, terms: Terms) -> int:
    at_once = max(_AT_ONCE, _EACH * len(core.connections))
    return max(1, min(at_once, terms.queue_limit - core.book.queued))


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


def _replaced(place: int, job: Job, spare: Iterator[object], number: int) -> list[tuple[int, Job]]:
    """Return what takes the place of a prompt, nothing where there is no other prompt left."""
    for prompt in spare:
        return [(place, Job(id=f"{job.id}+{number}", prompt=prompt, sampling=job.sampling))]
    return []
