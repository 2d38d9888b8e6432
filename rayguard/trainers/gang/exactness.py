"""What would make a gang go on with other losses than without the fault, in their last bits."""

from __future__ import annotations

import sys

from rayguard.errors import ConfigError


def refuse_inexact(trainer: object) -> None:
    """Refuse a trainer whose replayed step would differ.

    Raises:
        ConfigError: It has a plain DDP module. That moves gradients between its buffers after the first
            backward of each new module, and on three ranks and more their place decides the order of sums.
    """
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is None:
        return
    for name, value in vars(trainer).items():
        plain = isinstance(value, parallel.DistributedDataParallel) and not value.find_unused_parameters
        if plain or getattr(value, "static_graph", False) is True:
            raise ConfigError(
                f"{type(trainer).__name__}.{name} is a DistributedDataParallel that rebuilds its buckets "
                "after the first backward: after a recovery its losses would differ in their last bits. Give "
                "it find_unused_parameters=True, which keeps the buckets, or allow the difference: "
                "GangPolicy(exact=False)"
            )
