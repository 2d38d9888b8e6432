"""A vLLM scheduler with a fuse: once, when told to, it breaks the way a scheduler with a bug does.

It hands out a KV-cache block that is still in use, and vLLM's own assertion fails inside ``schedule()``. Runs
in the engine core's process. Give it to an engine with ``**fused(path)`` (``rayguard.testing.fuse``) among
its arguments and light it with ``Fuse(path).light(after=3)``. Unlit, it is vLLM's own scheduler.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm.v1.core.sched.scheduler import Scheduler

from rayguard.errors import ConfigError
from rayguard.testing.fuse import CONFIG_KEY, Fuse

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class FusedScheduler(Scheduler):  # type: ignore[misc]  # vLLM's class has no types here
    """vLLM's scheduler; with its fuse lit and chunked prefill on, its block pool gets out of order once."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        path = self.vllm_config.additional_config.get(CONFIG_KEY)
        if not path:
            raise ConfigError(f"FusedScheduler needs its fuse: additional_config={{{CONFIG_KEY!r}: path}}")
        self._fuse = Fuse(Path(path))
        self._calls = 0

    def schedule(self, *args: object, **kwargs: object) -> SchedulerOutput:
        """Schedule; with the fuse burnt down, this very call fails."""
        # Only while some requests run, so that they lose tokens.
        if self.running and self.scheduler_config.enable_chunked_prefill and self._needs_block():
            self._count_down()
        return super().schedule(*args, **kwargs)

    def _needs_block(self) -> bool:
        """Say whether this call hands a block out: to a request that waits, or one that outgrew its own."""
        if self.waiting and len(self.running) < self.max_num_running_reqs:
            return True
        size = self.cache_config.block_size
        return any((r.num_tokens - 1) // size > (r.num_computed_tokens - 1) // size for r in self.running)

    def _count_down(self) -> None:
        after = self._fuse.calls_left()
        if after is None:
            return
        self._calls += 1
        if self._calls >= after and self._fuse.burn():
            free = self.kv_cache_manager.block_pool.free_block_queue
            free.fake_free_list_head.next_free_block.ref_cnt += 1
