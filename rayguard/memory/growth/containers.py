"""Containers of Python: which objects are such, how long they are, and what is newest in them.

By the methods of the built-in types: no code of a user's subclass runs. Another thread may work with them.
"""

from __future__ import annotations

import gc
import itertools
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

_KINDS = (list, dict, set, deque)
_EXACT = frozenset({*_KINDS, OrderedDict, defaultdict, Counter})
# They hold no dict that would not be found otherwise, and there are many of them
_BARREN = frozenset(
    {
        *(types.FunctionType, types.BuiltinFunctionType, types.GetSetDescriptorType, types.MethodType),
        *(
            types.MemberDescriptorType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            types.CodeType,
        ),
        *(types.ClassMethodDescriptorType, types.MethodWrapperType, types.GenericAlias, types.ModuleType),
        *(tuple, type, property, staticmethod, classmethod, weakref.ref, set, frozenset),
    }
)
_LENGTHS = frozenset({list.__len__, dict.__len__, set.__len__, deque.__len__, OrderedDict.__len__})
_MAXLEN: Any = deque.__dict__["maxlen"]
_IS_DICT = frozenset({dict}).__contains__
_NEWEST = 4  # items are weighed, the first of them only for what all share


def is_container(kind: type) -> bool:
    """Say whether it is a list, dict, set or deque, or a kind of these that does not count in its own way."""
    if kind in _EXACT:
        return True
    return issubclass(kind, _KINDS) and type.__getattribute__(kind, "__len__") in _LENGTHS


def length(one: Any) -> int:
    """Return how many items there are."""
    return len(one)


def newest(one: Any) -> list[object]:
    """Return the newest items, oldest of them first; any items of a set."""
    try:
        if isinstance(one, dict):
            return list(itertools.islice(reversed(dict.values(one)), _NEWEST))[::-1]
        if isinstance(one, list):
            return list(list.__getitem__(one, slice(-_NEWEST, None)))
        if isinstance(one, deque):
            return list(itertools.islice(deque.__reversed__(one), _NEWEST))[::-1]
        return list(itertools.islice(set.__iter__(one), _NEWEST))
    except RuntimeError:  # another thread works with it
        return []


def has_a_most(one: object) -> bool:
    """Say whether it cannot get longer than some length."""
    return issubclass(type(one), deque) and _MAXLEN.__get__(one) is not None


def unknown_dicts(part: list[object]) -> list[object]:
    """Return the dicts that ``part`` refers to and the collector does not track: of bytes and arrays."""
    holders = [one for one in part if type(one) not in _BARREN]
    if not holders:
        return []
    referents = gc.get_referents(*holders)
    dicts = itertools.compress(referents, map(_IS_DICT, map(type, referents)))
    return [one for one in dicts if not gc.is_tracked(one)]
