"""OpenRLHF's real ``RayActorGroup`` with small ranks over gloo, killed on the way: told as lines of JSON.

``python -m tests.check_frameworks.openrlhf_groups`` in its environment. DeepSpeed is made up; ranks have a torch
module and its AdamW, whose gradients go through an all-reduce. Ray has GPUs in name only.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil

import rayguard
from tests.check_frameworks.openrlhf_absent import make_up
from tests.frameworks.actor_groups import actor_group_checks as checks

_READY = "tests.frameworks.actor_groups.openrlhf_ready"
_OF = {"num_gpus": 1, "collective": True}


def folder():
    """Return a folder of a check's own."""
    return Path(tempfile.mkdtemp(prefix="rayguard-check-"))


def ended_bare(launcher, ray):
    """Return how a death within an update ends without rayguard, and how long it took until then."""
    began = time.monotonic()
    run = checks.ActorRun(launcher, ray, folder(), **_OF)
    try:
        run.step(checks.STEPS[0])
        reach_s = time.monotonic() - began
        run.strike("fit", 1)
        try:
            run.step(checks.STEPS[1])
        except Exception as error:
            return type(error).__name__, reach_s
        return "answered", reach_s
    finally:
        run.close()


def told(check, name, *, fault, start_s, bare):
    """Print what came of a check."""
    said, before, began = "", len(checks.incidents()), time.monotonic()
    try:
        check()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    took = [one.recover_s for one in checks.incidents()[before:] if one.recover_s is not None]
    seconds = max(took) if took else time.monotonic() - began
    line = {"check": name, "holds": not said, "said": said}
    if fault:
        line = {
            "fault": name,
            "bare": bare[0],
            "survived": not said,
            "seconds": round(seconds, 1),
            "ratio_to_restart": round(seconds / (start_s + bare[1]), 2),
            "note": "the longest recovery, over the start of a job and of a group up to the same call",
            "said": said,
        }
    print(json.dumps(line), flush=True)
    return not said


def begin(ray, more=None):
    """Start Ray, with GPUs in name only."""
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    environment = {"worker_process_setup_hook": make_up, **(more or {})}
    ray.init(address="local", num_cpus=8, num_gpus=8, runtime_env=environment, **quiet)


def under_deaths(launcher, ray, expected, of, workers=""):
    """Kill ranks at work; return whether the group went on as if they had not been."""
    steps = partial(checks.check_steps_under_deaths, launcher, ray, folder(), expected, **_OF)
    under_way = partial(checks.check_references_that_were_under_way, launcher, ray, folder(), **_OF)
    elsewhere = partial(checks.check_a_group_that_another_process_trains, launcher, ray, folder(), **_OF)
    struck = {
        "group: rank 1, then rank 0 killed inside an update and between calls": steps,
        "group: rank 1 killed with calls under way": under_way,
        "group: rank 0 killed where another process trains": elsewhere,
    }
    came = [of(check, name + workers, fault=True) for name, check in struck.items()]
    return all(came)


def main():
    """Run all; return whether all is as it should be."""
    make_up()
    os.environ["RAYGUARD_HOME"] = tempfile.mkdtemp(prefix="rayguard-home-")
    import ray
    from openrlhf.trainer.ray import launcher

    begin(ray)
    start_s = time.time() - psutil.Process().create_time()
    try:
        bare = ended_bare(launcher, ray)
        expected = checks.fault_free(launcher, ray, folder(), **_OF)
        of = partial(told, start_s=start_s, bare=bare)
        with checks.looked_after(launcher):
            same = checks.fault_free(launcher, ray, folder(), **_OF) == expected
        print(json.dumps({"no_fault_identical": same}), flush=True)
        whole = under_deaths(launcher, ray, expected, of)
        ray.shutdown()
        begin(ray, rayguard.preloaded(_READY))
        return same & whole & under_deaths(launcher, ray, expected, of, ", workers preloaded")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(not main())
