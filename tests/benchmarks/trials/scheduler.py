"""What runs in the processes of engines that trials strike: a scheduler with a fuse and a witness, and workers."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.testing.scheduler import FusedScheduler
from tests.benchmarks.trials import witness

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request


class WitnessedScheduler(FusedScheduler):
    """Leaves a witness of what each request has."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        folder = self.vllm_config.additional_config[witness.CONFIG_KEY]
        self._witness = witness.WitnessWriter(Path(folder))

    def schedule(self, *args: object, **kwargs: object) -> SchedulerOutput:
        """Schedule; with the fuse burnt down, this very call fails."""
        try:
            return super().schedule(*args, **kwargs)
        except AssertionError:
            self._witness.fail()
            raise

    def add_request(self, request: Request) -> None:
        """Take a request in."""
        super().add_request(request)
        self._witness.begin(request.request_id, request.num_tokens)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> object:
        """Take a step's tokens in."""
        stepped = [
            r for i in scheduler_output.num_scheduled_tokens if (r := self.requests.get(i)) is not None
        ]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request in stepped:
            self._witness.see(request.request_id, request.num_tokens)
            if request.is_finished():
                self._witness.end(request.request_id)
        return outputs


class FaultyWorker:
    """What users call into workers and should not: mixed into vLLM's by ``worker_extension_cls``."""

    def exit_now(self) -> None:
        """End the worker without a word."""
        os._exit(5)

    def hang(self) -> None:
        """Never return, as in a collective that another rank never joins."""
        threading.Event().wait()
