"""A vLLM scheduler with a fuse: once, when told to, it breaks the way a scheduler with a bug does.

It hands out a KV-cache block that is still in use, and vLLM's own assertion fails inside ``schedule()``. Runs
in the engine core's process. Give it to an engine with ``**fused(path)`` (``rayguard.testing.fuse``) among
its arguments and light it with ``Fuse(path).light(after=3)``. Unlit, it is vLLM's own scheduler.

With a folder for it among ``additional_config`` it also leaves a witness of what each request has
(``rayguard.testing.witness``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from rayguard.errors import ConfigError
from rayguard.testing import witness
from rayguard.testing.fuse import CONFIG_KEY, Fuse


class FusedScheduler(Scheduler):  # type: ignore[misc]  # vLLM's class has no types here
    """vLLM's scheduler; with its fuse lit and chunked prefill on, its block pool gets out of order once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = self.vllm_config.additional_config.get(CONFIG_KEY)
        if not path:
            raise ConfigError(f"FusedScheduler needs its fuse: additional_config={{{CONFIG_KEY!r}: path}}")
        self._fuse = Fuse(Path(path))
        self._calls = 0
        folder = self.vllm_config.additional_config.get(witness.CONFIG_KEY)
        self._witness = witness.WitnessWriter(Path(folder)) if folder else None

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule; with the fuse burnt down, this very call fails."""
        # Only while some requests run, so that they lose tokens.
        if self.running and self.scheduler_config.enable_chunked_prefill and self._needs_block():
            self._count_down()
        try:
            return super().schedule(*args, **kwargs)
        except AssertionError:
            if self._witness is not None:
                self._witness.fail()
            raise

    def _needs_block(self) -> bool:
        """Say whether this call hands a block out: to a request that waits, or one that outgrew its own."""
        if self.waiting and len(self.running) < self.max_num_running_reqs:
            return True
        size = self.cache_config.block_size
        return any((r.num_tokens - 1) // size > (r.num_computed_tokens - 1) // size for r in self.running)

    def add_request(self, request: Any) -> None:
        """Take a request in."""
        super().add_request(request)
        if self._witness is not None:
            self._witness.begin(request.request_id, request.num_tokens)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take a step's tokens in."""
        if self._witness is None:
            return super().update_from_output(scheduler_output, model_runner_output)
        stepped = [
            r for i in scheduler_output.num_scheduled_tokens if (r := self.requests.get(i)) is not None
        ]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request in stepped:
            self._witness.see(request.request_id, request.num_tokens)
            if request.is_finished():
                self._witness.end(request.request_id)
        return outputs

    def _count_down(self) -> None:
        after = self._fuse.calls_left()
        if after is None:
            return
        self._calls += 1
        if self._calls >= after and self._fuse.burn():
            free = self.kv_cache_manager.block_pool.free_block_queue
            free.fake_free_list_head.next_free_block.ref_cnt += 1
