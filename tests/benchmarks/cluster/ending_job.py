"""A job that works until it ends as it is told: by itself, killed from outside, or after deaths of its workers.

Prints its id and its pid, then a line of JSON for each step, and one for each death.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time

import ray

import rayguard

HOW = ("end", "killed", "exit", "given_up")
_STEP_S = 0.2
_CALL_S = 120.0


@ray.remote(num_cpus=0)
class Mayfly:
    """A worker of somebody who has never heard of fault tolerance."""

    def step(self) -> int:
        time.sleep(_STEP_S)  # noqa: TID251 - what a user writes
        return os.getpid()

    def exit(self) -> None:
        os._exit(3)

    def leave(self) -> None:
        ray.actor.exit_actor()


@ray.remote(num_cpus=0)
@rayguard.guard(
    state="none",
    policy=rayguard.GuardPolicy(process_budget=rayguard.RestartBudget(max_restarts=1, within_s=3_600.0)),
)
class Doomed:
    """One that rayguard starts again, as often as it may."""

    def step(self) -> int:
        return os.getpid()

    def exit(self) -> None:
        os._exit(3)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--address", required=True)
    options.add_argument("--how", choices=HOW, required=True)
    options.add_argument("--seconds", type=float, default=60.0, help="how long it works after that")
    chosen = options.parse_args()
    ray.init(address=chosen.address, runtime_env={"rayguard": {}}, log_to_driver=False)
    say(job=int(ray.get_runtime_context().get_job_id(), 16), pid=os.getpid())
    flies = [Mayfly.remote() for _ in range(2)]
    work(flies, 10)
    spoil(chosen.how)
    until = time.monotonic() + chosen.seconds
    while time.monotonic() < until:
        work(flies, 10)
    if chosen.how == "end":  # in each way that a user may wish
        ray.kill(flies[0])
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(flies[1].leave.remote(), timeout=_CALL_S)
        flies = [Mayfly.remote()]
        work(flies, 10)
    say(over=1)
    return 0


def say(**what: int) -> None:
    """Tell who watches."""
    print(json.dumps(what), flush=True)


def work(flies: list[ray.actor.ActorHandle], steps: int) -> None:
    """Do what a job does all the time."""
    for _ in range(steps):
        ray.get([fly.step.remote() for fly in flies], timeout=_CALL_S)
    say(step=steps)


def spoil(how: str) -> None:
    """Let workers end themselves; the job goes on without them."""
    if how == "exit":
        fly = Mayfly.remote()
        say(dead=ray.get(fly.step.remote(), timeout=_CALL_S))
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(fly.exit.remote(), timeout=_CALL_S)
    if how == "given_up":
        doomed = Doomed.remote()
        while (pid := alive(doomed)) is not None:
            say(dead=pid)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(doomed.exit.remote(), timeout=_CALL_S)
        say(given_up=1)


def alive(actor: ray.actor.ActorHandle) -> int | None:
    """Wait until an actor that restarts lives again, and return its pid; None where it is given up."""
    with contextlib.suppress(ray.exceptions.ActorUnavailableError):
        try:
            return int(ray.get(actor.step.remote(), timeout=_CALL_S))
        except rayguard.RayguardError:
            return None
    time.sleep(_STEP_S)  # noqa: TID251 - what a user writes
    return alive(actor)


if __name__ == "__main__":
    sys.exit(main())
