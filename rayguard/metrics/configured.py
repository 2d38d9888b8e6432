"""The endpoint of this process, where the settings ask for one. Without it Prometheus is not loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.config import Settings

if TYPE_CHECKING:
    from rayguard.metrics.exporter import Exporter


def serve_as_configured() -> Exporter | None:
    """Serve where ``RAYGUARD_METRICS_PORT`` and ``RAYGUARD_METRICS_ADDRESS`` say; None when that is off.

    Behind the token of the node's endpoint, where it has one: both listen on the same address.

    Raises:
        OSError: The file of the token cannot be read.
        ConfigError: It is empty.
    """
    port = Settings().metrics_port
    if port is None:
        return None
    from rayguard.metrics.exporter import serve_metrics  # noqa: PLC0415 - takes half a second

    return serve_metrics(port)
