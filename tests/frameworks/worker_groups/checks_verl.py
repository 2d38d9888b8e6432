"""The checks of groups on the real verl: ``python tests/frameworks/worker_groups/checks_verl.py`` beside it.

In an environment that has verl 0.9, torch, pytest and rayguard; no GPU is needed. Prints a line of JSON for each
check. Run by its path: verl brings a package of its own that is called ``tests``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import group_checks as checks

_VARIABLES = {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def framework():
    """Return verl's own names."""
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.single_controller.ray import base

    return checks.Framework(base, Worker, register, Dispatch, {"use_gpu": False, "max_colocate_count": 1})


CHECKS = {
    "rank 1 killed inside an all-reduce": partial(checks.check_updates_are_made_again, collective=True),
    "rank 1 killed, state in a checkpoint": partial(
        checks.check_a_checkpoint_of_the_users_own, counts_what_it_saves=True
    ),
    "rank 0 killed, state in memory": partial(checks.check_a_snapshot_in_memory, collective=True),
    "rank 1 killed while it generates": checks.check_an_engine_is_awake_again,
    "an error of the workers' own": checks.check_an_error_of_the_workers_own,
    "handles given to others": checks.check_where_nothing_is_done,
}


def main(names=()):
    """Run the checks whose names begin so; say what came of each. Returns whether all hold."""
    os.environ.update(_VARIABLES)
    home = tempfile.mkdtemp(prefix="rayguard-home-")
    os.environ["RAYGUARD_HOME"] = home
    import ray

    whole = True
    of = framework()
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        for name, check in CHECKS.items():
            if names and not name.startswith(tuple(names)):
                continue
            began, said = time.monotonic(), ""
            try:
                recover_s = check(of, ray, Path(tempfile.mkdtemp(prefix="rayguard-check-")))
            except Exception as error:
                whole, recover_s, said = False, None, f"{type(error).__name__}: {error}"
            seconds = round(time.monotonic() - began, 1)
            told = {
                "fault": name,
                "survived": not said,
                "seconds": seconds,
                "recover_s": recover_s,
                "said": said,
            }
            print(json.dumps(told), flush=True)
    finally:
        ray.shutdown()
    return whole


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
