"""The endpoint of a node: the merged numbers of its processes, and where those of all nodes are.

``/metrics`` for Prometheus, ``/sd`` for its HTTP service discovery, ``/healthz`` for a probe. No request
reads a disk or asks Ray: the collectors show what their last refresh left, and its text is kept as long.
"""

from __future__ import annotations

import gzip
import threading
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest, gzip_accepted

from rayguard.harmless import harmless
from rayguard.metrics.http_server import Bearer, Server
from rayguard.metrics.node.discovery import Target, as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from prometheus_client.registry import Collector


_Headers = list[tuple[str, str]]
_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
_OK, _UNKNOWN = "200 OK", "404 Not Found"
_NOT_ALLOWED, _FAILED = "405 Method Not Allowed", "500 Internal Server Error"


class NodeEndpoint:
    """Serves until ``close``. ``port`` is 0 and ``url`` empty when no port could be had.

    With a ``token``, ``/metrics`` and ``/sd`` want it as ``Authorization: Bearer <token>``; ``/healthz`` says
    nothing but "ok" and wants none. ``targets`` is called at every request of ``/sd``, from any thread. A
    port that is taken is logged, and any free one is used instead. Raises ``ConfigError`` for an empty token.
    """

    def __init__(
        self,
        collectors: Iterable[Collector],
        address: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        targets: Callable[[], list[Target]] = list,
    ) -> None:
        self._bearer = Bearer(token)
        self._page = _Page(tuple(collectors))
        self._targets = targets
        self._server = Server(self._answer, address, port, name="rayguard-node-metrics")
        self.port = self._server.port
        self.url = self._server.url

    def close(self) -> None:
        """Stop serving and give the port back."""
        self._server.close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        """Answer one request, as a WSGI application."""
        status, headers, body = _FAILED, _TEXT, b"failed: the agent's log says why\n"
        with harmless("metrics"):
            status, headers, body = self._route(environ)
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _route(self, environ: WSGIEnvironment) -> tuple[str, _Headers, bytes]:
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _NOT_ALLOWED, [*_TEXT, ("Allow", "GET, HEAD")], b"use GET\n"
        path = environ["PATH_INFO"]
        if path == "/healthz":
            return _OK, _TEXT, b"ok\n"
        if not self._bearer.may_see(environ):
            return self._bearer.refusal()
        if path == "/metrics":
            return _OK, *self._page.shown(zipped=gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")))
        if path == "/sd":
            return _OK, [("Content-Type", "application/json")], as_json(self._targets())
        return _UNKNOWN, _TEXT, b"there are /metrics, /sd and /healthz\n"


class _Page:
    """The text of all collectors, made anew when one of them has another ``generation`` (or has none)."""

    def __init__(self, collectors: tuple[Collector, ...]) -> None:
        self._collectors = collectors
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            self._registry.register(collector)
        self._lock = threading.Lock()
        self._of: tuple[object, ...] | None = None
        self._text = self._zipped = b""

    def shown(self, *, zipped: bool) -> tuple[_Headers, bytes]:
        with self._lock:
            now = tuple(getattr(collector, "generation", None) for collector in self._collectors)
            if now != self._of or None in now:
                self._text = generate_latest(self._registry)
                self._zipped = gzip.compress(self._text, compresslevel=5)
                self._of = now
            headers = [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)]
            if zipped:
                return [*headers, ("Content-Encoding", "gzip")], self._zipped
            return headers, self._text
