"""Where guarded calls begin and end, for those who act between calls. The wrappers look here; it is one name.

Imports nothing: the wrappers are pickled by value and find it in every process. Who stands here is
``rayguard.actors.memory``.
"""

from __future__ import annotations

from typing import Protocol


class Boundary(Protocol):
    """Told of each guarded call of this process. Neither may raise."""

    def begun(self) -> None:
        """A call begins."""

    def ended(self, instance: object, name: str) -> None:
        """A call has ended, well or not; its answer is not delivered yet."""


watch: Boundary | None = None
