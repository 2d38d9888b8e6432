"""State as bytes and back: tensors and arrays are handed over as they lie in memory, never pickled.

For what torch calls a state dict: nested dicts and lists of tensors, arrays and plain values. As with
``torch.save`` tensors keep their strides, and those that share memory share it afterwards; of a big storage
only what they span goes along. Tensors come back on the CPU. Torch is used where it is loaded already.
"""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_COUNT = struct.Struct("<Q")


def to_parts(value: object) -> list[bytes | memoryview]:
    """Return ``value`` as parts to be written one after the other. They are views: write them at once.

    Raises:
        Exception: What pickling raised.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _pickler()(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    pieces, regions, places = _laid_out([buffer.raw() for buffer in buffers])
    head = pickle.dumps((len(stream.getbuffer()), regions, places), protocol=5)
    return [_COUNT.pack(len(head)), head, stream.getbuffer(), *pieces]


def from_bytes(data: bytes) -> object:
    """Return what ``to_parts`` was given.

    Raises:
        Exception: It is damaged, or a class of it cannot be imported here.
    """
    (size,) = _COUNT.unpack_from(data)
    at = _COUNT.size + size
    stream, sizes, places = pickle.loads(data[_COUNT.size : at])  # noqa: S301 - our own file, in our own home
    regions, end = [], at + stream
    for size in sizes:
        regions.append(memoryview(bytearray(data[end : end + size])))
        end += size
    if end != len(data):
        raise ValueError(f"a state of {end} bytes has {len(data)}")
    buffers = (regions[region][start:stop] for region, start, stop in places)
    return pickle.loads(data[at : at + stream], buffers=buffers)  # noqa: S301 - as above


def packed_within(value: object, most: int) -> bytes | None:
    """Return ``value`` as ``cloudpickle`` packs it; None where that has more than ``most`` bytes.

    What is too large is not copied to find that out.

    Raises:
        Exception: What pickling raised.
    """
    file = _Limited(most)
    try:
        _limited_pickler()(file, protocol=5, buffer_callback=file.holds).dump(value)
    except _TooLargeError:
        return None
    return file.getvalue()


class _TooLargeError(Exception):
    """More bytes than there may be."""


class _Limited(io.BytesIO):
    """A file that takes so many bytes and no more."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def holds(self, size: pickle.PickleBuffer | int) -> bool:
        """Return True, so that a buffer goes into the file; it has not been copied yet.

        Raises:
            _TooLargeError: There is no room for it.
        """
        more = size if isinstance(size, int) else size.raw().nbytes
        if self.tell() + more > self._most:
            raise _TooLargeError
        return True

    def write(self, data: Any) -> int:
        """Write.

        Raises:
            _TooLargeError: There is no room.
        """
        self.holds(memoryview(data).nbytes)
        return super().write(data)


@functools.cache
def _limited_pickler() -> type[pickle.Pickler]:
    from ray import cloudpickle  # noqa: PLC0415 - an actor runs here

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: _Limited, **options: Any) -> None:
            super().__init__(file, **options)
            self._limit = file

        def reducer_override(self, value: object) -> object:
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(value, torch.Tensor) and not value.is_sparse:
                self._limit.holds(value.numel() * value.element_size())  # torch copies it first
            return super().reducer_override(value)

    return Pickler


def _laid_out(views: Sequence[memoryview]) -> tuple[list[memoryview], list[int], list[tuple[int, int, int]]]:
    """Return what is to be written, the sizes of the regions that it makes, and where in them each view lies.

    Views whose memory overlaps lie in one region: a store into one will be seen in the other again.
    """
    found, below = [], 0
    for number, view in enumerate(views):
        if view.readonly or not view.nbytes:  # nothing is ever stored there: an address of its own will do
            below -= view.nbytes
            found.append((below, -view.nbytes, number))
        else:
            found.append((ctypes.addressof(ctypes.c_char.from_buffer(view)), -view.nbytes, number))
    pieces: list[memoryview] = []
    sizes: list[int] = []
    places = [(0, 0, 0)] * len(views)
    begin = end = below - 1
    for start, negative, number in sorted(found):
        view, stop = views[number], start - negative
        if start >= end:
            begin = end = start
            sizes.append(0)
        places[number] = (len(sizes) - 1, start - begin, stop - begin)
        if stop > end:
            pieces.append(view[end - start :])
            sizes[-1] += stop - end
            end = stop
    return pieces, sizes, places


@functools.cache
def _pickler() -> type[pickle.Pickler]:
    """Return cloudpickle's pickler, by which Ray moves values, that leaves tensors as they lie."""
    from ray import cloudpickle  # noqa: PLC0415 - an actor runs here

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: object) -> object:
            torch = sys.modules.get("torch")
            if (
                torch is not None
                and type(value) in (torch.Tensor, torch.nn.Parameter)
                and _lies(torch, value)
            ):
                return _tensor, _as_it_lies(torch, value)
            return super().reducer_override(value)

    return Pickler


def _lies(torch: Any, tensor: Any) -> bool:
    """Say whether it lies in memory as numbers."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_meta)


def _as_it_lies(torch: Any, tensor: Any) -> tuple[object, ...]:
    shape, strides, flat = tuple(tensor.shape), tensor.stride(), tensor
    if not tensor.is_contiguous():
        spanned = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        flat = tensor.detach().as_strided((spanned,), (1,))
    if tensor.dtype not in (torch.float32, torch.int64):  # NumPy does not know all others
        number = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
        flat = flat.detach().resolve_conj().resolve_neg().view(number[tensor.itemsize])
    raw = pickle.PickleBuffer(flat.numpy(force=True))
    kind = (type(tensor) is torch.nn.Parameter, tensor.requires_grad, vars(tensor) or None)
    return (raw, tensor.dtype, (shape, strides), *kind)


def _tensor(
    data: memoryview,
    dtype: object,
    lies: tuple[Sequence[int], Sequence[int]],
    parameter: bool,  # noqa: FBT001
    trained: bool,  # noqa: FBT001
    attributes: dict[str, object] | None,
) -> object:
    import torch  # noqa: PLC0415 - the state has tensors

    found = torch.empty(0, dtype=dtype)
    if len(data):
        found.set_(torch.frombuffer(data, dtype=torch.uint8).untyped_storage(), 0, *lies)
    else:
        found = found.as_strided(*lies)
    found = torch.nn.Parameter(found, requires_grad=trained) if parameter else found.requires_grad_(trained)
    vars(found).update(attributes or {})
    return found
