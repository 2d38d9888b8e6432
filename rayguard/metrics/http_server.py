"""A small HTTP server in a thread of a process that has other work: bounded, quiet, and gone when closed.

What it answers is the WSGI application that it is given: of one process in ``exporter``, of a node in
``endpoint``.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import weakref
from collections import Counter
from socketserver import TCPServer
from typing import TYPE_CHECKING, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

from rayguard.errors import ConfigError
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication as App
    from _typeshed.wsgi import WSGIEnvironment

    Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]
    Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]

_LOG = logging.getLogger("rayguard")
_CLOSE_DEADLINE_S = 5.0
_REQUEST_DEADLINE_S = 10.0
_MAX_REQUESTS = 32  # at once; a scrape is one
_MAX_OF_ONE = 8  # of them: one silent client must not keep Prometheus out
_ANYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not chosen


class Bearer:
    """Who may see: all where there is no ``token``, else who says ``Authorization: Bearer <token>``.

    Raises ``ConfigError`` for an empty token.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and not token.strip():
            raise ConfigError("an empty token protects nothing: give one, or None for an open endpoint")
        self._token = token

    def may_see(self, environ: WSGIEnvironment) -> bool:
        """Say whether who asks may see it."""
        if self._token is None:
            return True
        # Prometheus 2.42 leaves "Bearer" away in http_sd_configs, unless `type: Bearer` is written there. The
        # word's case means nothing (RFC 9110, 11.1).
        said = environ.get("HTTP_AUTHORIZATION", "").strip()
        scheme, _, rest = said.partition(" ")
        said = rest.strip() if scheme.lower() == "bearer" else said
        # In constant time: no guessing by the clock. WSGI: a character is a byte.
        return hmac.compare_digest(said.encode("latin-1"), self._token.strip().encode())

    def refusal(self) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return status, headers and body for who may not."""
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("WWW-Authenticate", "Bearer")]
        return "401 Unauthorized", headers, b"a token is needed\n"


class Server:
    """One address that is served. ``port`` is 0 and ``url`` empty when it could not be opened.

    A forked child does not serve, and lets go of the socket: with it, it would hold the port of its parent.
    """

    def __init__(self, app: App, address: str, port: int, *, any_free_port: bool = True, name: str) -> None:
        """Serve ``app``. A port that cannot be had is logged and counted, and any free one taken instead.

        With ``any_free_port=False`` it is an ``OSError``.
        """
        self._server = _bound(app, address, port, any_free_port=any_free_port)
        self.address = str(self._server.server_name) if self._server else ""
        self.port = self._server.server_port if self._server else 0
        self.url = _url(self.address, self.port) if self._server else ""
        _open.add(self)
        if self._server:
            target = self._server.serve_forever
            threading.Thread(target=target, args=(0.2,), name=name, daemon=True).start()

    def close(self) -> None:
        """Stop serving and give the port back."""
        server, self._server = self._server, None
        if server is None:
            return
        # shutdown() waits for the loop without a deadline of its own
        stopper = threading.Thread(target=server.shutdown, daemon=True)
        stopper.start()
        stopper.join(_CLOSE_DEADLINE_S)
        server.server_close()

    def let_go(self) -> None:
        """Close the socket in a forked child, where no thread serves it."""
        if self._server is not None:
            self._server.socket.close()
            self._server = None


_open: weakref.WeakSet[Server] = weakref.WeakSet()


def _let_go_of_all() -> None:
    for server in list(_open):
        server.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_DEADLINE_S  # of one read or write: who connects and says nothing

    def handle(self) -> None:
        """Answer one request; who sends or takes it byte by byte is cut off."""
        overdue = threading.Timer(_REQUEST_DEADLINE_S, _cut, (self.connection,))
        overdue.daemon = True
        overdue.start()
        try:
            super().handle()
        finally:
            overdue.cancel()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing: a scrape every few seconds is no news."""


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        _LOG.debug("a slow client was gone already")


class _HttpServer(ThreadingWSGIServer):
    # Two processes with one port would be scraped by turns, each at random: a taken port must be an error.
    allow_reuse_port = False
    request_queue_size = 128  # behind a crowd in a short queue, Prometheus would wait for seconds

    def __init__(self, family: socket.AddressFamily, where: tuple[str, int], app: App) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._here: Counter[str] = Counter()  # requests under way by the address they come from
        super().__init__(where, _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Bind without asking the DNS for our name, which takes many seconds where it does not answer."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Request, client_address: Address) -> bool:
        """Turn away who comes while too many are here: each has a thread."""
        del request
        who = client_address[0]
        with self._lock:
            if self._here.total() >= _MAX_REQUESTS or self._here[who] >= _MAX_OF_ONE:
                return False
            self._here[who] += 1
        return True

    def process_request(self, request: Request, client_address: Address) -> None:
        """Give the place back when no thread can be had."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._leave(client_address)
            raise

    def process_request_thread(self, request: Request, client_address: Address) -> None:
        """Give the place back when it is answered."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(client_address)

    def _leave(self, client_address: Address) -> None:
        with self._lock:
            self._here[client_address[0]] -= 1
            self._here += Counter()  # without those of whom nobody is left

    def handle_error(self, request: Request, client_address: Address) -> None:
        """Say nothing on the user's terminal: a client that went away is none of their business."""
        del request
        _LOG.debug("a request from %s failed", client_address, exc_info=True)


def _bound(app: App, address: str, port: int, *, any_free_port: bool) -> _HttpServer | None:
    try:
        return _bind(app, address, port)
    except OSError as error:
        if not any_free_port:
            raise
        TALLY.guard_error("metrics")
        _LOG.warning("metrics cannot be served on %s:%s (%s); trying any free port", address, port, error)
    try:
        server = _bind(app, address, 0)
    except OSError as error:
        _LOG.error("metrics are not served: no port on %s can be had (%s)", address, error)
        return None
    _LOG.warning("metrics are served on %s", _url(server.server_name, server.server_port))
    return server


def _bind(app: App, address: str, port: int) -> _HttpServer:
    family, _, _, _, where = socket.getaddrinfo(
        address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return _HttpServer(family, (str(where[0]), int(where[1])), app)


def _url(host: str, port: int) -> str:
    host = socket.gethostname() if host in _ANYWHERE else host
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"
