"""Workers of Ray that wait, started, for the next actor with the same runtime environment on this node.

They are of Ray's own pool of idle workers: it gives one to the next actor that fits, and ends them with their
job. Ray starts some by itself for the first driver only; a raylet starts more when it is asked to.
"""

from __future__ import annotations

from typing import Any

from rayguard.ray_internals.capability import Capability
from rayguard.ray_internals.node_stats import ASKED_WITH, raylets

_DEADLINE_S = 5.0
_KEEP_S = 30 * 24 * 3_600  # else Ray ends them as soon as there are more of them than CPUs

_prestart = Capability(
    "spare workers",
    "the next life of an actor waits for its process to start",
    {
        **ASKED_WITH,
        "request": "ray.core.generated.node_manager_pb2:PrestartWorkersRequest",
        "python": "ray.core.generated.common_pb2:Language.PYTHON",
    },
    test=lambda found: _request(found, 1, b"", ""),
)


def start(number: int) -> bool:
    """Have the raylet of this worker start ``number`` more like it; return whether it heard."""
    import ray  # noqa: PLC0415 - only where Ray runs

    here = ray.get_runtime_context()
    address = raylets().get(here.get_node_id()) if _prestart.usable() else None
    if address is None:
        return False
    found = _prestart.found()
    request = _request(found, number, bytes.fromhex(here.get_job_id()), here.get_runtime_env_string())
    try:
        with found["channel"](address) as channel:
            found["stub"](channel).PrestartWorkers(request, timeout=_DEADLINE_S)
    except found["grpc"].RpcError:
        return False
    return True


def _request(found: Any, number: int, job: bytes, runtime_env: str) -> Any:
    request = found["request"](
        language=found["python"], job_id=job, keep_alive_duration_secs=_KEEP_S, num_workers=number
    )
    request.runtime_env_info.serialized_runtime_env = runtime_env
    return request
