"""What stands for a rank's handle while a framework sends a call: it sends, and has note taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RecordingHandle:
    """A rank's handle: ``handle.method.remote(...)`` goes by ``send``; all else is the handle's own."""

    def __init__(self, rank: int, handle: object, send: Callable[..., object]) -> None:
        self._rank, self._handle, self._send = rank, handle, send

    def __getattr__(self, method: str) -> object:
        found = getattr(self._handle, method)
        return found if method.startswith("_") else RecordingMethod(self._rank, method, self._send)


class RecordingMethod:
    """A method of such a handle."""

    def __init__(self, rank: int, method: str, send: Callable[..., object]) -> None:
        self._rank, self._method, self._send = rank, method, send

    def remote(self, *args: object, **kwargs: object) -> object:
        """Send the call, and return its reference."""
        return self._send(self._rank, self._method, args, kwargs)
