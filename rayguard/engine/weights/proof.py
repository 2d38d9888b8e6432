"""What an engine proved to hold, and a doubt about it: values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.engine.weights.canary import Canary
    from rayguard.engine.weights.layout import Layout
    from rayguard.engine.weights.version import WeightReceipt


@dataclass(frozen=True, slots=True)
class Proof:
    """What an engine has proved to hold; empty: only what it was built with.

    ``canary`` is what it answered with it, None where it was not asked; others may differ from it by
    ``tolerance`` nats. ``layout``: the tensors that it was sent by an earlier life of its actor.
    """

    version: str = ""
    digest: str = ""
    canary: Canary | None = field(default=None, compare=False)
    tolerance: float = field(default=0.0, compare=False)
    layout: Layout = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Other engines answer otherwise with the weights of this ``digest``.

    ``answer`` is what most of them say; None where as many say one thing as another.
    """

    digest: str
    answer: Canary | None = None


def held_by(receipts: Sequence[WeightReceipt]) -> Proof | None:
    """Return what all workers of an engine say to hold; None where they do not know, or differ."""
    held = {(one.version, one.digest) for one in receipts}
    version, digest = held.pop() if len(held) == 1 else ("", "")
    return Proof(version, digest, layout=receipts[0].layout) if version else None
