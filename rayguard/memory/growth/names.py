"""The way to an object, for people: ``trainer.CACHE``, ``Trainer.seen``, a closure, a thread's own variable.

A bounded walk up the garbage collector's graph, 20 ms a level with 200,000 objects. Keeps nothing and runs
no code of the user's.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import time
import types
from collections import deque
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from rayguard.memory.growth.weight import module_of, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

DEADLINE_S = 0.3
BOUNDED = "of at most"  # in the name of a cache
_LEVELS = 8
_MOST_FRAMES = 200
_OURS = str(Path(__file__).parent)
_LONGEST_KEY = 40
_OF_THREADS = frozenset({"weakref", "_thread"})  # modules of the keys in a thread-local's table of dicts
_SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_WRAPPER = type(lru_cache(maxsize=1)(lambda: None))


def way_to(target: object, *, deadline_s: float = DEADLINE_S, not_ours: Collection[int] = ()) -> str:
    """Return the shortest name for ``target``. ``not_ours`` are ids of the caller's own containers of it."""
    until = time.monotonic() + deadline_s
    trail = [target]
    visited = {id(target), id(trail), *not_ours}
    while len(trail) <= _LEVELS and time.monotonic() < until:
        parents = [one for one in gc.get_referrers(trail[-1]) if _counts(one, visited)]
        if not parents:
            return _running(trail)
        parent = min(parents, key=_rank)
        del parents
        root = _root(parent, trail)
        if root is not None:
            return root + _inside(trail, parent)
        visited.add(id(parent))
        trail.append(parent)
    return f"a {name_of(type(trail[-1]))}{_inside(trail)}"


def _running(trail: list[object]) -> str:
    """Name what no object holds: a variable of running code, which the collector does not know."""
    for at, held in enumerate(trail):
        name = _variable(held)
        if name is not None:
            return name + _inside(trail[: at + 1])
    return f"a {name_of(type(trail[-1]))} that no object holds{_inside(trail)}"


def _counts(one: object, visited: set[int]) -> bool:
    if type(one) is types.FrameType:
        return not one.f_code.co_filename.startswith(_OURS)
    return id(one) not in visited


def _rank(one: Any) -> int:
    """Prefer what has a name: a module's or an object's variable before a container of others."""
    kind = type(one)
    if kind is dict:
        return 0 if _is_module(one) else 3
    if kind is types.FrameType:
        return 6
    if kind in (types.CellType, types.FunctionType, *_SUSPENDED):
        return 4
    if kind in (list, tuple, set, frozenset) or kind.__module__ == "collections":
        return 5
    return 2 if issubclass(kind, type) else 1


def _root(parent: Any, trail: list[object]) -> str | None:
    """Return a name where the way can end; None where it must go on upwards."""
    kind, held = type(parent), trail[-1]
    if kind is dict:
        return f"{_text(dict.get(parent, '__name__'))}.{_key(parent, held)}" if _is_module(parent) else None
    if kind is types.FunctionType:
        return _of_function(parent, trail)
    if kind in (types.FrameType, *_SUSPENDED):
        suspended = kind is not types.FrameType
        return f"a variable of {f'the suspended {parent.__qualname__}' if suspended else _line(parent)}"
    if kind is _WRAPPER:
        most = _WRAPPER.cache_info(parent).maxsize
        bound = "" if most is None else f" ({BOUNDED} {most})"
        return f"the cache{bound} of {_named(inspect.getattr_static(parent, '__wrapped__', None))}"
    if issubclass(kind, type):
        return name_of(parent) + ("" if _owns(parent, held) else f".{_key(parent.__dict__, held)}")
    return _of_instance(parent, held)


def _of_function(function: types.FunctionType, trail: list[object]) -> str:
    """Name the variable of a closure, the default value or the attribute of ``function``."""
    name, held = _named(function), trail[-1]
    closure = function.__closure__
    if closure is not None and held is closure and len(trail) > 1:
        cells = zip(function.__code__.co_freevars, closure, strict=False)
        variable = next((variable for variable, cell in cells if cell is trail[-2]), "?")
        return f"{variable} in the closure of {name}"
    if held is function.__defaults__ or held is function.__kwdefaults__:
        return f"a default value of {name}"
    return name


def _of_instance(parent: object, held: object) -> str | None:
    kind = type(parent)
    if _is_container(kind) or _top(kind) in sys.stdlib_module_names - {"__main__"}:
        return None
    attribute = "" if _owns(parent, held) else attribute_of(parent, held)
    return None if attribute is None else f"{kind.__qualname__}{'.' if attribute else ''}{attribute}"


def _top(kind: type) -> str:
    return module_of(kind).partition(".")[0]


def _is_container(kind: type) -> bool:
    return kind is types.CellType or (
        issubclass(kind, (list, tuple, set, frozenset, dict, deque))
        and _top(kind) in ("builtins", "collections")
    )


def _owns(one: object, variables: object) -> bool:
    """Say whether ``variables`` are the attributes of ``one``."""
    if type(variables) is not dict:
        return False
    if issubclass(type(one), type):
        return any(variables is kind for kind in gc.get_referents(one))
    try:
        return object.__getattribute__(one, "__dict__") is variables
    except AttributeError:
        return False


def attribute_of(one: object, held: object) -> str | None:
    """Return the name of the attribute by which ``one`` holds ``held``, None where it has none such."""
    try:
        variables = object.__getattribute__(one, "__dict__")
    except AttributeError:
        variables = None
    if type(variables) is dict and (key := _key(variables, held)) != "?":
        return key
    for kind in type(one).__mro__:
        for name, member in list(kind.__dict__.items()):
            if type(member) is types.MemberDescriptorType and _slot(member, one) is held:
                return name
    return None


def _slot(member: types.MemberDescriptorType, one: object) -> object:
    try:
        return member.__get__(one)
    except (AttributeError, TypeError):
        return None


def _inside(trail: list[object], root: object = None) -> str:
    """Return how the first of ``trail`` is reached from the last, which ``root`` holds by a name."""
    found = ""
    for at in range(1, len(trail)):
        above = trail[at + 1] if at + 1 < len(trail) else root
        found = _step(trail[at], trail[at - 1], above) + found
    return found


def _step(parent: Any, held: object, above: object) -> str:
    kind = type(parent)
    if kind is types.CellType or kind is threading.local:
        return ""
    if issubclass(kind, dict):
        return _step_of_dict(parent, held, above)
    if kind is tuple and types.FunctionType is type(above):
        return ""  # its closure, its default values
    if _is_container(kind):
        return "[...]"
    attribute = None if _owns(parent, held) else attribute_of(parent, held)
    return f".{attribute}" if attribute else ""


def _step_of_dict(parent: dict[object, object], held: object, above: object) -> str:
    key = next((key for key, value in list(dict.items(parent)) if value is held), None)
    if type(above) is threading.local or _top(type(key)) in _OF_THREADS:
        return ""  # a thread-local keeps one dict for each thread, under a key that says nothing
    if type(key) is str and _is_attributes(parent, above):
        return f".{key[:_LONGEST_KEY]}"
    return f"[{key!r}]"[:_LONGEST_KEY] if type(key) in (str, int) else "[...]"


def _is_attributes(variables: dict[object, object], above: object) -> bool:
    if type(above) is dict:  # the thread's own variables, in the thread-local's table of them
        return any(value is variables and _top(type(key)) in _OF_THREADS for key, value in dict.items(above))
    return not _is_container(type(above)) and _owns(above, variables)


def _key(variables: Mapping[str, object], held: object) -> str:
    for key, value in list(variables.items()):
        if value is held and type(key) is str:
            return key[:_LONGEST_KEY]
    return "?"


def _is_module(one: dict[object, object]) -> bool:
    return "__builtins__" in one and "__name__" in one


def _text(name: object) -> str:
    return name if type(name) is str else "?"


def _named(function: object) -> str:
    if type(function) is not types.FunctionType:
        return "a function"
    return f"{_text(function.__module__)}.{function.__qualname__}"


def _line(frame: types.FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name} ({PurePath(code.co_filename).name}:{frame.f_lineno})"


def _variable(held: object) -> str | None:
    """Name the running function that has ``held`` in a variable, which the collector does not know."""
    looked_at = 0
    tops = sys._current_frames()  # noqa: SLF001 - the only way to other threads
    # A variable for our own frame would be a cycle, which keeps what is in our variables
    tops[threading.get_ident()] = sys._getframe(1)  # noqa: SLF001
    for top in tops.values():
        frame: types.FrameType | None = top
        while frame is not None and looked_at < _MOST_FRAMES:
            looked_at += 1
            if not frame.f_code.co_filename.startswith(_OURS) and (name := _in_frame(frame, held)):
                return f"{name} in {_line(frame)}"
            frame = frame.f_back
    return None


def _in_frame(frame: types.FrameType, held: object) -> str | None:
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED or frame.f_trace is not None:
        return None  # the body of a module: its variables are a dict that the collector shows
    variables = frame.f_locals
    name = next((name for name, value in list(variables.items()) if value is held), None)
    # Python before 3.13 leaves this copy in the frame, where it would keep alive what it holds; left alone
    # where somebody else has it. The frame, our name and getrefcount's argument hold it.
    if type(variables) is dict and sys.getrefcount(variables) <= 3:  # noqa: PLR2004
        variables.clear()
    return name
