"""Bytes as they lie on disk, to UTF-8: gzip and UTF-16, in bounded pieces, as far as they can be read."""

from __future__ import annotations

import codecs
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SNIFFED_BYTES = 4_096
GZIP = b"\x1f\x8b"

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


def is_text(head: bytes) -> bool:
    """Say whether a file that begins so may be a log."""
    head = head[:SNIFFED_BYTES]
    if head.startswith(GZIP) or encoding_of(head) is not None:
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


def inflated(packed: Iterable[bytes], name: str, notes: list[str]) -> Iterator[bytes]:
    """Yield what is compressed in ``packed``, in pieces of bounded size, as far as it goes."""
    inflate = zlib.decompressobj(wbits=31)
    for block in packed:
        rest = block
        while rest:
            if inflate.eof:  # another member follows
                inflate = zlib.decompressobj(wbits=31)
            try:
                yield inflate.decompress(rest, _PIECE_BYTES)
            except zlib.error:
                notes.append(f"{name}: the compressed data is damaged; what stands before is read")
                return
            rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    if not inflate.eof:
        yield inflate.flush()
        notes.append(f"{name}: the compressed data ends half-way; what is there is read")
