"""This process as Ray has it: whether it is a worker, which actor lives in it, where its node keeps files."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.errors import CapabilityOffError
from rayguard.harmless import harmless
from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_worker = Capability(
    "place in Ray",
    "this process counts as outside of any actor: nothing is restarted or recorded for one",
    {
        "worker": "ray._private.worker:global_worker",
        "mode": "ray._private.worker:global_worker.mode",
        "actors": "ray._private.worker:global_worker.actors",
        "actor_id": "ray._private.worker:Worker.actor_id",
    },
)
_node = Capability(
    "folders of the node",
    "the workers' logs are not read",
    {
        "module": "ray._private.worker:",
        "node": "ray._private.worker:_global_node",
        "logs": "ray._private.node:Node.get_logs_dir_path",
        "temp": "ray._private.node:Node.get_temp_dir_path",
    },
)
_end = Capability(
    "a driver's last words",
    "a driver tells nothing of what its job's end shows, and what its actors kept is removed by others",
    {"disconnect": "ray._private.worker:disconnect"},
)
_root = Capability(
    "actors that outlive their job",
    "what an actor has kept is not removed with its job, but later",
    {"root": "ray._raylet:CoreWorker.get_current_root_detached_actor_id"},
    parts=("core_worker",),
)
_before_leaving: dict[Callable[[], Callable[[], None] | None], None] = {}


def connected_ray() -> ModuleType | None:
    """Return Ray where it is loaded and connected; loads nothing."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def inside_ray_worker() -> bool:
    """Say whether an actor lives in this process or may come to: a driver never becomes one."""
    return _this_worker() is not None


def this_actor() -> object | None:
    """Return the actor that lives in this process, from before its ``__init__`` on; else None."""
    worker = _this_worker()
    return None if worker is None or worker.actor_id.is_nil() else worker.actors.get(worker.actor_id)


def this_actor_id() -> str:
    """Return the id of the actor that lives in this process; '' outside of one."""
    worker = _this_worker()
    return "" if worker is None or worker.actor_id.is_nil() else str(worker.actor_id.hex())


def this_outlives_its_job() -> bool:
    """Say whether the actor that lives here is detached or descends from one that is; or nobody knows."""
    with contextlib.suppress(CapabilityOffError):
        root = _root.found()["root"]
        return not root(_root.part(_this_worker(), "core_worker")).is_nil()
    return True


def logs_folder() -> Path:
    """Return where the workers of this node write to.

    Raises:
        CapabilityOffError: Ray no longer says it where it did; so does ``temp_folder``.
    """
    return _folder("logs")


def temp_folder() -> Path:
    """Return the folder of Ray's sessions on this node."""
    return _folder("temp")


def before_leaving(do: Callable[[], Callable[[], None] | None]) -> bool:
    """Have ``do`` called before this process lets go of Ray, at exit or earlier; what it returns, after."""
    _before_leaving[do] = None
    return _end.replace({"disconnect": _leaving})


def _leaving(disconnect: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(disconnect)
    def _disconnect(*args: object, **options: object) -> None:
        after: list[Callable[[], None] | None] = []
        for do in _before_leaving:
            with harmless("last words"):
                after.append(do())
        disconnect(*args, **options)
        for then in filter(None, after):
            with harmless("last words"):
                then()

    return _disconnect


def is_driver() -> bool:
    """Say whether this process is known to be the driver of a job that runs."""
    ray = connected_ray()
    return ray is not None and _worker.usable() and bool(_worker.found()["worker"].mode == ray.SCRIPT_MODE)


def session_name() -> str:
    """Return the name that Ray gave this run of the cluster, on all nodes; '' where it is not known."""
    with contextlib.suppress(RuntimeError):
        return logs_folder().parent.name
    return ""


def _this_worker() -> Any | None:
    ray = connected_ray()
    if ray is None or not _worker.usable():
        return None
    worker = _worker.found()["worker"]
    return worker if worker.mode == ray.WORKER_MODE else None


def _folder(which: str) -> Path:
    found = _node.found()
    node = found["module"]._global_node  # noqa: SLF001 - it changes with each ray.init
    if node is None:
        raise RuntimeError("Ray is not running in this process")
    return Path(found[which](node))
