"""The runtime-env plugin and the hooks that it brings into workers and drivers."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Give Ray ``RayguardPlugin`` by its old name; workers, which import this package first, load nothing."""
    if name != "RayguardPlugin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rayguard.cluster.plugin.runtime_env import RayguardPlugin  # noqa: PLC0415

    return RayguardPlugin
