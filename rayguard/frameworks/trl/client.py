"""TRL's ``VLLMClient``, which talks to the server of ``vllm_mode="server"``: of TRL 1.16, and before.

Tried with TRL 1.16.0. A class that is made otherwise is left as it is, and that is said.
"""

from __future__ import annotations

import atexit
import contextlib
import socket
from typing import TYPE_CHECKING, Protocol, cast

from rayguard.frameworks.server import guarded_class
from rayguard.frameworks.server.guarded_link import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

_PORTS = 100
_COMMON = {
    "generate": ("prompts",),
    "chat": ("messages",),
    "init_communicator": ("device",),
    "reset_prefix_cache": (),
    "close_communicator": (),
}
_STREAMED = {**_COMMON, "update_named_params": ("metadata", "named_params")}  # 1.16
_ONE_BY_ONE = {**_COMMON, "update_named_param": ("name", "weights")}  # before
_ASKING = ("generate", "chat", "image_features", "get_sequence_logprobs", "reset_prefix_cache")


class _Client(Protocol):
    base_url: str
    group_port: int
    communicator: object

    def close_communicator(self) -> object: ...


class TrlShape:
    """A client of one server."""

    name = "TRL's VLLMClient"

    def urls(self, client: object) -> Sequence[str]:
        """Return the base address of its server."""
        return (str(cast("_Client", client).base_url),)

    def join(self, client: object, begin: Callable[[], object]) -> None:
        """Make the group anew on another port: one of the two sides may still hold the old one."""
        its = cast("_Client", client)
        atexit.unregister(its.close_communicator)  # else once for each group
        with contextlib.suppress(Exception):
            its.close_communicator()  # of a server that still has the old group; a new one has none
        its.communicator = None
        its.group_port = next_port(int(its.group_port))
        begin()


def next_port(port: int) -> int:
    """Return the next port that nobody listens on here, ``port + 1`` where all are taken."""
    for candidate in range(port + 1, port + _PORTS):
        with socket.socket() as tried, contextlib.suppress(OSError, OverflowError):
            tried.bind(("", candidate))
            return candidate
    return port + 1


def guard_module(module: ModuleType) -> bool:
    """Guard the client of ``trl.generation.vllm_client``, as it was imported; say whether it is known."""
    cls = getattr(module, "VLLMClient", None)
    return isinstance(cls, type) and guard_client(cls)


def guard_client(cls: type, *, deadline_s: float = DEADLINE_S) -> bool:
    """Guard each client of a class; say whether it is one that is known. A second time does nothing.

    Args:
        cls: ``trl.generation.vllm_client.VLLMClient``, or a subclass.
        deadline_s: How long a server that was lost is waited for.
    """
    streamed = not guarded_class.unknown(cls, _STREAMED)
    why = "" if streamed else guarded_class.unknown(cls, _ONE_BY_ONE)
    if why:
        guarded_class.tell_unknown(cls, why)
        return False
    if guarded_class.is_guarded(cls, "generate"):
        return True
    shape = TrlShape()
    for name in _ASKING:
        if name in vars(cls):
            guarded_class.guard_asking(cls, name, shape, deadline_s)
    guarded_class.guard_begin(cls, "init_communicator", shape, deadline_s)
    if streamed:
        _guard_streamed_push(cls, shape, deadline_s)
    else:
        guarded_class.guard_push(cls, "update_named_param", shape, deadline_s, lambda name, *_, **__: name)
    _wait_less(cls)
    return True


def _guard_streamed_push(cls: type, shape: TrlShape, deadline_s: float) -> None:
    def around(
        method: Callable[..., object],
        client: object,
        metadata: list[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, object]],
    ) -> object:
        if vars(client).get("_updating_weights"):  # one of several pushes in one update: not made again alone
            return method(client, metadata, named_params)
        link = guarded_class.linked(client, shape, deadline_s)
        key = tuple(name for name, *_ in metadata)
        return link.push_streamed(key, "update_named_params", method, (metadata,), iter(named_params))

    guarded_class.put_around(cls, "update_named_params", around)


def _wait_less(cls: type) -> None:
    """Cut what the session retries by itself to what a stale connection needs; else it is 60 s of it."""

    def around(method: Callable[..., object], client: object, *args: object, **kwargs: object) -> None:
        method(client, *args, **kwargs)
        for adapter in getattr(getattr(client, "session", None), "adapters", {}).values():
            with contextlib.suppress(AttributeError):
                adapter.max_retries = adapter.max_retries.new(connect=0, read=1)

    guarded_class.put_around(cls, "__init__", around)
