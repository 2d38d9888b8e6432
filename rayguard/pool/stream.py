"""The tokens of one completion as they come, and generations as they are done: news from the pool's loop."""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING

from rayguard.engine.generated import Generated
from rayguard.errors import RequestError
from rayguard.pool.actors.messages import CallFailed, Event, Finished, Progressed, Restarted
from rayguard.pool.batch import Job, Terms, as_completed, ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from rayguard.pool.background_loop import Background
    from rayguard.pool.core import PoolCore
    from rayguard.pool.values.result import Generation


def generations(
    background: Background, core: PoolCore, todo: Sequence[Job], terms: Terms
) -> Iterator[Generation]:
    """Yield generations as they are done, to a thread."""
    news: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
    feeding = background.begin(_feed(core, todo, terms, news.put))
    try:
        yield from iter(news.get, None)
    finally:
        feeding.cancel()


async def generations_async(
    background: Background, core: PoolCore, todo: Sequence[Job], terms: Terms
) -> AsyncIterator[Generation]:
    """Yield generations as they are done, to another event loop."""
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[Generation | None] = asyncio.Queue()

    def put(generation: Generation | None) -> None:
        loop.call_soon_threadsafe(news.put_nowait, generation)

    feeding = background.begin(_feed(core, todo, terms, put))
    try:
        while (generation := await news.get()) is not None:
            yield generation
    finally:
        feeding.cancel()


async def _feed(
    core: PoolCore, todo: Sequence[Job], terms: Terms, put: Callable[[Generation | None], object]
) -> None:
    """Hand over generations, and None behind the last one."""
    try:
        async for _, generation in as_completed(core, todo, terms):
            put(generation)
    finally:
        put(None)


async def tokens(background: Background, core: PoolCore, job: Job, terms: Terms) -> AsyncIterator[Generated]:
    """Yield the tokens of one completion, to another event loop."""
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[Event] = asyncio.Queue()

    def tell(event: Event) -> None:
        loop.call_soon_threadsafe(news.put_nowait, event)

    def done(generation: Generation) -> None:
        error = generation.error
        tell(Finished(job.id, generation.samples[0]) if error is None else CallFailed(job.id, error))

    async def begin() -> None:
        core.tickets.listen(job.id, tell)
        ask(core, job, terms, done)

    async def give_up() -> None:
        core.cancel(core.tickets.of_groups((job.id,)))

    background.begin(begin())
    given = 0
    try:
        while True:
            event = await news.get()
            fresh = _news(event, given, job)
            given += len(fresh)
            if len(fresh):
                yield fresh
            if isinstance(event, Finished):
                return
    finally:  # the reader went away, or it is done: then there is nothing to give up
        background.begin(give_up())


def _news(event: Event, given: int, job: Job) -> Generated:
    """Return what ``event`` brings after the first ``given`` tokens."""
    if isinstance(event, CallFailed):
        raise event.error
    if isinstance(event, Restarted):
        if given:
            raise RequestError(job.id, "it could not go on exactly where a fault cut it; ask again")
        return Generated()
    if isinstance(event, Progressed):
        return event.more.since(max(0, given - event.start))
    return event.sample.generated.since(given)
