"""Who of a group of workers is dead: asked of each, with a deadline. One that is busy says nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rayguard.frameworks.worker_groups import group_incidents
from rayguard.ray_internals.actor_classes import ask_ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray import ObjectRef

_MORE_S = 0.1  # for others that died with the first


def dead_ranks(workers: Sequence[object], within_s: float) -> dict[int, BaseException]:
    """Return the ranks whose workers serve no more, each with what Ray says of it; empty where all live.

    Comes back as soon as one is found; a worker that Ray restarts by itself counts, it is a blank one.
    """
    import ray  # noqa: PLC0415 - only where a group was made

    asked = {ask_ready(worker): rank for rank, worker in enumerate(workers)}
    waiting = list(asked)
    dead: dict[int, BaseException] = {}
    until = time.monotonic() + within_s
    while waiting and (left := until - time.monotonic()) > 0:
        answered, waiting = ray.wait(waiting, num_returns=1, timeout=left)
        for one in answered:
            error = _death(one)
            if error is not None:
                dead[asked[one]] = error
                until = min(until, time.monotonic() + _MORE_S)
    return dead


def patience_s(error: BaseException, ask_s: float, broken_s: float) -> float:
    """Return how long to ask after ``error``: longer where it says that another process has gone."""
    from ray.exceptions import RayActorError  # noqa: PLC0415 - as above

    if isinstance(error, RayActorError) or group_incidents.speaks_of_others(error):
        return broken_s
    return ask_s


def all_ready(workers: Sequence[object], within_s: float) -> bool:
    """Say whether all workers have come up in time.

    Raises:
        ray.exceptions.RayError: One could not.
    """
    import ray  # noqa: PLC0415 - as above

    asked = [ask_ready(worker) for worker in workers]
    answered, waiting = ray.wait(asked, num_returns=len(asked), timeout=within_s)
    ray.get(answered, timeout=_MORE_S)
    return not waiting


def end_all(workers: Sequence[object], within_s: float) -> None:
    """End the processes of these workers, and wait until all have ended, or for so long.

    New ones wait for the place of those that are late, within their own deadline.
    """
    import ray  # noqa: PLC0415 - as above

    for worker in workers:
        ray.kill(worker, no_restart=True)
    asked = [ask_ready(worker) for worker in workers]
    ray.wait(asked, num_returns=len(asked), timeout=within_s)


def _death(answer: ObjectRef) -> BaseException | None:
    import ray  # noqa: PLC0415 - as above
    from ray.exceptions import RayActorError, RayError  # noqa: PLC0415 - as above

    try:
        ray.get(answer, timeout=_MORE_S)
    except RayError as error:
        return error if isinstance(error, RayActorError) else None
    return None
