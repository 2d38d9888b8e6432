"""Bytes as they lie on disk, to UTF-8: compressed or in UTF-16, in bounded pieces, as far as they go."""

from __future__ import annotations

import bz2
import codecs
import lzma
import zlib
from itertools import chain
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SNIFFED_BYTES = 4_096

_PIECE_BYTES = 1 << 20
_MIN_SAMPLE = 8
_MANY, _FEW = 0.4, 0.05  # of every second byte
_CONTROL = bytes((*range(9), *range(14, 27), *range(28, 32)))  # what no log has much of
_MUCH = 0.02
_BOMS = (  # the longer first: UTF-32's begins as UTF-16's
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class _Unpacker(Protocol):
    """What ``bz2`` and ``lzma`` have."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...


class _Gzip:
    """And ``zlib`` in their form."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)
        self._full = False

    def decompress(self, data: bytes, max_length: int = 0) -> bytes:
        piece = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        self._full = len(piece) == max_length
        return piece

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._full

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data


_PACKED: dict[bytes, Callable[[], _Unpacker]] = {
    b"\x1f\x8b": _Gzip,
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lzma.LZMADecompressor,
}
# What a person must unpack: several files in one, or a compression that Python has no library for.
_ARCHIVES = (
    (0, b"PK\x03\x04", "a zip archive", "unzip it and name the folder"),
    (257, b"ustar", "a tar archive", "unpack it and name the folder, so that its files can be told apart"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it and name the folder"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc FILE | rayguard diagnose reads it"),
    (0, b"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -dc FILE | rayguard diagnose reads it"),
)


def is_packed(head: bytes) -> bool:
    """Say whether a file that begins so is compressed in a way that ``inflated`` reads."""
    return head.startswith(tuple(_PACKED))


def archive_form(head: bytes) -> str:
    """Return what a file that begins so is, and how to read it, where it is no plain log; else nothing."""
    for at, mark, what, cure in _ARCHIVES:
        if head[at : at + len(mark)] == mark:
            return f"it is {what}: {cure}"
    return ""


def is_text(head: bytes) -> bool:
    """Say whether a file that begins so may be a log."""
    head = head[:SNIFFED_BYTES]
    if is_packed(head) or encoding_of(head) is not None:
        return True
    head = head.lstrip(b"\0")  # a hole: it was cut while being written
    return len(head) - len(head.translate(None, _CONTROL)) <= _MUCH * len(head)


def encoding_of(head: bytes) -> str | None:
    """Return the encoding where it is not plain UTF-8: by its mark, or by the zero bytes of UTF-16."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    sample = head[:SNIFFED_BYTES]
    half = len(sample) // 2
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if half < _MIN_SAMPLE or max(even, odd) < _MANY * half or min(even, odd) > _FEW * half:
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def recoded(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield ``pieces`` in UTF-8; what is no text becomes a question mark."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")  # noqa: FBT003 - takes no keyword in 3.10


def inflated(packed: Iterator[bytes], name: str, notes: list[str]) -> Iterator[bytes]:
    """Yield what ``packed`` holds (see ``is_packed``), in pieces of bounded size, as far as it goes."""
    first = next(packed)
    form = next(form for mark, form in _PACKED.items() if first.startswith(mark))
    inflate = form()
    for block in chain([first], packed):
        rest = block
        while rest.strip(b"\0" if inflate.eof else b""):  # after the last one tapes hold zeros
            if inflate.eof:  # another member follows
                inflate = form()
            try:
                yield inflate.decompress(rest, _PIECE_BYTES)
                while not (inflate.needs_input or inflate.eof):
                    yield inflate.decompress(b"", _PIECE_BYTES)
            except (zlib.error, lzma.LZMAError, OSError):
                notes.append(f"{name}: the compressed data is damaged; what stands before is read")
                return
            rest = inflate.unused_data if inflate.eof else b""
    if not inflate.eof:
        notes.append(f"{name}: the compressed data ends half-way; what is there is read")
