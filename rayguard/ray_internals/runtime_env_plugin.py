"""The class by which Ray knows a runtime-env plugin. The agent of a node that cannot load one does not start.

So there is always a class to load: where Ray has moved its own, one that does nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar, cast

from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_plugin = Capability(
    "plugin",
    "the node's workers run without rayguard, unless their code guards itself",
    {"base": "ray._private.runtime_env.plugin:RuntimeEnvPlugin"},
)
_BASE = "RuntimeEnvPlugin"


class _Idle:
    """Does nothing, for a Ray that is not known."""

    priority = 90

    @staticmethod
    def validate(runtime_env_dict: object) -> None:
        """Refuse nothing."""

    def get_uris(self, runtime_env: object) -> list[str]:
        """Return nothing to be fetched."""
        del runtime_env
        return []

    async def create(self, *args: object, **kwargs: object) -> float:
        """Make nothing; in bytes."""
        del args, kwargs
        return 0.0

    def modify_context(self, *args: object, **kwargs: object) -> None:
        """Change nothing."""

    def delete_uri(self, *args: object, **kwargs: object) -> float:
        """Delete nothing; in bytes."""
        del args, kwargs
        return 0.0


def plugin(key: str) -> Callable[[type[T]], type[T]]:
    """Make a class the plugin for ``key`` of a runtime_env; where Ray is not known, one that does nothing."""

    def made(does: type[T]) -> type[T]:
        usable = _plugin.usable()
        base = _plugin.found()["base"] if usable else _base_elsewhere()
        body = {"__module__": does.__module__, "__doc__": does.__doc__, "name": key}
        return cast("type[T]", type(does.__name__, (does if usable else _Idle, base), body))

    return made


def _base_elsewhere() -> type:
    """Return the class that plugins have to inherit from, wherever Ray has it now; else ``object``."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "ray":
            found = vars(module).get(_BASE)
            if isinstance(found, type):
                return found
    return object
