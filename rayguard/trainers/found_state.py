"""The state of a trainer, found by itself: what must come back so that the next step is the same to the bit.

Of what an object holds (``held_parts``): whatever has ``state_dict`` and ``load_state_dict`` (modules,
optimizers, schedulers, scalers, stateful loaders), with the gradients and the modes of modules; generators of
random numbers; tensors, arrays and plain values (``plain_values``). Beside them the process's own generators
(Python, NumPy, torch, each GPU). Everything else is made anew by ``__init__``, and named once. An iterator is
refused: its position would be lost silently.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError, StateLostError
from rayguard.trainers.held_parts import ITSELF, HeldPart, Part, has_state, held_by, is_generator
from rayguard.trainers.plain_values import (
    MOST_VALUES,
    NotPlainError,
    PartTensors,
    kept_value,
    put_back,
    tensors_in,
)
from rayguard.trainers.shards import State, has_distributed

if TYPE_CHECKING:
    from collections.abc import Callable

_MADE_ANEW = (type, io.IOBase)
_OF_SETUP = ("rayguard.", "torch.distributed.")  # a rank's group, a mesh: of this life alone


def found_state(
    owner: object,
    *,
    without: tuple[str, ...] = (),
    gradients: bool = True,
    sharded: bool = False,
    grown: Callable[[str], None] | None = None,
) -> dict[str, State]:
    """Return the state of ``owner``, for ``restore_state``. Tensors are not copied: write them at once.

    ``sharded``: whoever asks keeps the parts of all ranks, so that tensors may be spread over them.
    ``grown`` is told of an attribute with more values than a state has, in place of an error.

    Raises:
        ConfigError: An attribute holds an iterator, a sharded tensor, or more values than a state has.
    """
    sizes: dict[str, int] = {}
    held = list(held_by(owner, without=without, sizes=sizes))
    tensors = PartTensors({one.path: one.value for one in held if has_state(one.value)})
    parts, values, raw = dict[str, State](), dict[str, State](), dict[str, State]()
    for one in held:
        if has_state(one.value):
            parts[one.path] = _of_part(one.path, one.value, gradients=gradients, sharded=sharded)
        elif is_generator(one.value):
            values[one.path] = ("generator", _drawn(one.value))
        elif isinstance(one.value, Iterator) and not isinstance(one.value, _MADE_ANEW):
            raise ConfigError(
                f"{type(owner).__name__}.{one.path} is an iterator ({type(one.value).__name__}): its "
                "position cannot be kept, and a new one would begin again. Keep the number of the step and "
                "make data of it, use torchdata's StatefulDataLoader, or say that it is no state: "
                f"state_excludes = ({one.path.partition('[')[0]!r},)"
            )
        elif (value := _of_value(one.path, one.value, tensors, grown)) is not None:
            values[one.path] = value
            grads = [tensor.grad for tensor in tensors_in(value[1])] if gradients else []
            if any(grad is not None for grad in grads):
                raw[one.path] = grads
    return {"parts": parts, "values": values, "sizes": sizes, "gradients": raw, "random": random_state()}


def not_kept(owner: object, *, without: tuple[str, ...] = ()) -> list[str]:
    """Return what the next life makes anew, without classes, functions and files."""
    held = list(held_by(owner, without=without))
    tensors = PartTensors({one.path: one.value for one in held if has_state(one.value)})
    return [
        one.path
        for one in held
        if not one.path.startswith("_")
        and not has_state(one.value)
        and not is_generator(one.value)
        and not isinstance(one.value, (*_MADE_ANEW, Iterator))
        and not type(one.value).__module__.startswith(_OF_SETUP)
        and not callable(one.value)
        and _of_value(one.path, one.value, tensors, lambda _: None) is None
    ]


def restore_state(owner: object, state: Mapping[str, State]) -> None:
    """Give ``owner``, newly made, the state of another life.

    Raises:
        StateLostError: Something in it was not made by ``__init__``.
        Exception: What an attribute's ``load_state_dict`` raised.
    """
    name, sizes = type(owner).__name__, dict[str, int]()
    mine = {one.path: one for one in held_by(owner, sizes=sizes)}
    for path, size in state.get("sizes", {}).items():
        if sizes.get(path) != size:
            raise StateLostError(
                f"{name}.{path} holds {sizes.get(path, 0)} parts after its __init__, and in its state "
                f"{size}: make them there"
            )
    for path, kept in state["parts"].items():
        if path not in mine or not has_state(mine[path].value):
            raise StateLostError(
                f"{name} has no {path} after its __init__, and its state has: make it there"
                if path != ITSELF
                else f"{name} is no torch module any more"
            )
        _to_part(mine[path].value, kept)
    _restore_values(owner, state, mine)
    _set_random(state["random"])  # last: making and loading draw numbers


def _restore_values(owner: object, state: Mapping[str, State], mine: Mapping[str, HeldPart]) -> None:
    tensors = PartTensors({path: mine[path].value for path in state["parts"]})
    seen: dict[int, State] = {}
    for path, (kind, value) in state["values"].items():
        place = mine.get(path) or HeldPart(path, None, owner, path)  # made by a later call
        if kind == "value":
            place.put(put_back(value, place.value, tensors, seen))
        elif path in mine:
            _draw(place.value, value)
        else:
            raise StateLostError(f"{type(owner).__name__} has no {path} after its __init__: make it there")
    for path, grads in state.get("gradients", {}).items():
        for tensor, grad in zip(tensors_in(state["values"][path][1]), grads, strict=True):
            now = seen[id(tensor)]
            now.grad = None if grad is None else grad.to(now.device).clone()


def _of_value(
    path: str, value: object, tensors: PartTensors, grown: Callable[[str], None] | None
) -> tuple[str, State] | None:
    def too_many() -> None:
        if grown is not None:
            grown(path)
            return
        raise ConfigError(
            f"{path} holds more than {MOST_VALUES:,} values: if it is data and not state, say so by "
            f"state_excludes = ({path.partition('[')[0]!r},)"
        )

    try:
        return "value", kept_value(value, tensors, too_many)
    except NotPlainError:
        return None


def _of_part(name: str, part: Part, *, gradients: bool, sharded: bool) -> dict[str, State]:
    state: State = part.state_dict()
    if not sharded and has_distributed(state):
        raise ConfigError(
            f"{name} is sharded: its state is spread over ranks, and is not kept by one of them; "
            "rayguard.TrainerGang keeps that of all"
        )
    kept: dict[str, State] = {"state": state}
    if hasattr(part, "named_parameters"):
        kept["eval"] = [inner for inner, module in part.named_modules() if not module.training]
        kept["frozen"] = [inner for inner, one in part.named_parameters() if not one.requires_grad]
        if gradients:
            found = {inner: one.grad for inner, one in part.named_parameters() if one.grad is not None}
            kept["gradients"] = found
    return kept


def _to_part(part: Part, kept: Mapping[str, State]) -> None:
    part.load_state_dict(kept["state"])
    if "eval" in kept:
        evaluating, frozen = set(kept["eval"]), set(kept["frozen"])
        for name, module in part.named_modules():
            module.training = name not in evaluating
        for name, parameter in part.named_parameters():
            if parameter.requires_grad == (name in frozen):
                parameter.requires_grad_(name not in frozen)
            gradient = kept.get("gradients", {}).get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device).clone()


def _drawn(generator: Part) -> State:
    """Return how far a generator has come."""
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.getstate() if hasattr(generator, "getstate") else generator.get_state()


def _draw(generator: Part, state: State) -> None:
    """Have a generator go on from there."""
    if hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif hasattr(generator, "setstate"):
        generator.setstate(state)
    else:
        generator.set_state(state)


def random_state() -> dict[str, State]:
    """Return the state of this process's own generators: Python's, NumPy's, torch's, each GPU's."""
    state: dict[str, State] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_random(state: Mapping[str, State]) -> None:
    random.setstate(state["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state:
            torch.cuda.set_rng_state_all(state["cuda"])
