"""A real vLLM engine on the CPU in this process, and faults that strike it while it works."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from rayguard.actors.guard.mixins import RolloutMixin
from rayguard.recovery.journal import default_journal

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
PROMPTS = [{"prompt_token_ids": [20 + i, 7, 90 + 3 * i, 11] * 5} for i in range(8)]
LONG = [{"prompt_token_ids": list(range(5, 205))} for _ in range(3)]


class Owner(RolloutMixin):
    """Holds an engine as a rollout actor would."""

    def __init__(self, model, kind, **more):
        self.model, self.kind, self.more = model, kind, more

    def build_engine(self, settings):
        kwargs = settings.as_kwargs(
            model=self.model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=16,
            max_num_batched_tokens=64,
            kv_cache_memory_bytes=64 << 20,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        kwargs.update(self.more)
        if self.kind == "LLM":
            from vllm import LLM

            return LLM(**kwargs)
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**kwargs))

    @property
    def serving(self):
        return self.engine_status()["serving"]

    def pid(self, which):
        pids = self.engine_status()["pids"]
        return pids["core"] if which == "core" else pids["workers"][0]

    @contextmanager
    def struck(self, which, sign=signal.SIGKILL, after_tokens=40):
        """Strike a process of the engine once it made ``after_tokens`` tokens of what runs inside."""
        base = self.engine_status()["tokens_generated"]
        struck = []
        gone = threading.Event()

        def strike():
            until = time.monotonic() + 60
            while not gone.wait(0.001) and time.monotonic() < until:
                if self.engine_status()["tokens_generated"] >= base + after_tokens:
                    pid = self.pid(which)
                    struck.append((pid, time.time()))
                    os.kill(pid, sign)
                    return

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            yield struck
        finally:
            gone.set()
            thread.join(60)
        assert len(struck) == 1, "the fault must have fired"


@contextmanager
def local_ray(name):
    """A Ray of two cores whose workers find these tests, and a folder, both gone afterwards; for a script."""
    import ray

    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        os.environ |= {"RAYGUARD_HOME": f"{folder}/home", "RAY_AUTH_MODE": "disabled"}
        path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            yield folder
        finally:
            ray.shutdown()


def incidents():
    return default_journal().read()


def told(outputs):
    """Everything a caller can see of finished requests."""
    return [
        [
            (
                tuple(c.token_ids),
                c.text,
                c.finish_reason,
                c.stop_reason,
                [{t: lp.logprob for t, lp in position.items()} for position in c.logprobs or ()],
            )
            for c in sorted(o.outputs, key=lambda c: c.index)
        ]
        for o in outputs
    ]


async def collect(engine, prompts, params, prefix):
    """Run all prompts at once on an ``AsyncLLM`` and return the final outputs in order."""

    async def one(i, prompt):
        final = None
        async for output in engine.generate(prompt, params, f"{prefix}-{i}"):
            final = output
        return final

    return await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts)))
