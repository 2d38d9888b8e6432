"""An event loop in a thread of its own, for owners that have none, or have one that is busy."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")
_END_S = 5.0


class Background:
    """A loop that runs until ``stop``."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    def begin(self, work: Coroutine[None, None, T]) -> Future[T]:
        """Run ``work`` on the loop; returns at once."""
        if self.loop.is_closed():
            work.close()
            raise ConfigError("the pool is closed")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[None, None, T], timeout_s: float | None = None) -> T:
        """Run ``work`` on the loop and return what it returns; when interrupted, it is cancelled."""
        future = self.begin(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the loop."""

        async def work() -> T:
            return function()

        return self.wait(work())

    def stop(self) -> None:
        """End the loop and its thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_END_S)
