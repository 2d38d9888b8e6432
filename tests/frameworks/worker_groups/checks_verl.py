"""The checks of groups on the real verl: ``python tests/frameworks/worker_groups/checks_verl.py`` beside it.

In an environment that has verl 0.9, torch, pytest and rayguard; no GPU is needed. Prints a line of JSON for each
check: of a fault, also how it ends bare, and how the recovery compares with a fresh job that is brought to the same
point. Run by its path: verl brings a package of its own that is called ``tests``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import bare_groups
import group_checks as checks
import psutil

import rayguard

_VARIABLES = {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
PRELOADED = ("torch", "torch.distributed", "verl.single_controller.ray.base")  # in the last checks
_NOTE = "the longest recovery, over the start of a job (measured once, at first) and of a group up to the same call"


def framework():
    """Return verl's own names."""
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.single_controller.ray import base

    return checks.Framework(base, Worker, register, Dispatch, {"use_gpu": False, "max_colocate_count": 1})


UPDATE = {"method": "update_actor"}
# A fault: the check of it, and what it strikes where it is bare.
FAULTS = {
    "rank 1 killed inside an all-reduce": (
        partial(checks.check_updates_are_made_again, collective=True),
        {**UPDATE, "rank": 1, "collective": True},
    ),
    "rank 1 killed, state in a checkpoint": (
        partial(checks.check_a_checkpoint_of_the_users_own, counts_what_it_saves=True),
        {**UPDATE, "rank": 1, "counts_what_it_saves": True},
    ),
    "rank 0 killed, state in memory": (
        partial(checks.check_a_snapshot_in_memory, collective=True),
        {**UPDATE, "rank": 0, "collective": True},
    ),
    "rank 1 killed while it generates": (
        checks.check_an_engine_is_awake_again,
        {"method": "generate_sequences", "rank": 1},
    ),
}
OTHERS = {
    "an error of the workers' own": checks.check_an_error_of_the_workers_own,
    "handles given to others": checks.check_where_nothing_is_done,
}


def folder():
    """Return a folder of a check's own."""
    return Path(tempfile.mkdtemp(prefix="rayguard-check-"))


def struck(of, ray, name, start_s):
    """Return what came of one fault, bare and with rayguard."""
    check, strike = FAULTS[name]
    bare = bare_groups.ended_bare(of, ray, folder(), **strike)
    restart_s = round(start_s + bare.reach_s, 1)
    return {"fault": name, "bare": bare.said, **survived(of, ray, check, restart_s)}


def survived(of, ray, check, restart_s):
    """Return what came of a fault with rayguard, beside the seconds of a fresh job."""
    before, began, said = len(checks.incidents()), time.monotonic(), ""
    try:
        check(of, ray, folder())
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    took = [one.recover_s for one in checks.incidents()[before:] if one.recover_s is not None]
    return {
        "survived": not said,
        "seconds": round(max(took) if took else time.monotonic() - began, 1),
        "ratio_to_restart": round(max(took) / restart_s, 2) if took else None,
        "note": _NOTE,
        "restart_s": restart_s,
        "said": said,
    }


def held(of, ray, name):
    """Return whether a check of something that is no fault holds."""
    try:
        OTHERS[name](of, ray, folder())
    except Exception as error:
        return {"check": name, "holds": False, "said": f"{type(error).__name__}: {error}"}
    return {"check": name, "holds": True}


def begin(ray, **options):
    """Start Ray."""
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=4, **quiet, **options)


def main(names=()):
    """Run the checks whose names begin so; say what came of each. Returns whether all hold."""
    os.environ.update(_VARIABLES)
    os.environ["RAYGUARD_HOME"] = tempfile.mkdtemp(prefix="rayguard-home-")
    import ray

    of, whole = framework(), True

    def told(line):
        nonlocal whole
        whole &= False not in (line.get("holds"), line.get("survived"), line.get("no_fault_identical"))
        print(json.dumps(line), flush=True)

    def wanted(all_names):
        return [name for name in all_names if not names or name.startswith(tuple(names))]

    begin(ray)
    start_s, lines = time.time() - psutil.Process().create_time(), {}
    try:
        print(json.dumps({"version": version("verl"), "start_s": round(start_s, 1)}), flush=True)
        for name in wanted(FAULTS):
            lines[name] = struck(of, ray, name, start_s)
            told(lines[name])
        for name in wanted(OTHERS):
            told(held(of, ray, name))
        if not names:
            told({"no_fault_identical": bare_groups.is_identical_without_a_fault(of, ray, folder())})
        ray.shutdown()
        begin(ray, runtime_env=rayguard.preloaded(*PRELOADED))
        for name, bare in lines.items():
            found = survived(of, ray, FAULTS[name][0], bare["restart_s"])
            told({"fault": f"{name}, workers preloaded", "bare": bare["bare"], **found})
    finally:
        ray.shutdown()
    return whole


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
