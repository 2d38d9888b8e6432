"""Whether a sleeping engine's memory is free again on its devices: looked at before it is woken.

A wake-up that finds too little memory fails half-way, in a worker, with part of the weights back. Refused
before it is sent, the engine sleeps on unharmed, and its owner may free memory and wake it later. Where no
driver tells (no GPU, process ids of another namespace), nothing is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.engine.build.footprint import by_device, owners
from rayguard.engine.vllm.core_processes import processes_of
from rayguard.errors import RequestError
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from rayguard.engine.vllm.interfaces import EngineCoreClient

_GIB = 1 << 30
_ROUNDING = 0.02  # of what was held: allocators round


class WakeRoom:
    """What the engines of one slot held before they fell asleep. For the thread or loop of their frontend."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}  # by device, before the first of several calls to sleep

    def falls_asleep(self, core: EngineCoreClient) -> None:
        """Note what ``core`` holds, right before it is put to sleep."""
        with harmless("sleep"):
            held = {device: found.held for device, found in by_device(_pids(core)).items() if found.held}
            self._held = {device: max(count, self._held.get(device, 0)) for device, count in held.items()}

    def awakes(self, core: EngineCoreClient, *, whole: bool) -> None:
        """Look for room, right before ``core`` is woken; ``whole``: all of it, not some tags alone.

        Raises:
            RequestError: A device has less free than the engine gave up there; nothing was sent.
        """
        if not self._held or not whole:
            return
        short = ""
        with harmless("sleep"):
            short = self._short(core)
        if short:
            raise RequestError("", f"wake_up was not sent, the engine sleeps on: {short}")
        self._held = {}

    def _short(self, core: EngineCoreClient) -> str:
        pids = _pids(core)
        for device, found in by_device(pids).items():
            wanted = self._held.get(device, 0) - found.held
            if found.free < wanted - _ROUNDING * self._held.get(device, 0):
                users = ", ".join(
                    f"process {pid}: {count / _GIB:.1f} GiB" for pid, count in owners(device, pids)
                )
                return (
                    f"it gave up {wanted / _GIB:.1f} GiB of {device}, and {found.free / _GIB:.1f} are free"
                    f"{f' ({users})' if users else ''}. Free memory there (in a trainer that shares the GPU: "
                    "drop references, offload, torch.cuda.empty_cache()), and call wake_up again"
                )
        return ""


def _pids(core: EngineCoreClient) -> set[int]:
    manager = getattr(getattr(core, "resources", None), "engine_manager", None)
    return {known.process.pid for known in processes_of(getattr(manager, "processes", ()))}
