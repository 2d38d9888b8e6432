"""Building vLLM's client of a core that runs already: its owner died, or put it down.

vLLM's own path for engines that somebody else manages: the client binds the sockets that the core has
dialled, and ZMQ dials again by itself (measured: 0.2 s). What the core says once, when it is ready, is
answered from
its lease. Then it is asked to belong to us; all that it still had to tell its old owner is passed over.

Written against vllm/v1/engine/core_client.py (0.32): ``MPClient.__init__(client_addresses=...)`` and its wait
for the first message of each engine. Into a vLLM that looks otherwise nothing is put.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import uuid
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, cast

from rayguard.engine.protocol import AdoptableEngine
from rayguard.engine.vllm.adoption.adopted_core import AdoptedCore, AdoptedCores
from rayguard.engine.vllm.adoption.take_over import TAKE_OVER
from rayguard.engine.vllm.patch import says, wrap
from rayguard.errors import RayguardError
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rayguard.engine.adoption.lease import EngineLease
    from rayguard.engine.protocol import EngineProcess
    from rayguard.engine.vllm.adoption.interfaces import CoreAnswer, CoreConfig, CoreSocket, OwnClient

ANSWER_S = 2.0  # for a core to dial again, end its step and answer
_REDIAL_S = 0.005
_CODE = (
    "if client_addresses:",
    'input_address = client_addresses["input_address"]',
    "sync_input_socket = zmq.Socket.shadow(self.input_socket)",
    "identity, payload = sync_input_socket.recv_multipart()",
    "self.start_engine_core_monitor()",
)


class NotAdoptedError(RayguardError):
    """An engine could not be taken over; another one is built."""


@dataclass(slots=True, kw_only=True)
class Takeover:
    """An engine that is taken over in this thread: what is known of it, and what it answered.

    ``refuse`` gets a digest of vLLM's own settings and raises where they are not those of the lease.
    """

    lease: EngineLease
    mark: str
    records: str
    refuse: Callable[[str], None]


_building = threading.local()


@contextlib.contextmanager
def taking_over(takeover: Takeover) -> Iterator[None]:
    """Let the client that this thread builds meanwhile be one of the core that runs already.

    Raises:
        NotAdoptedError: This vLLM is not known.
    """
    if not install():
        raise NotAdoptedError("this vLLM builds its clients in a way that is not known")
    _building.takeover = takeover
    try:
        yield
    finally:
        _building.takeover = None


def install() -> bool:
    """Let clients be built of cores that run, and remember what each core said; return whether that is so."""
    with harmless("adoption"):
        from vllm.v1.engine import core_client  # noqa: PLC0415 - vLLM is optional, and costs 10 s

        if not says(core_client.MPClient.__init__, *_CODE):
            return False
        wrap(core_client.MPClient, "__init__", _begun)
        wrap(core_client.MPClient, "_apply_ready_response", _heard)
        if not isinstance(core_client.zmq, _Zmq):
            core_client.zmq = _Zmq(core_client.zmq)
        return True
    return False


@dataclass(frozen=True, slots=True)
class Meeting:
    """How a client and its core met: what a later client of the same core needs."""

    config: str  # a digest of vLLM's settings
    ready: bytes
    input_address: str
    output_address: str


def adoptable(client: object, known: Sequence[EngineProcess], given: str) -> AdoptableEngine | None:
    """Return what an heir of the engine behind ``client`` needs; None where none could go on with it.

    ``known`` are its processes, core first, ``given`` is a digest of its arguments. The core must not end
    with this process's group, as Ray ends that of a dead actor.
    """
    met: Meeting | None = getattr(client, "rayguard_meeting", None)
    if met is None or not (given and met.config) or len(getattr(client, "core_engines", ())) != 1:
        return None
    core = known[0].process
    with contextlib.suppress(OSError):
        if os.getpgid(core.pid) != os.getpgrp():
            return AdoptableEngine(
                core=core,
                arguments=f"{given} {met.config}",
                input_address=met.input_address,
                output_address=met.output_address,
                ready=met.ready,
            )
    return None


def receipts_of(client: object) -> tuple[dict[str, object], ...]:
    """Return what the workers of a core that was taken over said to hold."""
    return getattr(client, "rayguard_receipts", ())


def _heard(apply: Callable[..., None], client: OwnClient, payload: bytes) -> None:
    import zmq  # noqa: PLC0415 - vLLM's

    sockets = (client.input_socket, client.resources.output_socket)
    ends = [socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode() for socket in sockets]
    client.rayguard_meeting = Meeting(_digest(client.vllm_config), bytes(payload), *ends)
    apply(client, payload)


def _digest(vllm_config: CoreConfig) -> str:
    with harmless("adoption"):
        return str(vllm_config.compute_hash())
    return ""


def _begun(begin: Callable[..., None], client: OwnClient, *args: object, **options: object) -> None:
    takeover: Takeover | None = getattr(_building, "takeover", None)
    if takeover is None:
        begin(client, *args, **options)
        return
    lease = takeover.lease
    takeover.refuse(_digest(cast("CoreConfig", options["vllm_config"])))
    addresses = {"input_address": lease.input_address, "output_address": lease.output_address}
    begin(client, *args, **{**options, "client_addresses": addresses})
    try:
        client.rayguard_receipts = tuple(_answer(client, takeover))
        client.resources.engine_manager = AdoptedCores([AdoptedCore(lease.core)], takeover.mark)
        client.start_engine_core_monitor()
    except BaseException:
        client.shutdown(timeout=0.0)
        raise


def _answer(client: OwnClient, takeover: Takeover) -> list[dict[str, object]]:
    """Ask the core to be ours, and return what its workers hold."""
    from vllm.v1.engine import EngineCoreRequestType  # noqa: PLC0415 - as above

    until = time.monotonic() + ANSWER_S
    call_id = uuid.uuid1().int >> 64
    call = client.encoder.encode((0, call_id, TAKE_OVER, (takeover.mark, takeover.records)))
    _send(client, (client.core_engine, EngineCoreRequestType.UTILITY.value, *call), until)
    said = _heard_back(client, call_id, until)
    if said.failure_message is not None:
        raise NotAdoptedError(said.failure_message)
    return list(said.result.result["receipts"])


def _send(client: OwnClient, message: tuple[object, ...], until: float) -> None:
    """Send as soon as the core has dialled: what is sent before would be lost."""
    import zmq  # noqa: PLC0415 - vLLM's

    socket = _shadow(client.input_socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        while not _sent(socket, message):
            if time.monotonic() > until:
                raise NotAdoptedError("the engine does not dial")
            threading.Event().wait(_REDIAL_S)
    finally:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 0)


def _sent(socket: CoreSocket, message: tuple[object, ...]) -> bool:
    import zmq  # noqa: PLC0415 - vLLM's

    try:
        socket.send_multipart(message)
    except zmq.ZMQError as error:
        if error.errno == errno.EHOSTUNREACH:
            return False
        raise
    return True


def _shadow(socket: CoreSocket) -> CoreSocket:
    """Return the same socket for use without an event loop: none reads or writes it yet."""
    import zmq  # noqa: PLC0415 - vLLM's

    return cast("CoreSocket", zmq.Socket.shadow(cast("zmq.Socket[bytes]", socket)))


def _heard_back(client: OwnClient, call_id: int, until: float) -> CoreAnswer:
    socket = _shadow(client.resources.output_socket)
    while socket.poll(int(max(0.0, until - time.monotonic()) * 1_000)):
        frames = socket.recv_multipart(copy=False)
        client.resources.validate_alive(frames)
        said = client.decoder.decode(frames).utility_output
        if said is not None and said.call_id == call_id:
            return said  # what came before was for who owned it before
    raise NotAdoptedError(f"the engine has not answered in {ANSWER_S:.0f} s")


class _Zmq(ModuleType):
    """``zmq`` as the client's module sees it: whether a core that is taken over is ready, its lease says."""

    def __init__(self, zmq: ModuleType) -> None:
        super().__init__(zmq.__name__)
        self._zmq = zmq
        self.Socket = SimpleNamespace(shadow=self._shadow)

    def __getattr__(self, name: str) -> object:
        return getattr(self._zmq, name)

    def _shadow(self, socket: object) -> object:
        takeover: Takeover | None = getattr(_building, "takeover", None)
        return self._zmq.Socket.shadow(socket) if takeover is None else _Ready(takeover.lease)


class _Ready:
    """In place of the socket on which a core says that it is ready."""

    def __init__(self, lease: EngineLease) -> None:
        self._lease = lease

    def poll(self, timeout: float) -> bool:  # noqa: ARG002 - as a socket
        return True

    def recv_multipart(self) -> tuple[bytes, bytes]:
        return (0).to_bytes(2, "little"), self._lease.ready
