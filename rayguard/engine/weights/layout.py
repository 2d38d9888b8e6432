"""Whether weights fit an engine, by the names, dtypes and shapes of their tensors alone. Pure.

What the tensors hold is checked in ``version.check``; that a model takes them is shown by its worker.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Layout = Mapping[str, tuple[str, tuple[int, ...]]]  # tensor name -> dtype, shape

_TOLD = 3
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})  # a model converts one into the other
# Tied heads and tables that models compute themselves: some checkpoints have them, and models pass them over.
_OPTIONAL = re.compile(r"(^|\.)lm_head\.weight$|\.inv_freq$|\.attn\.(masked_)?bias$")


def misfit(sent: Layout, known: Layout, *, complete: bool = True) -> str:
    """Say which tensors differ from those that an engine took before; an empty text where none does.

    A module of several tensors that is missing as a whole is left to the engine to judge: a checkpoint may
    have a draft head or a vision tower that a trainer does not send. With ``complete`` False only tensors
    that both have are compared.
    """
    found = list(_differences(sent, known, complete=complete))
    if not found:
        return ""
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    return f"{'; '.join(islice(found, _TOLD))}{more} ({len(found)} of {len(known)} tensors)"


def _differences(sent: Layout, known: Layout, *, complete: bool) -> Iterator[str]:
    for name, (dtype, shape) in sent.items():
        if name not in known:
            if complete and not _OPTIONAL.search(name):
                yield f"tensor {name!r} is foreign"
            continue
        old_dtype, old_shape = known[name]
        if shape != old_shape or _class(dtype) != _class(old_dtype):
            yield f"tensor {name!r} is {dtype}{list(shape)} and not {old_dtype}{list(old_shape)}"
    if not complete:
        return
    there = {module for name in sent for module in _modules(name)}
    sizes = Counter(module for name in known for module in _modules(name))
    for name in sorted(known.keys() - sent.keys()):
        whole = any(module not in there and sizes[module] > 1 for module in _modules(name))
        if not whole and not _OPTIONAL.search(name):
            yield f"tensor {name!r} is missing"


def _modules(name: str) -> set[str]:
    """Return the modules that may be missing as a whole: the one at the top, and the numbered layer."""
    numbered = re.match(r".*?\.\d+(?=\.)", name)
    return {name.partition(".")[0], *([numbered.group()] if numbered else ())}


def _class(dtype: str) -> str:
    return "float" if dtype in _FLOATS else dtype
