# ruff: noqa: D102 - vLLM and zmq say what their methods do
"""What adoption uses of vLLM's objects, by the names that vLLM 0.32 gives them. Types alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rayguard.engine.vllm.adoption.adopted_core import AdoptedCores


class CoreSocket(Protocol):
    """A zmq socket, used from one thread."""

    def getsockopt(self, option: int) -> bytes: ...
    def setsockopt(self, option: int, value: int) -> None: ...
    def send_multipart(self, message: Sequence[object]) -> object: ...
    def recv_multipart(self, *, copy: bool) -> Sequence[object]: ...
    def poll(self, timeout: int) -> int: ...


class CoreResult(Protocol):
    """What a core answered to a call."""

    result: Mapping[str, Sequence[dict[str, object]]]


class CoreAnswer(Protocol):
    """The end of a call to a core."""

    call_id: int
    failure_message: str | None
    result: CoreResult


class CoreOutputs(Protocol):
    """What a core sent."""

    utility_output: CoreAnswer | None


class CoreDecoder(Protocol):
    """Reads what a core sent."""

    def decode(self, frames: Sequence[object]) -> CoreOutputs: ...


class CoreEncoder(Protocol):
    """Writes what a core is sent."""

    def encode(self, message: object) -> Sequence[bytes]: ...


class CoreConfig(Protocol):
    """vLLM's settings."""

    def compute_hash(self) -> str: ...


class ClientsResources(Protocol):
    """What a client lets go of at its end (``BackgroundResources``)."""

    output_socket: CoreSocket
    engine_manager: AdoptedCores | None

    def validate_alive(self, frames: Sequence[object]) -> None: ...


class OwnClient(Protocol):
    """vLLM's client of its cores (``MPClient``), and what is noted on it."""

    vllm_config: CoreConfig
    input_socket: CoreSocket
    resources: ClientsResources
    encoder: CoreEncoder
    decoder: CoreDecoder
    core_engine: bytes
    rayguard_meeting: object
    rayguard_receipts: tuple[dict[str, object], ...]

    def start_engine_core_monitor(self) -> None: ...
    def shutdown(self, timeout: float | None = None) -> None: ...


class CoreScheduler(Protocol):
    """A core's scheduler."""

    requests: Mapping[str, object]


class CoreInbox(Protocol):
    """What a core is to do next."""

    def put_nowait(self, item: tuple[object, object]) -> None: ...


class OwnCore(Protocol):
    """vLLM's core in its own process (``EngineCoreProc``), and what is noted on it."""

    scheduler: CoreScheduler
    input_queue: CoreInbox
    rayguard_paused: bool
    rayguard_changed: str

    def abort_requests(self, request_ids: list[str]) -> None: ...
    def reset_mm_cache(self) -> None: ...
    def collective_rpc(
        self, method: str, timeout: float | None, args: tuple[object, ...], kwargs: None
    ) -> list[Mapping[str, object]]: ...
