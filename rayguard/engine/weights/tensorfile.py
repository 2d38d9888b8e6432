"""Safetensors as bytes on a stream: header, structure, digest, a scan for NaN. Needs no torch.

Read with plain ``read`` calls, never mapped: a trainer that overwrites a checkpoint while it is being
checked would kill the reader with SIGBUS. Not here: what a version is (``weights``), and putting
tensors into a model (``rayguard.engine.vllm.receiver``).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

from rayguard.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK_BYTES = 8 << 20
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16}
_BITS |= {"F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}

# dtype -> (unsigned integer of its size, bits that are all set in NaN and infinity, and only there)
_NON_FINITE = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "C64": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E5M2": ("<u1", 0x7C),
    "F8_E4M3": ("<u1", 0x7F),
    "F8_E8M0": ("<u1", 0xFF),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a safetensors stream; ``start`` and ``stop`` count from the start of the stream."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(stream: IO[bytes], where: str) -> dict[str, TensorEntry]:
    """Return what the stream holds by tensor name; WeightsError if its header and its size disagree.

    A file that is still being written ends before its header says it does, so it is refused here.
    """
    size = stream.seek(0, os.SEEK_END)
    if size == 0:
        raise WeightsError(f"{where} is empty: no weights to load")
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):  # noqa: PLR2004 - the shortest JSON object is {}
        raise WeightsError(f"{where} is no complete safetensors data: header of {length} in {size} bytes")
    try:
        raw = json.loads(stream.read(length))
        raw.pop("__metadata__", None)
        entries = {name: _entry(value, base=8 + length) for name, value in raw.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{where} is no safetensors data: its header cannot be read ({error})") from error
    if not entries:
        raise WeightsError(f"{where} holds no tensors")
    _refuse_gaps(entries, begin=8 + length, end=size, where=where)
    return entries


class _Described(TypedDict):
    dtype: str
    shape: list[int]
    data_offsets: list[int]


def _entry(value: _Described, base: int) -> TensorEntry:
    start, stop = value["data_offsets"]
    shape = tuple(int(dim) for dim in value["shape"])
    return TensorEntry(dtype=str(value["dtype"]), shape=shape, start=base + int(start), stop=base + int(stop))


def _refuse_gaps(entries: dict[str, TensorEntry], *, begin: int, end: int, where: str) -> None:
    """Tensors must fill the stream to its last byte, each as long as its dtype and shape say."""
    at = begin
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        bits = _BITS.get(entry.dtype)
        wanted = entry.stop - entry.start if bits is None else math.prod(entry.shape) * bits // 8
        if entry.start != at or entry.stop - entry.start != wanted:
            raise WeightsError(
                f"{where} is malformed at tensor {name!r}: {entry.dtype}{list(entry.shape)} in bytes "
                f"{entry.start}..{entry.stop}, expected {at}..{at + wanted}"
            )
        at = entry.stop
    if at != end:
        raise WeightsError(f"{where} is cut off or padded: its tensors end at byte {at}, it has {end}")


def first_non_finite(stream: IO[bytes], entries: dict[str, TensorEntry]) -> str | None:
    """Return the name of the first tensor with a NaN or an infinity in it, None if all are finite."""
    import numpy as np  # noqa: PLC0415 - heavy, and only here

    for name, entry in entries.items():
        if entry.dtype not in _NON_FINITE:
            continue
        kind, mask = _NON_FINITE[entry.dtype]
        stream.seek(entry.start)
        left = entry.stop - entry.start
        while left > 0:
            block = stream.read(min(BLOCK_BYTES, left))
            if not block:
                raise WeightsError(
                    f"tensor {name!r} ended {left} bytes early: the file was changed meanwhile"
                )
            left -= len(block)
            bits = np.frombuffer(block, dtype=kind)
            if ((bits & bits.dtype.type(mask)) == mask).any():
                return name
    return None


def digest(stream: IO[bytes]) -> str:
    """Return the sha256 of everything in the stream, in hex."""
    stream.seek(0)
    running = hashlib.sha256()
    while block := stream.read(BLOCK_BYTES):
        running.update(block)
    return running.hexdigest()


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return the digest of a checkpoint: of its one file, or of its files' names and digests."""
    lines = []
    for path in paths:
        with path.open("rb") as stream:
            lines.append((path.name, digest(stream)))
    if len(lines) == 1:
        return lines[0][1]
    return hashlib.sha256("".join(f"{name} {hexed}\n" for name, hexed in lines).encode()).hexdigest()


def checkpoint_files(path: str) -> tuple[Path, ...]:
    """Return the safetensors files of a checkpoint, in a fixed order; WeightsError if there are none.

    The index decides where there is one: a folder may hold the same tensors twice
    (``model*`` and ``consolidated*``), or shards left over from an earlier save.
    """
    root = Path(path)
    if root.is_file():
        return (root,)
    index = root / INDEX_NAME
    if index.is_file():
        try:
            names = sorted({str(name) for name in json.loads(index.read_bytes())["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{index} cannot be read ({error})") from error
        files = [root / name for name in names]
    elif (root / SINGLE_NAME).is_file():
        files = [root / SINGLE_NAME]
    else:
        files = sorted(root.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{path} has no .safetensors files on this machine")
    return tuple(files)
