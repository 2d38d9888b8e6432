"""Looks, between two weight updates, who of a manager's actors is dead: at what Ray has told this process."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.frameworks.verl_rollouts.interfaces import CheckpointEngineManager


def begin(
    manager: CheckpointEngineManager, watch_s: float, look: Callable[[CheckpointEngineManager], object]
) -> None:
    """Call ``look(manager)`` once for each actor of its replicas whose process has ended.

    Looks every ``watch_s``. Ends with the manager, or with the job.
    """
    args = weakref.ref(manager), watch_s, look
    threading.Thread(target=_run, args=args, name="rayguard-replica-watch", daemon=True).start()


def _run(
    of: Callable[[], CheckpointEngineManager | None],
    watch_s: float,
    look: Callable[[CheckpointEngineManager], object],
) -> None:
    import ray  # noqa: PLC0415 - where verl has replicas, Ray is

    from rayguard.ray_internals.gcs_subscription import LocalActorStates  # noqa: PLC0415 - as above

    with harmless("rollout"):
        states, seen, wait = LocalActorStates(), set[str](), threading.Event()
        while not wait.wait(watch_s) and ray.is_initialized():
            manager = of()
            if manager is None:
                return
            over = {one for one in _actors_of(manager) if states.is_over(one)}
            if over - seen:
                seen |= over
                look(manager)
            del manager  # which may be let go of meanwhile


def _actors_of(manager: CheckpointEngineManager) -> list[str]:
    from rayguard.ray_internals.actor_classes import actor_id  # noqa: PLC0415 - as above

    replicas = list(manager.replicas)
    return [actor_id(one) for replica in replicas for one in (*replica.servers, *replica.workers)]
