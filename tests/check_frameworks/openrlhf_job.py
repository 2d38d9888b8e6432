"""A job of OpenRLHF's parts, its engine's core killed on the way: run bare or with rayguard, tells all as JSON.

``python -m tests.check_frameworks.openrlhf_job``; rayguard is there where its three variables are.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

SPREAD = 0.2  # greedy answers differ from token to token
_LONG, _SHORT, _PROMPT = 320, 24, [11, 12, 13]
_WAIT_S, _TOLD_S = 300.0, 60.0
_TRIES, _STOPPED_S = 5, 0.5  # to stop a core in the midst of an answer, and until what it had sent has come


def engine_of(model, **options):
    """Create an engine with what ``create_vllm_engines`` gives it, a GPU aside."""
    from openrlhf.trainer.ray import vllm_engine

    given = {
        "model": str(model),
        "enforce_eager": True,
        "worker_extension_cls": "tests.check_frameworks.openrlhf_cpu.CpuWorkerWrap",
        "tensor_parallel_size": 1,
        "seed": 1,
        "distributed_executor_backend": "uni",
        "max_model_len": 400,
        "enable_prefix_caching": True,
        "dtype": "float32",
        "trust_remote_code": True,
        "full_determinism": False,
        "gpu_memory_utilization": 0.05,
        "bundle_indices": None,
        "num_gpus": 1,
        "enable_sleep_mode": False,
        "agent_func_path": None,
        "remote_rm_url": None,
        "mm_pad_token_ids": set(),
        "skip_tokenizer_init": True,
        **options,
    }
    return vllm_engine.RolloutRayActor.options(num_cpus=0, num_gpus=0).remote(**given)


class Job:
    """One engine and one policy."""

    def __init__(self, folder):
        import ray

        from rayguard.testing import tiny_qwen
        from tests.check_frameworks.openrlhf_cpu import Policy

        self.ray = ray
        model = tiny_qwen.build(folder / "model", 1, spread=SPREAD, context=400)
        self.engine = engine_of(model)
        self.pid = ray.get(self.engine.__ray_call__.remote(lambda _: os.getpid()), timeout=_WAIT_S)
        self.policy = ray.remote(num_cpus=0)(Policy).remote([self.engine])

    def asked(self, tokens=_SHORT):
        """Begin to generate; return the reference."""
        from vllm import SamplingParams

        how = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        return self.engine.generate.remote(_PROMPT, how)

    def got(self, reference):
        """Return the tokens, or how it failed."""
        try:
            return list(self.ray.get(reference, timeout=_WAIT_S).outputs[0].token_ids)
        except Exception as error:
            return said(error)

    def pushed(self, seed):
        """Return '' where a push succeeded, or how it failed."""
        try:
            self.ray.get(self.policy.push.remote(seed), timeout=_WAIT_S)
        except Exception as error:
            return said(error)
        return ""

    def core(self):
        """Return the process of the engine's core, as vLLM knows it: with rayguard it is no child of the actor."""
        import psutil

        reference = self.engine.__ray_call__.remote(_cores)
        (pid,) = self.ray.get(reference, timeout=_WAIT_S)
        found = psutil.Process(pid)
        assert found.cmdline()[0] == "VLLM::EngineCore", found
        return found

    def struck(self, whole_s):
        """Kill the core in the midst of a long answer, which takes ``whole_s``; return what came of it, and when."""
        core = self.core()
        for _ in range(_TRIES):
            reference = self.asked(_LONG)
            threading.Event().wait(whole_s / 2)
            core.suspend()
            if self.ray.wait([reference], timeout=_STOPPED_S)[1]:
                core.kill()
                began = time.monotonic()
                return self.got(reference), round(time.monotonic() - began, 1)
            core.resume()
            whole_s /= 2
        raise AssertionError("each answer was whole before the core could be stopped")


def _cores(actor):
    """Return the process ids of an actor's cores."""
    return [one.pid for one in actor.llm.engine_core.resources.engine_manager.processes]


def said(error):
    """Return an error in one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:700]}"


def run(folder):
    """Run the job; return what each of its steps gave."""
    began = time.monotonic()
    found = {}
    job = Job(folder)
    found["base"] = job.got(job.asked())
    found["start_s"] = round(time.monotonic() - began, 1)
    found["push"] = job.pushed(2)
    found["pushed"] = job.got(job.asked())
    began = time.monotonic()
    found["whole"] = job.got(job.asked(_LONG))
    found["struck"], found["struck_s"] = job.struck(time.monotonic() - began)
    found["after"] = job.got(job.asked())
    began = time.monotonic()
    found["push_after"] = job.pushed(3)
    found["push_after_s"] = round(time.monotonic() - began, 1)
    found["pushed_after"] = job.got(job.asked())
    dies = Path(os.environ["RAYGUARD_CHECK_DIES"])
    dies.touch()
    found["half_push"] = job.pushed(4)
    dies.unlink()
    found["after_half"] = job.got(job.asked())
    began = time.monotonic()
    found["push_again"] = job.pushed(3)
    found["pushed_again"] = job.got(job.asked())
    found["push_again_s"] = round(time.monotonic() - began, 1)
    os.kill(job.pid, signal.SIGKILL)
    found["actor_killed"] = job.got(job.asked())
    found["told"] = told("actor_died") if "RAYGUARD_PLUGIN" in os.environ else []
    return found


def told(kind):
    """Return what rayguard tells of a death, once it does: its agent looks now and then."""
    from rayguard.recovery.journal import default_journal

    until = time.monotonic() + _TOLD_S
    while time.monotonic() < until:
        found = [f"{one.target}: {one.cause}" for one in default_journal().read() if one.kind == kind]
        if found:
            return found
        threading.Event().wait(0.5)
    return []


def main():
    """Print what came of it."""
    import openrlhf.trainer.ray.vllm_engine  # noqa: F401 - as its command line does: before Ray is there
    import ray

    with tempfile.TemporaryDirectory() as name:
        os.environ["RAYGUARD_CHECK_DIES"] = f"{name}/dies"
        ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
        try:
            print(json.dumps(run(Path(name))), flush=True)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
