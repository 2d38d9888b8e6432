"""The weights of a gang, for rollouts: gathered from all ranks, held where no rank's death reaches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rayguard.actors.methods import bare
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from ray import ObjectRef
    from ray.actor import ActorHandle

Trainer: TypeAlias = Any  # an object of the user's class


@dataclass(frozen=True, slots=True)
class GangWeights:
    """Says which weights are current: ``start_engine(weights=gang.weights())``. Can be sent to any actor.

    Called, it returns a reference to ``(version, reference)``, and to None where none were published yet.
    """

    holder: ActorHandle

    def __call__(self) -> object:
        """Return a reference to the version and the weights."""
        return self.holder.current.remote()


class WeightsHolder:
    """An actor that knows the last published weights; they belong to the gang's owner."""

    def __init__(self) -> None:
        self._current: tuple[str, ObjectRef] | None = None

    def take(self, version: str, weights: list[ObjectRef]) -> None:
        """Take up another version; ``weights`` is a list of one reference."""
        self._current = (version, weights[0])

    def current(self) -> tuple[str, ObjectRef] | None:
        """Return the version and the reference."""
        return self._current


def start_holder() -> ActorHandle:
    """Start the actor. It goes with its owner."""
    import ray  # noqa: PLC0415 - a gang's owner

    # Without restarts: begun anew it would say that there are no weights, and engines would serve their own.
    return ray.remote(num_cpus=0, max_restarts=0)(WeightsHolder).remote()


def weights_of(trainer: Trainer, rank: int) -> Mapping[str, object] | None:
    """Return all weights of a trainer, on the CPU, on rank 0; each rank calls this.

    By its own ``weights()``, where it has one that needs no argument; else those of its module.

    Raises:
        ConfigError: It has no module, or several, or ``weights()`` returned something else.
    """
    if callable(getattr(type(trainer), "weights", None)):
        found = bare(trainer, "weights")()
    else:
        from torch.distributed.checkpoint.state_dict import (  # noqa: PLC0415 - 0.3 s
            StateDictOptions,
            get_model_state_dict,
        )

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        found = get_model_state_dict(_module(trainer), options=options)
    if rank:
        return None
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(
            f"{type(trainer).__name__}.weights() must return a mapping of names to tensors on rank 0, got "
            f"{type(found).__name__}"
        )
    return found


def _module(trainer: Trainer) -> torch.nn.Module:
    import torch  # noqa: PLC0415 - loaded by now

    modules = {name: one for name, one in vars(trainer).items() if isinstance(one, torch.nn.Module)}
    if "model" in modules:
        return modules["model"]
    if len(modules) == 1:
        return next(iter(modules.values()))
    names = ", ".join(modules) or "none"
    raise ConfigError(
        f"which weights rollouts need cannot be told: {type(trainer).__name__} has these modules: {names}. "
        "Give it weights(self), which returns a mapping of names to tensors; each rank calls it"
    )
