"""A vLLM scheduler that one kind of request kills: whoever asks with ``extra_args={"poison": True}``."""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler


class PoisonedScheduler(Scheduler):
    """vLLM's scheduler; runs in the engine core's process."""

    def schedule(self, *args, **kwargs):
        """Schedule; with a poison among those that run, fail."""
        for request in self.running:
            if (request.sampling_params.extra_args or {}).get("poison"):
                raise AssertionError("the poison runs")
        return super().schedule(*args, **kwargs)
