"""From the address of a cluster to a connected driver, or to one sentence that says why not. For commands.

Ray alone waits up to a minute where nothing or something else listens. So the port is tried first, then one
question is asked with a deadline: it proves that Ray is there, that the token is right, and which version it
is. What is then asked of the cluster is ``rayguard.cluster.view.survey``.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rayguard.errors import ConfigError, RayguardError
from rayguard.ray_internals.handshake import (
    HandshakeError,
    a_node_runs_here,
    cluster_versions,
    ping_client_server,
    take_token,
)
from rayguard.ray_internals.rows import OURS
from rayguard.tried import RAY, untried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
CLIENT = "ray://"
_PORT_S = 3.0
_ANSWER_S = 5.0
_INIT_S = 10
_CLIENT_PORT = 10001
_TO_LOG_IN = (
    "Get it where the cluster was started (`ray get-auth-token`, or the file ~/.ray/auth_token), put it into "
    "~/.ray/auth_token here or into RAY_AUTH_TOKEN, and set RAY_AUTH_MODE=token"
)


class UnreachableError(RayguardError, ConnectionError):
    """There is no connection to the cluster; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A connected Ray. ``notes`` are warnings for the user; ``client`` is a ``ray://`` address."""

    address: str
    ray_version: str = ""
    client: bool = False
    notes: tuple[str, ...] = ()

    def run(self, function: Callable[[], T], *, deadline_s: float) -> T:
        """Return ``function()``, run where the cluster can be seen: with ``ray://``, in a worker of it.

        Raises:
            UnreachableError: There was no answer in time, or rayguard is not installed there.
        """
        call = partial(_in_a_worker, self.address, function, deadline_s) if self.client else function
        done: Future[T] = Future()

        def do() -> None:
            try:
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                done.set_exception(error)

        # Not a pool: its threads are waited for at the end, and Ray waits a minute for a head that is gone.
        threading.Thread(target=do, name="rayguard-ask", daemon=True).start()
        try:
            return done.result(deadline_s)
        except FutureTimeoutError:
            raise UnreachableError(f"{self.address} did not answer within {deadline_s:.0f} s") from None


def _in_a_worker(address: str, function: Callable[[], T], deadline_s: float) -> T:
    import ray  # noqa: PLC0415 - connected by now

    task = ray.remote(num_cpus=0, max_retries=0)(lambda: function())  # noqa: PLW0108 - Ray takes no partial
    try:
        found: T = ray.get(task.remote(), timeout=deadline_s)
    except ray.exceptions.GetTimeoutError:
        raise FutureTimeoutError from None
    except ray.exceptions.RayError as error:
        why = f"rayguard does not run on {address}, is it installed there? {last_line(error)}"
        raise UnreachableError(why) from error
    return found


def address_here() -> str | None:
    """Return RAY_ADDRESS, or where the cluster is that was started last on this machine. Loads no Ray."""
    said = os.environ.get("RAY_ADDRESS", "").strip()
    if said and said not in ("auto", "local"):
        return said
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as Ray does
    try:
        return (Path(folder) / "ray" / "ray_current_cluster").read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def listens(address: str) -> bool:
    """Say whether anything listens there: the note of a cluster stays when it is gone."""
    try:
        _knock(*_place(address))
    except (UnreachableError, ConfigError):
        return False
    return True


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Connection]:
    """Be a driver of the cluster for a while, and leave nothing behind.

    Raises:
        ConfigError: ``address`` is none, or there is none to be found.
        UnreachableError: Nothing, something else or a cluster that does not let us in.
    """
    wanted = address_here() if address in (None, "", "auto") else address
    if not wanted:
        raise ConfigError("no cluster is known here: give --address HOST:PORT, or set RAY_ADDRESS")
    host, port = _place(wanted)
    _knock(host, port)
    _quiet()
    client = wanted.startswith(CLIENT)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    notes = _judge(wanted, *(versions := _asked(place, client=client)))
    _join(f"{CLIENT}{place}" if client else place, client=client)
    import ray  # noqa: PLC0415 - connected by now

    try:
        yield Connection(address=wanted, ray_version=versions[0], client=client, notes=notes)
    finally:
        with contextlib.suppress(Exception):  # the cluster may be gone by now
            ray.shutdown()


def _place(address: str) -> tuple[str, int]:
    client = address.startswith(CLIENT)
    rest = address.removeprefix(CLIENT).rstrip("/")
    if "://" in rest:
        raise ConfigError(
            f"--address is {address!r}: the dashboard's address does not do. Give that of the head node, "
            "HOST:6379 by default, or ray://HOST:10001 from outside the cluster"
        )
    host, colon, port = rest.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # no port: a name, or an IPv6 address
        host, port = rest, str(_CLIENT_PORT) if client else ""
    if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:  # noqa: PLR2004
        raise ConfigError(
            f"--address is {address!r}, which is no address: HOST:PORT, as 10.0.0.1:6379, or ray://HOST:10001"
        )
    return host.strip("[]"), int(port)


def _knock(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=_PORT_S).close()
    except TimeoutError:
        raise UnreachableError(
            f"{host}:{port} does not answer within {_PORT_S:.0f} s: a wrong host, or a firewall between"
        ) from None
    except socket.gaierror:
        raise UnreachableError(f"there is no host {host!r}") from None
    except OSError as error:
        raise UnreachableError(
            f"nothing listens at {host}:{port} ({error.strerror or error}). `ray start --head` starts a "
            "cluster, and says at which address"
        ) from None


def _quiet() -> None:
    """Set what Ray reads when it is loaded: shorter waits, no hook of a user's jobs, nothing said."""
    os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", str(_INIT_S))
    os.environ.setdefault("RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S", str(int(_ANSWER_S)))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # under `uv run` Ray would upload the current folder
    for name in ("RAY_RUNTIME_ENV_HOOK", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        os.environ.pop(name, None)


def _asked(place: str, *, client: bool) -> tuple[str, str]:
    """Return the versions of Ray and Python that the cluster says it runs; empty where it does not say."""
    try:
        if client:
            ping_client_server(place, _ANSWER_S)
            return "", ""  # known once connected; Ray compares them itself
        return cluster_versions(place, _ANSWER_S)
    except HandshakeError as error:
        code = error.code
    if code == "UNAUTHENTICATED" and take_token():
        return _asked(place, client=client)
    raise UnreachableError(_why_not(place, code, client=client))


def _why_not(place: str, code: str, *, client: bool) -> str:
    if code == "NO_TOKEN":
        return f"there is no token of Ray's here. {_TO_LOG_IN}"
    if code == "UNAUTHENTICATED":
        return f"the cluster at {place} wants Ray's token: none or a wrong one is here. {_TO_LOG_IN}"
    what = "a Ray Client server" if client else "Ray's control process (GCS)"
    return (
        f"what listens at {place} is not {what} ({code}). Ray's own port is 6379 by default, its client port "
        "10001; the dashboard's 8265 does not do"
    )


def _judge(address: str, version: str, python: str) -> tuple[str, ...]:
    """Return warnings. Raises ``UnreachableError`` where Ray would refuse."""
    if not version:
        return ()
    import ray  # noqa: PLC0415 - loaded by now

    here = (ray.__version__, platform.python_version())
    if here != (version, python):
        raise UnreachableError(
            f"{address} runs Ray {version} with Python {python}, and this is Ray {here[0]} with Python "
            f"{here[1]}: Ray connects equal ones only. Run this command in the cluster's own environment"
        )
    sentence = untried(RAY, version)
    return (sentence,) if sentence else ()


def _join(address: str, *, client: bool) -> None:
    import ray  # noqa: PLC0415 - loaded by now

    if not client and not a_node_runs_here():
        raise UnreachableError(
            f"{address} answers, but no node of it runs on this machine, and Ray lets only nodes in "
            "there. Run this command on one of them, or connect with ray://HOST:10001"
        )
    os.environ.pop("RAY_ADDRESS", None)  # an address that is given wins anyway, but for ray:// ones
    try:
        ray.init(address=address, namespace=OURS, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise UnreachableError(f"Ray does not connect to {address}: {last_line(error)}") from error


def last_line(error: BaseException) -> str:
    """Return the last line of what an error says, its type where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
