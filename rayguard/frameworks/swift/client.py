"""ms-swift's clients of ``swift rollout`` and of teacher servers: several servers each, and no deadlines.

Read in the source of ms-swift 4.6. A class that is made otherwise is left as it is, and that is said.
"""

from __future__ import annotations

import atexit
import contextlib
from typing import TYPE_CHECKING, Protocol, cast

from rayguard.frameworks.server import guarded_class
from rayguard.frameworks.server.guarded_link import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from types import ModuleType

_INFER = {"infer": ("infer_requests", "request_config")}
_CLIENT = {
    "init_communicator": ("device",),
    "update_named_param": ("name", "weights"),
    "update_flattened_params": ("metadatas", "flattened_tensor"),
    "update_adapter_flattened_param": ("peft_config", "metadatas", "flattened_tensor"),
    "close_communicator": (),
}
_ASKING = (
    "reset_prefix_cache",
    "reset_encoder_cache",
    "reset_mm_cache",
    "get_engine_type",
    "get_model_state_keys",
)


class _Client(Protocol):
    base_urls: list[str]
    group_ports: list[int]

    def close_communicator(self) -> object: ...


class SwiftShape:
    """A client of several servers, with a group for weights with each."""

    name = "ms-swift's VLLMClient"

    def urls(self, client: object) -> Sequence[str]:
        """Return the base addresses of its servers."""
        return tuple(map(str, cast("_Client", client).base_urls))

    def join(self, client: object, begin: Callable[[], object]) -> None:
        """Make the groups with all servers anew, on other ports: those that lived on hold the old ones."""
        its = cast("_Client", client)
        atexit.unregister(its.close_communicator)  # else once for each group
        with contextlib.suppress(Exception):
            its.close_communicator()
        its.group_ports = [port + len(its.group_ports) for port in its.group_ports]
        begin()


def guard_module(module: ModuleType) -> bool:
    """Guard the clients of ``swift.rlhf_trainers.vllm_client``; say whether they are known."""
    found = (getattr(module, name, None) for name in ("VLLMInferClient", "VLLMClient"))
    known = [guard_client(cls) for cls in found if isinstance(cls, type)]
    return bool(known) and all(known)


def guard_client(cls: type, *, deadline_s: float = DEADLINE_S) -> bool:
    """Guard each client of a class; say whether it is one that is known. A second time does nothing.

    Args:
        cls: ``VLLMInferClient``, which only asks, or ``VLLMClient``, which also pushes weights.
        deadline_s: How long a server that was lost is waited for.
    """
    pushes = hasattr(cls, "init_communicator")
    why = guarded_class.unknown(cls, {**_INFER, **(_CLIENT if pushes else {})})
    if why:
        guarded_class.tell_unknown(cls, why)
        return False
    shape = SwiftShape()
    if not guarded_class.is_guarded(cls, "infer"):
        guarded_class.guard_asking(cls, "infer", shape, deadline_s)
    if not pushes or guarded_class.is_guarded(cls, "init_communicator"):
        return True
    for name in filter(vars(cls).__contains__, _ASKING):
        guarded_class.guard_asking(cls, name, shape, deadline_s)
    guarded_class.guard_begin(cls, "init_communicator", shape, deadline_s)
    for name, key in _KEYS.items():
        if name in vars(cls):
            guarded_class.guard_push(cls, name, shape, deadline_s, key)
    return True


def _named(name: str, *_: object, **__: object) -> Hashable:
    return name


def _listed(metadatas: Iterable[object], *_: object, **__: object) -> Hashable:
    return tuple(str(getattr(one, "name", one)) for one in metadatas)


def _single(*_: object, **__: object) -> Hashable:
    return ""


# What of a push says what it pushes: a later one of the same takes its place.
_KEYS: dict[str, Callable[..., Hashable]] = {
    "update_named_param": _named,
    "update_flattened_params": _listed,
    "process_weights_after_loading": _single,
    "update_adapter_flattened_param": _single,
    "update_adapter_param": _single,
}
