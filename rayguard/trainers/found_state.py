"""The state of a trainer, found by itself: what must come back so that the next step is the same to the bit.

Of an object's attributes: whatever has ``state_dict`` and ``load_state_dict`` (modules, optimizers,
schedulers, scalers, stateful loaders), with the gradients and the modes of modules; generators of random
numbers; tensors, arrays and plain values. Beside them the process's own generators (Python, NumPy, torch,
each GPU). Everything else is made anew by ``__init__``, and named once. An iterator is refused: its position
would be lost silently.
"""

from __future__ import annotations

import io
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from rayguard.errors import ConfigError, StateLostError
from rayguard.trainers.shards import has_distributed

_PLAIN = (int, float, str, bytes, bool, complex, type(None))
_MOST_VALUES = 100_000  # in one attribute; more is data, not state
_MADE_ANEW = (type, io.IOBase)
_OF_SETUP = ("rayguard.", "torch.distributed.")  # a rank's group, a mesh: of this life alone


def found_state(
    owner: object, *, without: tuple[str, ...] = (), gradients: bool = True, sharded: bool = False
) -> dict[str, Any]:
    """Return the state of ``owner``, for ``restore_state``. Tensors are not copied: write them at once.

    ``sharded``: whoever asks keeps the parts of all ranks, so that tensors may be spread over them.

    Raises:
        ConfigError: An attribute holds an iterator, a sharded tensor, or more values than a state has.
    """
    parts: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, value in vars(owner).items():
        if name in without or name.startswith("_rayguard"):
            continue
        if _has_state(value):
            parts[name] = _of_part(name, value, gradients=gradients, sharded=sharded)
        elif (generator := _of_generator(value)) is not None:
            values[name] = ("generator", generator)
        elif _is_value(name, value):
            values[name] = ("value", value)
        elif isinstance(value, Iterator) and not isinstance(value, _MADE_ANEW):
            raise ConfigError(
                f"{type(owner).__name__}.{name} is an iterator ({type(value).__name__}): its position cannot "
                "be kept, and a new one would begin again. Keep the number of the step and make data of it, "
                "use torchdata's StatefulDataLoader, or say that it is no state: state_excludes = "
                f"({name!r},)"
            )
    return {"parts": parts, "values": values, "random": random_state()}


def not_kept(owner: object, *, without: tuple[str, ...] = ()) -> list[str]:
    """Return the attributes that the next life makes anew, without classes, functions and files."""
    return [
        name
        for name, value in vars(owner).items()
        if name not in without
        and not name.startswith("_")
        and not isinstance(value, (*_MADE_ANEW, Iterator))
        and not type(value).__module__.startswith(_OF_SETUP)
        and not callable(value)
        and not _has_state(value)
        and _of_generator(value) is None
        and not _is_value(name, value)
    ]


def restore_state(owner: object, state: Mapping[str, Any]) -> None:
    """Give ``owner``, newly made, the state of another life.

    Raises:
        StateLostError: Something in it was not made by ``__init__``.
        Exception: What an attribute's ``load_state_dict`` raised.
    """
    mine = vars(owner)
    for name, kept in state["parts"].items():
        if name not in mine or not _has_state(mine[name]):
            raise StateLostError(
                f"{type(owner).__name__} has no {name} after its __init__, and its state has: make it there"
            )
        _to_part(mine[name], kept)
    for name, (kind, value) in state["values"].items():
        if kind == "value":
            setattr(owner, name, _like(value, mine.get(name)))
        elif name in mine:
            _to_generator(mine[name], value)
        else:
            raise StateLostError(f"{type(owner).__name__} has no {name} after its __init__: make it there")
    _set_random(state["random"])  # last: making and loading draw numbers


def _has_state(value: object) -> bool:
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def _of_part(name: str, part: Any, *, gradients: bool, sharded: bool) -> dict[str, Any]:
    state: Any = part.state_dict()
    if not sharded and has_distributed(state):
        raise ConfigError(
            f"{name} is sharded: its state is spread over ranks, and is not kept by one of them; "
            "rayguard.TrainerGang keeps that of all"
        )
    kept: dict[str, Any] = {"state": state}
    if hasattr(part, "named_parameters"):
        kept["eval"] = [inner for inner, module in part.named_modules() if not module.training]
        if gradients:
            found = {inner: one.grad for inner, one in part.named_parameters() if one.grad is not None}
            kept["gradients"] = found
    return kept


def _to_part(part: Any, kept: Mapping[str, Any]) -> None:
    part.load_state_dict(kept["state"])
    if "eval" in kept:
        evaluating = set(kept["eval"])
        for name, module in part.named_modules():
            module.training = name not in evaluating
        for name, parameter in part.named_parameters():
            gradient = kept.get("gradients", {}).get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device).clone()


def _of_generator(value: Any) -> Any:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Generator):
        return value.get_state()
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return value.get_state()
    return value.getstate() if isinstance(value, random.Random) else None


def _to_generator(generator: Any, state: Any) -> None:
    if hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif hasattr(generator, "setstate"):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _is_value(name: str, value: Any) -> bool:
    counted = [0]

    def plain(one: Any) -> bool:
        counted[0] += 1
        if counted[0] > _MOST_VALUES:
            raise ConfigError(
                f"{name} holds more than {_MOST_VALUES:,} values: if it is data and not state, say so by "
                f"state_excludes = ({name!r},)"
            )
        if type(one) in _PLAIN or _is_tensor(one):
            return True
        if type(one) in (list, tuple, set, frozenset, deque):
            return all(plain(inner) for inner in one)
        return isinstance(one, dict) and all(plain(key) and plain(inner) for key, inner in one.items())

    return plain(value)


def _is_tensor(value: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return not hasattr(value, "to_local")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype != object


def _like(value: Any, made: Any) -> Any:
    """Return ``value`` as the attribute that ``__init__`` made has it: the same tensor, on its device."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or not isinstance(made, torch.Tensor):
        return value
    if made.shape != value.shape or made.dtype != value.dtype:
        return value.to(made.device)
    with torch.no_grad():
        made.copy_(value)  # the same tensor: an optimizer may hold it
    return made


def random_state() -> dict[str, Any]:
    """Return the state of this process's own generators: Python's, NumPy's, torch's, each GPU's."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_random(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state:
            torch.cuda.set_rng_state_all(state["cuda"])
