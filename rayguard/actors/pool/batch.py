"""A batch of prompts through the pool: handed in with back-pressure, collected, completed as was said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from rayguard.actors.pool.request import check_sampling, fan_out
from rayguard.actors.pool.result import Batch, Generation
from rayguard.errors import BatchError, ConfigError, RayguardError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.actors.pool.core import PoolCore
    from rayguard.actors.pool.result import Sample

Partial = Literal["wait", "shrink", "replace"]
_AT_ONCE = 1024  # prompts that enter the queue in one turn of the loop,
_EACH = 16  # or this many for each actor, where that is more: what one gets comes in few calls
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


def _plain_once(sampling: Any) -> Any:
    """Return as plain values what all prompts share; what is refused is refused for each of them later."""
    with contextlib.suppress(RequestError):
        return check_sampling(sampling)
    return sampling


async def answer(core: PoolCore, job: Job, terms: Terms) -> Generation:
    """Return all samples of one prompt; what could not be had is in ``error``."""
    whole: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()

    def tell(generation: Generation) -> None:
        if not whole.done():  # who asked may have gone away
            whole.set_result(generation)

    ask(core, job, terms, tell)
    return await whole


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
    asked = _Asked(job.id, futures, tell, len(futures))
    for future in futures:
        future.add_done_callback(asked.one_is_done)


@dataclass(slots=True)
class _Asked:
    """The samples of one prompt that are waited for; ``left`` of them are not there yet."""

    id: str
    futures: Sequence[asyncio.Future[Sample]]
    tell: Callable[[Generation], object]
    left: int

    def one_is_done(self, _: asyncio.Future[Sample]) -> None:
        """Count; tell of all when this was the last one."""
        self.left -= 1
        if not self.left:
            errors = [e for future in self.futures if isinstance(e := future.exception(), Exception)]
            samples = tuple(future.result() for future in self.futures if future.exception() is None)
            self.tell(Generation(id=self.id, samples=samples, error=errors[0] if errors else None))


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
            core.cancel_groups({todo[place].id for place in waiting})


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


def _replaced(place: int, job: Job, spare: Any, number: int) -> list[tuple[int, Job]]:
    """Return what takes the place of a prompt, nothing where there is no other prompt left."""
    for prompt in spare:
        return [(place, Job(id=f"{job.id}+{number}", prompt=prompt, sampling=job.sampling))]
    return []
