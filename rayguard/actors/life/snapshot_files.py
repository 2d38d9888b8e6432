"""Where the snapshots of actors lie on a node, and when they go: with their job, or with their actor.

A job's go as its driver leaves it. What that does not see (a driver that was killed, another node, a detached
actor and what that made) is removed by who comes next: an actor that begins to keep a snapshot, or the agent
of the node. Only what is proved goes: Ray knows the actor as dead, or its job as over; of another cluster's,
nobody has had the file open for a day. What lies in them is ``restorable``.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.harmless import harmless
from rayguard.home import VARIABLE, home
from rayguard.ray_internals.worker import before_leaving, connected_ray, is_driver, session_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.actors.life.incarnation import Incarnation

_FOLDER = "snapshots"
_NAME = re.compile(r"([0-9a-f]{24}([0-9a-f]{8}))-([\w.-]*)\.(snapshot|detached)(?:\.new|\.calls)?")
_MOST = 64  # files that one sweep looks at
_DAY_S = 86_400.0


def path_of(life: Incarnation) -> Path:
    """Return where an actor's snapshot lies on its node: the same for all of its lives.

    Two clusters may share a home, and their jobs have the same ids: its name has that of the session.
    """
    return path_named(life.actor_id, "detached" if life.outlives_job else "snapshot")


def path_named(name: str, ending: str = "snapshot") -> Path:
    """Return where what has this name is kept: an actor's id, or what goes with its job as one does."""
    return folder() / f"{name}-{session_name()}.{ending}"


def go_with_job() -> None:
    """Have what a driver's actors kept on its node go as it leaves its job; in other processes, nothing."""
    with harmless("snapshot"):
        before_leaving(_of_this_job)


def _of_this_job() -> Callable[[], None] | None:
    ray = connected_ray()
    if ray is None or not is_driver():
        return None
    context = ray.get_runtime_context()
    return partial(remove_of, context.get_job_id(), session_name(), context.runtime_env)


def remove_of(job_id: str, cluster: str, runtime_env: Mapping[str, Any]) -> None:
    """Remove what the actors of a job that is over have kept; those of detached actors stay."""
    if not cluster:
        return
    asked = runtime_env.get("rayguard")  # its workers may have another home than its driver
    said = [asked.get("home")] if isinstance(asked, Mapping) else []
    said.append((runtime_env.get("env_vars") or {}).get(VARIABLE))
    for where in {home(), *(Path(one).expanduser() for one in said if one)}:
        for path in (where / _FOLDER).glob(f"*{job_id}-{cluster}.snapshot*"):
            path.unlink(missing_ok=True)


def sweep_aside() -> None:
    """Do as ``sweep``, in a thread of its own; never raises."""

    def run() -> None:
        with harmless("snapshot"):
            sweep()

    with harmless("snapshot"):
        threading.Thread(target=run, name="rayguard-snapshots", daemon=True).start()


def sweep() -> None:
    """Remove what is proved to be of no use any more. At most 64 files are looked at, 1 ms each.

    Raises:
        OSError: The folder cannot be read.
    """
    found = list(folder().glob("*"))
    here, running = session_name(), None
    for path in random.Random().sample(found, min(_MOST, len(found))):  # noqa: S311 - no secret
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        actor, job, cluster, ending = match.groups()
        dead = None
        if cluster and cluster == here:
            running = _running_jobs() if running is None else running
            dead = _is_dead(actor, over=ending == "snapshot" and job not in running)
        if dead or (dead is None and _abandoned(path)):
            path.unlink(missing_ok=True)


def _is_dead(actor_id: str, *, over: bool) -> bool | None:
    """Say whether an actor of this cluster has died for good; None: nobody knows. ``over``: its job is."""
    from rayguard.ray_internals.gcs_tables import actor_row  # noqa: PLC0415 - drivers have no use for it

    row = actor_row(actor_id)
    if row is not None:
        return row.state == "DEAD"
    return over or None


def _running_jobs() -> set[str]:
    from rayguard.ray_internals.gcs_tables import jobs  # noqa: PLC0415 - as above

    return {job.job_id for job in jobs() if job.running}


def _abandoned(path: Path) -> bool:
    from rayguard.private import open_regular  # noqa: PLC0415 - as above
    from rayguard.process.owned_files import abandoned  # noqa: PLC0415

    file = open_regular(path)
    if file is None:
        return False
    try:
        return abandoned(file, _DAY_S, mark=True)
    finally:
        os.close(file)


def folder() -> Path:
    """Return where snapshots lie on this node."""
    return home() / _FOLDER
