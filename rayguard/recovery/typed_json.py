"""JSON that becomes a dataclass of ours only where every value has its type: what others may have written.

As pydantic would do it, whose import takes longer than the reading of a whole journal.
"""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_HALF = re.compile("[\ud800-\udfff]")  # half a character: nobody can print it
_PLAIN: Mapping[type, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (int, float)}


def read_as(of_type: type[T], text: bytes) -> T:
    """Return the value that ``text`` is; keys that ``of_type`` does not know are left out.

    Raises:
        ValueError: It is no JSON, or a value is missing or of another type.
    """
    try:
        found: T = _made(of_type, json.loads(text, parse_constant=_refused))
    except (RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return found


def _refused(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _made(of_type: Any, value: object) -> Any:
    origin, inner = get_origin(of_type), get_args(of_type)
    if of_type in _PLAIN:
        return _plain(of_type, value)
    if origin in (Union, types.UnionType):
        return None if value is None and type(None) in inner else _made(_but_none(inner), value)
    if origin is tuple and isinstance(value, list):
        return tuple(_made(inner[0], one) for one in value)
    if isinstance(value, dict):
        if is_dataclass(of_type):
            return _dataclass(of_type, value)
        if origin in (dict, Mapping):
            return {_made(inner[0], key): _made(inner[1], one) for key, one in value.items()}
    if isinstance(of_type, type) and issubclass(of_type, Enum):
        return of_type(value)
    raise ValueError(f"{type(value).__name__} is no {of_type}")


def _plain(of_type: type, value: object) -> object:
    if not isinstance(value, _PLAIN[of_type]) or (isinstance(value, bool) and of_type is not bool):
        raise ValueError(f"{type(value).__name__} is no {of_type.__name__}")
    if isinstance(value, str) and _HALF.search(value):
        raise ValueError("half a character")
    return float(value) if of_type is float else value  # type: ignore[arg-type]


def _but_none(inner: tuple[Any, ...]) -> Any:
    return next(one for one in inner if one is not type(None))


def _dataclass(of_type: Any, value: dict[str, object]) -> object:
    hints = _hints(of_type)
    given = {
        one.name: _made(hints[one.name], value[one.name]) for one in fields(of_type) if one.name in value
    }
    must = [one.name for one in fields(of_type) if one.default is one.default_factory is MISSING]
    missing = [name for name in must if name not in given]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    return of_type(**given)


@functools.lru_cache(maxsize=16)
def _hints(of_type: type) -> dict[str, Any]:
    return get_type_hints(of_type)
