"""What ``torch.save`` wrote, read without torch and without running anything that it names.

Such a file is a zip: a pickle that describes the objects, and the bytes of each storage beside it, as they
are. Here the pickle is read with stand-ins for all that it names, so that nothing in it is ever imported or
called; what counts is which part of which storage each tensor takes, and of which type it is. The bytes are
then looked at in blocks: memory stays flat, also for files that are larger than it.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
import struct
import zipfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

from rayguard.engine.weights.tensorfile import TensorEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # magic, then the lengths of the name and of the extra field
_MAGIC = b"PK\x03\x04"
# What torch calls a type of numbers -> what safetensors calls it, bytes of one element.
_DTYPES = {
    "DoubleStorage": ("F64", 8), "float64": ("F64", 8), "double": ("F64", 8),
    "FloatStorage": ("F32", 4), "float32": ("F32", 4), "float": ("F32", 4),
    "HalfStorage": ("F16", 2), "float16": ("F16", 2), "half": ("F16", 2),
    "BFloat16Storage": ("BF16", 2), "bfloat16": ("BF16", 2),
    "ComplexDoubleStorage": ("F64", 16), "complex128": ("F64", 16),  # pairs of numbers
    "ComplexFloatStorage": ("F32", 8), "complex64": ("F32", 8),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "float8_e8m0fnu": ("F8_E8M0", 1),
}  # fmt: skip
_UNKNOWN = frozenset({"float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2", "complex32"})
_REBUILD = frozenset({"_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_tensor"})
_OF_A_TYPE = frozenset({"_rebuild_from_type_v2", "_rebuild_from_type"})  # of a subclass: calls one of those
_DTYPE_AT = 2  # where the type stands behind the strides in the arguments of ``_rebuild_tensor_v3``
_NUMEL_AT = 4  # where the size stands in what names a storage


class UnreadableError(Exception):
    """The file cannot be judged: it may be whole and good all the same."""


class _Storage(NamedTuple):
    """One storage, by its name in the zip; ``kind`` is the type of its numbers, where that is said."""

    key: str
    kind: str
    numel: int


class _Inert:
    """Stands for anything that a pickle names: takes whatever is done to it, and does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        return

    def __setstate__(self, _: object) -> None:
        return

    def __setitem__(self, _: object, __: object) -> None:
        return

    def __call__(self, *_: object, **__: object) -> _Inert:
        return self

    def append(self, _: object) -> None:
        """Take what a list would."""

    def extend(self, _: object) -> None:
        """Take what a list would."""

    def add(self, _: object) -> None:
        """Take what a set would."""


class _Named(_Inert):
    """Stands for a type: of a storage, or of a tensor's numbers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a storage that a tensor takes, in elements."""

    storage: _Storage
    dtype: str
    width: int  # of one element, in bytes
    first: int
    last: int  # one behind


class _Reader(pickle.Unpickler):
    """Reads the description; ``parts`` are the tensors that were found in it."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.parts: list[_Part] = []
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> object:
        """Return a stand-in, never what is named."""
        if module == "torch._utils" and name in _REBUILD:
            return self._tensor
        if module == "torch._tensor" and name in _OF_A_TYPE:
            return self._of_a_type
        if module in {"torch", "torch.storage"}:
            return _Named(name)
        return collections.OrderedDict if (module, name) == ("collections", "OrderedDict") else _Inert

    def persistent_load(self, pid: object) -> _Storage:
        """Return the storage that an object names."""
        if not isinstance(pid, tuple) or len(pid) <= _NUMEL_AT or pid[0] != "storage":
            raise UnreadableError(f"it refers to {pid!r:.80}")
        found = _Storage(str(pid[2]), getattr(pid[1], "name", ""), int(pid[_NUMEL_AT]))
        return self.storages.setdefault(found.key, found)

    def unread(self) -> str:
        """Return the key of a storage of floating numbers that no tensor took, '' for none."""
        taken = {part.storage.key for part in self.parts}
        left = (one for one in self.storages.values() if one.numel and one.kind in _DTYPES)
        return next((one.key for one in left if one.key not in taken), "")

    def _tensor(
        self, storage: object, offset: int, size: Sequence[int], stride: Sequence[int], *more: object
    ) -> _Inert:
        if not isinstance(storage, _Storage):
            raise UnreadableError("a tensor has no storage of its own")
        said = more[_DTYPE_AT] if len(more) > _DTYPE_AT else None
        kind = said.name if isinstance(said, _Named) else storage.kind
        if kind in _UNKNOWN:
            raise UnreadableError(f"it holds {kind}, which is not looked at here")
        span = _span(size, stride)
        if kind in _DTYPES and span:
            self.parts.append(_Part(storage, *_DTYPES[kind], offset, offset + span))
        elif not span:
            self.storages.pop(storage.key, None)
        return _Inert()

    def _of_a_type(self, rebuild: object, _: object, arguments: tuple[object, ...], *__: object) -> _Inert:
        return rebuild(*arguments) if callable(rebuild) and rebuild == self._tensor else _Inert()


def _span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements of its storage a tensor reaches over, 0 for an empty one."""
    if any(not one for one in size):
        return 0
    return 1 + sum((one - 1) * step for one, step in zip(size, stride, strict=True))


def require_whole(path: Path) -> None:
    """Raise ``ValueError`` where a file of ``torch.save`` ends early; nothing is read but its two ends.

    Raises:
        UnreadableError: It is no such file, or one of before torch 1.6.
    """
    with path.open("rb") as file:
        begin = file.read(len(_MAGIC))
    if not begin:
        raise ValueError("it is empty")
    if begin != _MAGIC:
        raise UnreadableError("it is no file that torch.save writes since 1.6")
    with _opened(path):
        pass


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)  # reads the directory, which is written last
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is cut off ({error})") from error
    with archive:
        yield archive


def tensors(path: Path) -> dict[str, TensorEntry]:
    """Return the floating tensors in a file of ``torch.save``, by the place where they lie in it.

    They are named by the storage; what they are called in the model is not known here. A region that several
    tensors share is there once.

    Raises:
        ValueError: The file ends early, or a tensor reaches over the end of its storage.
        UnreadableError: It cannot be judged.
    """
    with _opened(path) as archive, path.open("rb") as raw:
        found = {info.filename: info for info in archive.infolist()}
        root = next((name.removesuffix("data.pkl") for name in found if name.endswith("/data.pkl")), None)
        if root is None:
            raise UnreadableError("there is no data.pkl in it")
        if f"{root}byteorder" in found and archive.read(f"{root}byteorder") != b"little":
            raise UnreadableError("it was written on a machine of the other byte order")
        with archive.open(f"{root}data.pkl") as description:
            parts = _described(description)
        return dict(_placed(part, root, found, raw) for part in parts)


def _described(description: IO[bytes]) -> list[_Part]:
    reader = _Reader(description)
    try:
        reader.load()
    except UnreadableError:
        raise
    except Exception as error:  # a pickle that does not read can fail in any way
        raise UnreadableError(f"its description cannot be read ({error!r:.120})") from error
    unread = reader.unread()
    if unread:
        raise UnreadableError(f"what takes its storage {unread} is not known here")
    return reader.parts


def _placed(
    part: _Part, root: str, found: dict[str, zipfile.ZipInfo], raw: IO[bytes]
) -> tuple[str, TensorEntry]:
    name = f"{root}data/{part.storage.key}"
    info = found.get(name)
    if info is None:
        raise ValueError(f"the storage {part.storage.key} is not in it")
    if info.compress_type != zipfile.ZIP_STORED:
        raise UnreadableError("its storages are compressed")
    first, last = part.first * part.width, part.last * part.width
    if last > info.file_size:
        raise ValueError(f"a tensor reaches over the end of storage {part.storage.key}")
    raw.seek(info.header_offset)
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    if magic != _MAGIC:
        raise ValueError(f"the storage {part.storage.key} does not begin where the directory says")
    begin = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    entry = TensorEntry(
        dtype=part.dtype, shape=(part.last - part.first,), start=begin + first, stop=begin + last
    )
    return f"storage {part.storage.key} [{part.first}:{part.last}]", entry
