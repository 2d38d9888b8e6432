"""The weights that an engine was pushed last, in a file that has no name and ends with the actor.

Memory of the actor's (``memfd_create``): the engine's process writes into it while a push goes through it,
the next engine's reads it, and nothing is left behind where both are gone. It is safetensors data once a
push is whole: until then its first eight bytes are zero. One push overwrites the one before it: one copy.
"""

from __future__ import annotations

import json
import os
import weakref
from enum import Enum
from typing import TYPE_CHECKING

from rayguard.frameworks.server.kept_weights import free_for_copies

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

DATA = 8 + (4 << 20)  # where tensors begin: what is before them says which, for up to 30 000 of them
_NOT_YET = bytes(8)
_LOOK_EVERY = 256 << 20  # bytes kept between two looks at memory
_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class PushKept(Enum):
    """What such a file holds."""

    NOTHING = "nothing"  # no push yet, or it did not fit
    PART = "part"  # of a push
    WHOLE = "whole"


def made() -> int:
    """Return the descriptor of a new one."""
    return os.memfd_create("rayguard-weights", os.MFD_CLOEXEC)


def path_of(file: int) -> str:
    """Return the path by which this process's children find it."""
    return f"/proc/{os.getpid()}/fd/{file}"


def kept_in(file: int) -> PushKept:
    """Say what is in it."""
    if os.fstat(file).st_size <= DATA:
        return PushKept.NOTHING
    return PushKept.PART if os.pread(file, len(_NOT_YET), 0) == _NOT_YET else PushKept.WHOLE


class WeightFile:
    """Takes the tensors of one push after the other.

    Invariant: the file is whole only between the end of a push and the first tensor of the next; and holds no
    push that this writer has not seen from its beginning.
    ``first``: the name that each push begins with ('': not known yet). ``room``: how many bytes may still be
    kept, as far as anybody knows.
    """

    def __init__(self, path: str, first: str = "", room: Callable[[], int] = free_for_copies) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size
        self._room, self._left = room, 0
        self._first, self._within = first, False
        self._entries: dict[str, dict[str, object]] = {}
        self._at = DATA
        self.off = False  # it did not fit: that is not tried again

    def take(self, name: str, tensor: torch.Tensor) -> None:
        """Keep a copy.

        Raises:
            KeyError, ValueError, OSError: It cannot be kept; nothing is from now on.
        """
        if self.off:
            return
        self._first = self._first or name
        try:
            if name == self._first:
                self._begin()
            if self._within:
                self._write(name, tensor)
        except BaseException:
            self.drop()
            raise

    def end(self) -> None:
        """The push is whole."""
        if self.off or not self._within:
            return
        header = json.dumps(self._entries).encode()
        if len(header) > DATA - 8:
            self.drop()
            return
        os.ftruncate(self._file, self._at)
        self._size = self._at
        _put(self._file, memoryview(header.ljust(DATA - 8)), 8)
        _put(self._file, memoryview((DATA - 8).to_bytes(8, "little")), 0)
        self._within = False

    def drop(self) -> None:
        """Keep nothing from now on."""
        self.off, self._within = True, False
        os.ftruncate(self._file, 0)

    def _begin(self) -> None:
        self._within, self._entries, self._at = True, {}, DATA
        _put(self._file, memoryview(_NOT_YET), 0)

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        if name in self._entries:
            raise ValueError(f"{name!r} came twice in one push")
        size = int(tensor.numel()) * int(tensor.element_size())
        if not self._fits(self._at + size - self._size):
            self.drop()
            return
        kind = _TYPES[str(tensor.dtype).removeprefix("torch.")]
        _put(self._file, _bytes_of(tensor), self._at)
        start = self._at - DATA
        self._entries[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [start, start + size],
        }
        self._at += size
        self._size = max(self._size, self._at)

    def _fits(self, more: int) -> bool:
        if more <= 0:
            return True
        if self._left < more:
            self._left = min(self._room(), max(more, _LOOK_EVERY))
        self._left -= more
        return self._left >= 0


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch  # noqa: PLC0415 - an engine's process has it

    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def _put(file: int, data: memoryview, at: int) -> None:
    while len(data):
        count = os.pwrite(file, data[: 1 << 30], at)
        data, at = data[count:], at + count
