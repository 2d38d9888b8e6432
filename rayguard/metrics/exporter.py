"""One Prometheus endpoint per process, that reads what it shows when it is scraped.

Nothing is counted here (``rayguard.recovery.tally``, ``rayguard.metrics.instruments.pool_tally``,
``rayguard.objects.holdings``) and nothing is named (``rayguard.metrics.instruments.process``). A guarded call
never comes through this file. What all processes of a node show together is
``rayguard.metrics.node.endpoint``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

from rayguard.config import Settings
from rayguard.errors import ConfigError
from rayguard.metrics.families import Family, family
from rayguard.metrics.http_server import Bearer, Server
from rayguard.metrics.instruments.pool_tally import POOLS, Pools
from rayguard.metrics.sources import readings, sources
from rayguard.objects.holdings import HOLDINGS, Holdings
from rayguard.options import explained
from rayguard.recovery.tally import TALLY, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_LOG = logging.getLogger("rayguard")
_MAX_PORT = 65_535
_PATH = "/metrics"


class TallyCollector(Collector):
    """Shows what this process has to show to Prometheus. Register it in the registry of your choice."""

    def __init__(self, tally: Tally = TALLY, pools: Pools = POOLS, holdings: Holdings = HOLDINGS) -> None:
        self._from = tally, pools, holdings

    def collect(self) -> Iterator[Family]:
        """Yield every instrument as it is now."""
        return (family(one, one.labels, numbers) for one, numbers in readings(sources(*self._from)))

    def describe(self) -> Iterator[Family]:
        """Yield the names, so that a registry refuses a second collector instead of showing all twice."""
        return (family(one, one.labels) for source in sources(*self._from) for one in source.instruments)


class Exporter:
    """The endpoint of this process. ``port`` is 0 and ``url`` empty when it could not be opened."""

    def __init__(self, server: Server, tally: Tally, registry: CollectorRegistry) -> None:
        self._server = server
        self._tally = tally
        self.registry = registry
        self.port = server.port
        self.url = server.url
        tally.metrics_url = self.url

    def close(self) -> None:
        """Stop serving and give the port back; the next ``serve_metrics`` opens a new endpoint."""
        with _lock, contextlib.suppress(ValueError):
            _exporters.remove(self)
        self._tally.metrics_url = ""
        self._server.close()


_lock = threading.Lock()
_exporters: list[Exporter] = []  # invariant: at most one


@explained
def serve_metrics(
    port: int = 0,
    address: str | None = None,
    tally: Tally = TALLY,
    registry: CollectorRegistry | None = None,
    *,
    any_free_port: bool = True,
    token: str | None = None,
) -> Exporter:
    """Serve this process's metrics from a thread, at ``/metrics``; a second call returns the first endpoint.

    ``port`` 0 is any free one. A port that cannot be had is logged and counted, and any free one is taken
    instead; with ``any_free_port=False`` it is an ``OSError``. ``registry`` gets the tally's collector and
    is served whole; without one, only rayguard's own metrics are. With a ``token``, who asks must say
    ``Authorization: Bearer <token>``. What is not given here say ``RAYGUARD_METRICS_ADDRESS`` (else:
    loopback) and ``RAYGUARD_METRICS_TOKEN_FILE``.

    Raises:
        ConfigError: The port is none, the token is empty, or a setting cannot be used.
        OSError: The file of the token cannot be read: nothing is served without it.
    """
    if not 0 <= port <= _MAX_PORT:
        raise ConfigError(f"serve_metrics(port=...) must be 0 (any) to {_MAX_PORT}, got {port}")
    settings = Settings()
    address = settings.metrics_address if address is None else address
    bearer = Bearer(settings.metrics_token() if token is None else token)
    with _lock:
        if _exporters:
            if registry not in (None, _exporters[0].registry):
                _LOG.warning("metrics are served on %s already, from another registry", _exporters[0].url)
            return _exporters[0]
        registry = CollectorRegistry() if registry is None else registry
        app = _behind(bearer, make_wsgi_app(registry))
        server = Server(app, address, port, any_free_port=any_free_port, name="rayguard-metrics")
        exporter = Exporter(server, tally, registry)
        _show(tally, registry)
        if exporter.port:  # one that could not be opened is tried anew by the next call
            _exporters.append(exporter)
        return exporter


def _behind(bearer: Bearer, app: WSGIApplication) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not bearer.may_see(environ):
            status, headers, body = bearer.refusal()
        elif environ["PATH_INFO"] == _PATH:
            return app(environ, start_response)
        else:
            status, headers, body = "404 Not Found", [("Content-Type", "text/plain")], b"there is /metrics\n"
        start_response(status, headers)
        return [body]

    return answer


def _show(tally: Tally, registry: CollectorRegistry) -> None:
    try:
        registry.register(TallyCollector(tally))
    except ValueError:  # a collector of ours is there already, registered by hand or by an earlier endpoint
        _LOG.debug("the registry shows rayguard's metrics already")


def _start_afresh() -> None:
    global _lock  # noqa: PLW0603 - a lock that another thread of the parent held never opens in the child
    _lock = threading.Lock()
    _exporters.clear()  # its server lets go of the socket by itself


os.register_at_fork(after_in_child=_start_afresh)
