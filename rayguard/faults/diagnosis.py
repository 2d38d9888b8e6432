"""What a failure is: the words of the verdict.

How a verdict is reached is ``rayguard.faults.diagnose``; what to do about it is ``rayguard.recovery``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scope(str, Enum):
    """What must be restarted; the most important field of a diagnosis (docs/design.md)."""

    REQUEST = "request"
    ENGINE = "engine"
    PROCESS = "process"
    GROUP = "group"
    NODE = "node"
    JOB = "job"
    CODE = "code"
    UNKNOWN = "unknown"


class Kind(str, Enum):
    """What a careful engineer would name as the root cause."""

    SCHEDULER_ASSERTION = "scheduler_assertion"
    ENGINE_INTERNAL_ERROR = "engine_internal_error"
    ENGINE_DEAD = "engine_dead"
    ENGINE_INIT_FAILED = "engine_init_failed"
    ENGINE_HANG = "engine_hang"
    CUDA_OOM = "cuda_oom"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    CUDA_DEVICE_ASSERT = "cuda_device_assert"
    CUDA_ILLEGAL_ACCESS = "cuda_illegal_access"
    GPU_HARDWARE = "gpu_hardware"
    HOST_OOM = "host_oom"
    ACTOR_DIED = "actor_died"
    ACTOR_UNAVAILABLE = "actor_unavailable"
    NODE_DIED = "node_died"
    PREEMPTED = "preempted"
    OBJECT_LOST = "object_lost"
    OBJECT_STORE_FULL = "object_store_full"
    SHM_EXHAUSTED = "shm_exhausted"
    DISK_FULL = "disk_full"
    STORAGE_IO = "storage_io"
    OS_LIMIT = "os_limit"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    GLOO_ERROR = "gloo_error"
    PORT_CONFLICT = "port_conflict"
    LAUNCHER_MISCONFIG = "launcher_misconfig"
    DEPENDENCY_MISMATCH = "dependency_mismatch"
    RUNTIME_ENV_FAILED = "runtime_env_failed"
    SCHEDULING_TIMEOUT = "scheduling_timeout"
    GCS_UNAVAILABLE = "gcs_unavailable"
    GET_TIMEOUT = "get_timeout"
    BATCH_INDIVISIBLE = "batch_indivisible"
    CONFIG_INVALID = "config_invalid"
    REQUEST_INVALID = "request_invalid"
    WEIGHT_SYNC_FAILED = "weight_sync_failed"
    NUMERIC_NAN = "numeric_nan"
    USER_CODE = "user_code"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The catalog's verdict on a fault.

    ``cures`` names the safe settings (``rayguard.engine.settings``) that are known to avoid this
    failure, cheapest first. ``deterministic`` means that the same settings fail again, so the first
    cure is applied at once and stays. ``settings_help`` is False for what no setting avoids (a
    kill from outside): only its own cures are tried. ``poisoned``: the process that saw it must die.
    """

    signature: str
    kind: Kind
    scope: Scope
    cause: str
    confidence: float
    evidence: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()
    retry_same_settings: bool = True
    deterministic: bool = False
    settings_help: bool = True
    poisoned: bool = False
    advice: str = ""
    links: tuple[str, ...] = ()  # public threads about this failure
