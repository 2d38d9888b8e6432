"""Rows of a batch, whatever it is made of: tensors, arrays, lists, or a dictionary of these by name.

Works by what each value can do, so nothing is imported that the batch did not bring.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rayguard.errors import ConfigError


def count_rows(batch: Any) -> int:
    """Return how many rows there are.

    Raises:
        ConfigError: It has no rows, or columns of different lengths.
    """
    if isinstance(batch, Mapping):
        lengths = {name: count_rows(value) for name, value in batch.items()}
        if not lengths:
            raise ConfigError("the batch is an empty dictionary: it has no rows")
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ConfigError(f"the columns of the batch have different numbers of rows ({said})")
        return next(iter(lengths.values()))
    if isinstance(batch, (str, bytes)) or not hasattr(batch, "__len__") or not hasattr(batch, "__getitem__"):
        raise ConfigError(
            "a batch is a tensor, an array, a list, or a dictionary of these, by rows; "
            f"got {type(batch).__name__}"
        )
    if getattr(batch, "ndim", 1) == 0:
        raise ConfigError("a batch has rows; got a tensor or an array without dimensions")
    return len(batch)


def take(batch: Any, indices: Sequence[int]) -> Any:
    """Return the rows at ``indices`` in this order, as the same kind of batch; a row may come twice."""
    if isinstance(batch, Mapping):
        return {name: take(value, indices) for name, value in batch.items()}
    if hasattr(batch, "dtype"):
        return batch[list(indices)]
    found = [batch[index] for index in indices]
    return tuple(found) if isinstance(batch, tuple) else found


def join(batches: Sequence[Any]) -> Any:
    """Return ``batches`` one after the other, as one of the same kind.

    Raises:
        ConfigError: They are of different kinds, or have different columns.
    """
    first = batches[0]
    if any(type(one) is not type(first) for one in batches):
        raise ConfigError(f"cannot join {', '.join(sorted({type(one).__name__ for one in batches}))}")
    if isinstance(first, Mapping):
        if any(one.keys() != first.keys() for one in batches):
            raise ConfigError("cannot join batches with different columns")
        return {name: join([one[name] for one in batches]) for name in first}
    if hasattr(first, "dtype"):
        module = sys.modules[type(first).__module__.partition(".")[0]]  # whoever made it has loaded it
        return module.cat(list(batches)) if hasattr(module, "cat") else module.concatenate(batches)
    joined = [row for one in batches for row in one]
    return tuple(joined) if isinstance(first, tuple) else joined


def without_counting(batch: Any, names: Sequence[str], first: int) -> Any:
    """Return ``batch`` with zero in the masks called ``names``, from row ``first`` on."""
    if not isinstance(batch, Mapping):
        return batch
    return {name: _zero_from(value, first) if name in names else value for name, value in batch.items()}


def total(mask: Any) -> float:
    """Return the sum of a mask of any shape."""
    if hasattr(mask, "sum"):
        return float(mask.sum())
    return sum(
        total(one) if isinstance(one, (list, tuple)) or hasattr(one, "sum") else float(one) for one in mask
    )


def _zero_from(mask: Any, first: int) -> Any:
    if hasattr(mask, "dtype"):
        mask[first:] = 0  # a copy already: of ``take``
        return mask
    zeroed = [*mask[:first], *(_zero(row) for row in mask[first:])]
    return tuple(zeroed) if isinstance(mask, tuple) else zeroed


def _zero(row: Any) -> Any:
    if isinstance(row, (list, tuple)):
        zeros = [_zero(one) for one in row]
        return tuple(zeros) if isinstance(row, tuple) else zeros
    return row * 0  # of its own kind: a number, a tensor, an array
