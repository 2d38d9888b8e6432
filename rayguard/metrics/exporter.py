"""One Prometheus endpoint per process, that reads the tally when it is scraped.

Nothing is counted here (``rayguard.recovery.tally``, ``rayguard.metrics.pool_tally``,
``rayguard.objects.holdings``) and nothing is named (``rayguard.metrics.instruments``). A guarded call never
comes through this file.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from functools import lru_cache
from itertools import accumulate
from socketserver import TCPServer
from typing import TYPE_CHECKING, TypeVar
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector

from rayguard.config import Settings
from rayguard.errors import ConfigError
from rayguard.metrics.instrument import Instrument, MetricType
from rayguard.metrics.instruments import INSTRUMENTS
from rayguard.metrics.object_instruments import OBJECT_INSTRUMENTS
from rayguard.metrics.pool_instruments import POOL_INSTRUMENTS
from rayguard.metrics.pool_tally import POOLS, Pools
from rayguard.objects.holdings import HOLDINGS, Holdings
from rayguard.recovery.tally import TALLY, Durations, Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rayguard.metrics.pool_tally import PoolReading

S = TypeVar("S")
_LOG = logging.getLogger("rayguard")
_CLOSE_DEADLINE_S = 5.0
_MAX_PORT = 65_535
_ANYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not chosen
_PLAIN = {MetricType.COUNTER: CounterMetricFamily, MetricType.GAUGE: GaugeMetricFamily}

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class TallyCollector(Collector):
    """Shows a tally, references and the pools to Prometheus. Register it in the registry of your choice."""

    def __init__(self, tally: Tally = TALLY, pools: Pools = POOLS, holdings: Holdings = HOLDINGS) -> None:
        self._tally = tally
        self._pools = pools
        self._holdings = holdings

    def collect(self) -> Iterator[Family]:
        """Yield every instrument as the tally is now."""
        tally = self._tally.snapshot()
        with self._holdings.lock:  # those of the ledger know no tally: it is on a higher floor
            tally.guard_errors.update(self._holdings.totals.errors)
        return _families(tally, self._pools.snapshot(), self._holdings)

    def describe(self) -> Iterator[Family]:
        """Yield the names, so that a registry refuses a second collector instead of showing all twice."""
        return _families(Tally(), {}, Holdings())


def _families(tally: Tally, pools: Mapping[str, PoolReading], holdings: Holdings) -> Iterator[Family]:
    yield from (_family(instrument, tally) for instrument in INSTRUMENTS)
    yield from (_family(instrument, holdings) for instrument in OBJECT_INSTRUMENTS)
    yield from (_family(instrument, pools) for instrument in POOL_INSTRUMENTS)


def _family(instrument: Instrument[S], source: S) -> Family:
    if instrument.type is MetricType.HISTOGRAM:
        histogram = HistogramMetricFamily(instrument.name, instrument.help, labels=instrument.labels)
        for values, durations in instrument.read(source):
            assert isinstance(durations, Durations)
            histogram.add_metric(values, _buckets(durations), durations.sum)
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily = _PLAIN[instrument.type](
        instrument.name, instrument.help, labels=instrument.labels
    )
    for values, number in instrument.read(source):
        assert not isinstance(number, Durations)
        family.add_metric(values, number)
    return family


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """Return Prometheus's form: each bucket counts all that took at most so long."""
    bounds = [*(str(bound) for bound in durations.bounds), "+Inf"]
    return list(zip(bounds, accumulate(durations.counts), strict=True))


class Exporter:
    """The endpoint of this process. ``port`` is 0 and ``url`` empty when it could not be opened."""

    def __init__(self, server: _Server | None, tally: Tally, registry: CollectorRegistry) -> None:
        self._server = server
        self._tally = tally
        self.registry = registry
        self.port = server.server_port if server else 0
        self.url = _url(server.server_name, self.port) if server else ""
        tally.metrics_url = self.url
        if server:
            self._thread = threading.Thread(
                target=server.serve_forever, args=(0.2,), name="rayguard-metrics", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop serving and give the port back; the next ``serve_metrics`` opens a new endpoint."""
        _forget(self)
        self._tally.metrics_url = ""
        server, self._server = self._server, None
        if server is None:
            return
        # shutdown() waits for the loop without a deadline of its own
        stopper = threading.Thread(target=server.shutdown, daemon=True)
        stopper.start()
        stopper.join(_CLOSE_DEADLINE_S)
        server.server_close()

    def _after_fork(self) -> None:
        """Let go of the parent's socket: with it, the child would hold the port when the parent is gone."""
        if self._server is not None:
            self._server.socket.close()
            self._server = None


class _Quiet(WSGIRequestHandler):
    timeout = 10  # a client that connects and says nothing costs a thread no longer than this

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing: a scrape every few seconds is no news."""


class _Server(ThreadingWSGIServer):
    # Two processes with one port would be scraped by turns, each at random: a taken port must be an error.
    allow_reuse_port = False

    def server_bind(self) -> None:
        """Bind without asking the DNS for our name, which takes many seconds where it does not answer."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


_lock = threading.Lock()
_exporters: list[Exporter] = []  # invariant: at most one


def serve_metrics(
    port: int = 0,
    address: str = "127.0.0.1",
    tally: Tally = TALLY,
    registry: CollectorRegistry | None = None,
    *,
    any_free_port: bool = True,
) -> Exporter:
    """Serve this process's metrics from a thread; a second call returns the first endpoint.

    ``port`` 0 is any free one. A port that cannot be had is logged and counted, and any free one is taken
    instead; with ``any_free_port=False`` it is an ``OSError``. ``registry`` gets the tally's collector and
    is served whole; without one, only rayguard's own metrics are.
    """
    if not 0 <= port <= _MAX_PORT:
        raise ConfigError(f"serve_metrics(port=...) must be 0 (any) to {_MAX_PORT}, got {port}")
    _watch_forks()
    with _lock:
        if _exporters:
            if registry not in (None, _exporters[0].registry):
                _LOG.warning("metrics are served on %s already, from another registry", _exporters[0].url)
            return _exporters[0]
        registry = CollectorRegistry() if registry is None else registry
        exporter = Exporter(_bound(registry, address, port, any_free_port=any_free_port), tally, registry)
        _show(tally, registry)
        if exporter.port:  # one that could not be opened is tried anew by the next call
            _exporters.append(exporter)
        return exporter


def serve_as_configured() -> Exporter | None:
    """Serve where ``RAYGUARD_METRICS_PORT`` and ``RAYGUARD_METRICS_ADDRESS`` say; None when that is off."""
    settings = Settings()
    if settings.metrics_port is None:
        return None
    return serve_metrics(settings.metrics_port, settings.metrics_address)


def _show(tally: Tally, registry: CollectorRegistry) -> None:
    try:
        registry.register(TallyCollector(tally))
    except ValueError:  # a collector of ours is there already, registered by hand or by an earlier endpoint
        _LOG.debug("the registry shows rayguard's metrics already")


def _bound(registry: CollectorRegistry, address: str, port: int, *, any_free_port: bool) -> _Server | None:
    try:
        return _bind(registry, address, port)
    except OSError as error:
        if not any_free_port:
            raise
        TALLY.guard_error("metrics")
        _LOG.warning("metrics cannot be served on %s:%s (%s); trying any free port", address, port, error)
    try:
        server = _bind(registry, address, 0)
    except OSError as error:
        _LOG.error("metrics are not served: no port on %s can be had (%s)", address, error)
        return None
    _LOG.warning("metrics are served on %s", _url(server.server_name, server.server_port))
    return server


def _bind(registry: CollectorRegistry, address: str, port: int) -> _Server:
    family, _, _, _, where = socket.getaddrinfo(
        address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    server_class = type("_Server", (_Server,), {"address_family": family})
    server: _Server = server_class(where[:2], _Quiet)
    server.set_app(make_wsgi_app(registry))
    return server


def _url(host: str, port: int) -> str:
    host = socket.gethostname() if host in _ANYWHERE else host
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


def _forget(exporter: Exporter) -> None:
    with _lock:
        if exporter in _exporters:
            _exporters.remove(exporter)


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_start_afresh)


def _start_afresh() -> None:
    global _lock  # noqa: PLW0603 - a lock that another thread of the parent held never opens in the child
    _lock = threading.Lock()
    while _exporters:
        _exporters.pop()._after_fork()  # noqa: SLF001 - the two halves of one fork
