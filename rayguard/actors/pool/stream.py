"""The tokens of one completion as they come, and generations as they are done: news from the pool's loop."""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING, Any

from rayguard.actors.pool.batch import Job, Terms, answer, as_completed
from rayguard.actors.pool.wire import Failed, Finished, Progressed, Restarted
from rayguard.engine.generated import Generated
from rayguard.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from rayguard.actors.pool.background import Background
    from rayguard.actors.pool.core import PoolCore
    from rayguard.actors.pool.result import Generation
    from rayguard.actors.pool.wire import Event


def generations(
    background: Background, core: PoolCore, todo: Sequence[Job], terms: Terms
) -> Iterator[Generation]:
    """Yield generations as they are done, to a thread."""
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def feed() -> None:
        try:
            async for _, generation in as_completed(core, todo, terms):
                news.put(generation)
        finally:
            news.put(None)

    feeding = background.begin(feed())
    try:
        while (generation := news.get()) is not None:
            yield generation
    finally:
        feeding.cancel()


async def generations_async(
    background: Background, core: PoolCore, todo: Sequence[Job], terms: Terms
) -> AsyncIterator[Generation]:
    """Yield generations as they are done, to another event loop."""
    loop, news = asyncio.get_running_loop(), asyncio.Queue[Any]()

    async def feed() -> None:
        try:
            async for _, generation in as_completed(core, todo, terms):
                loop.call_soon_threadsafe(news.put_nowait, generation)
        finally:
            loop.call_soon_threadsafe(news.put_nowait, None)

    feeding = background.begin(feed())
    try:
        while (generation := await news.get()) is not None:
            yield generation
    finally:
        feeding.cancel()


async def tokens(background: Background, core: PoolCore, job: Job, terms: Terms) -> AsyncIterator[Generated]:
    """Yield the tokens of one completion, to another event loop."""
    loop, news = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def tell(event: Event) -> None:
        loop.call_soon_threadsafe(news.put_nowait, event)

    async def begin() -> None:
        core.desk.listen(job.id, tell)
        generation = await answer(core, job, terms)
        if generation.error is not None:
            tell(Failed(job.id, generation.error))
        else:
            tell(Finished(job.id, generation.samples[0]))

    async def give_up() -> None:
        core.cancel_groups((job.id,))

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
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Restarted):
        if given:
            raise RequestError(job.id, "it could not go on exactly where a fault cut it; ask again")
        return Generated()
    if isinstance(event, Progressed):
        return event.more.since(max(0, given - event.start))
    return event.sample.generated.since(given)
