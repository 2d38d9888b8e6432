"""The weights that a trainer has pushed last, kept on the host: a server that was restarted has none.

A copy, not a reference: what is pushed is often gathered or merged for the push alone (ZeRO-3, FSDP, LoRA).
It is made while the push reads its tensors anyway, and only while memory is plentiful: a model that does not
fit a second time is not kept, and a server that loses it then is not served from.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from rayguard.memory.probes.node import NodeProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import torch

_LEAST_FREE = 0.15  # of the memory of the node or container, that must stay free beside what is kept
_LOOK_EVERY = 256 << 20  # bytes kept between two looks at memory
_log = logging.getLogger("rayguard")
Args: TypeAlias = "tuple[object, ...]"
Kwargs: TypeAlias = "dict[str, object]"
Named: TypeAlias = "Iterator[tuple[str, object]]"  # tensors
Call: TypeAlias = "tuple[str, Args, Kwargs]"


class KeptTensor(NamedTuple):
    """A copy on the host, and where the tensor was."""

    copy: torch.Tensor
    device: torch.device

    def back(self) -> torch.Tensor:
        """Return it where it was."""
        return self.copy.to(self.device)


class KeptStream(NamedTuple):
    """What one call was streamed, by name."""

    tensors: list[tuple[str, object]]


class KeptWeights:
    """What was pushed, call by call; a later push of the same thing takes the place of the one before.

    ``room``: how many bytes may still be kept, as far as anybody knows.
    """

    def __init__(self, room: Callable[[], int] | None = None) -> None:
        self.calls: dict[Hashable, Call] = {}
        self.why_none = ""  # why nothing is kept any more
        self._room = room or free_for_copies
        self._left = 0

    def keep(self, key: Hashable, method: str, args: Args, kwargs: Kwargs) -> None:
        """Keep a call with a copy of each tensor in it."""
        self.calls.pop(key, None)  # first: never two copies
        copied = tuple(map(self._copied, args)), {name: self._copied(one) for name, one in kwargs.items()}
        self._note(key, (method, *copied))

    def reading(self, key: Hashable, method: str, args: Args, tensors: Named) -> Named:
        """Pass the tensors of one call on, which come behind ``args``, and keep a copy of each."""
        self.calls.pop(key, None)
        kept: list[tuple[str, object]] = []
        for name, tensor in tensors:
            if not self.why_none:
                kept.append((name, self._copied(tensor)))
            yield name, tensor
        self._note(key, (method, (*args, KeptStream(kept)), {}))

    def _note(self, key: Hashable, call: Call) -> None:
        if self.why_none:
            self.calls.clear()
        else:
            self.calls[key] = call

    def made_again(self) -> Iterator[Call]:
        """Return the calls that bring a server to these weights."""
        for key in list(self.calls):
            yield self.again(key)

    def again(self, key: Hashable) -> Call:
        """Return one of them, with its tensors where they were.

        Raises:
            ConnectionError: It is not kept: what it pushed cannot be pushed again.
        """
        if key not in self.calls:
            raise ConnectionError(self.why_none or "what was pushed is not kept")
        method, args, kwargs = self.calls[key]
        return method, tuple(map(_back, args)), {name: _back(value) for name, value in kwargs.items()}

    def _copied(self, value: object) -> object:
        """Return ``value`` with a copy on the host in the place of each tensor."""
        if isinstance(value, dict):
            return {key: self._copied(one) for key, one in value.items()}
        if not callable(getattr(value, "data_ptr", None)) or self.why_none:
            return value
        tensor = cast("torch.Tensor", value)
        size = int(tensor.numel()) * int(tensor.element_size())
        if self._left < size:
            self._left = min(self._room(), max(size, _LOOK_EVERY))
        self._left -= size
        if self._left < 0:
            self.why_none = "there is not enough memory on this host to keep a copy of the weights"
            _log.warning(
                "rayguard: %s: if the inference server is lost, the run ends as it would without us",
                self.why_none,
            )
            return value
        return KeptTensor(tensor.detach().to("cpu", copy=True), tensor.device)


def _back(value: object) -> object:
    if isinstance(value, KeptTensor):
        return value.back()
    if isinstance(value, KeptStream):  # each is brought back as it is asked for
        return ((name, _back(one)) for name, one in value.tensors)
    if isinstance(value, dict):
        return {key: _back(one) for key, one in value.items()}
    return value


def free_for_copies() -> int:
    """Return how many bytes copies of weights may take: so that a share of all memory stays free."""
    return min((int(limit.left - limit.total * _LEAST_FREE) for limit in NodeProbe().limits()), default=0)
