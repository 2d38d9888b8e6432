"""A server of ms-swift that is started again listens where its clients ask: on the port that it was told.

For a minute after a server has died connections of its own hold its port, so that nobody can bind it who does
not say ``SO_REUSEADDR``. The server itself says so, but ms-swift first looks for a free port without it, and
takes the next one, without a word. Where another server listens there, it still does. Read in the source of
ms-swift 4.6.
"""

from __future__ import annotations

import functools
import inspect
import socket
from typing import TYPE_CHECKING, Any

from rayguard.frameworks.change_once import change_once

if TYPE_CHECKING:
    from types import ModuleType

_FINDS = "find_free_port"
_KEPT = "__rayguard_told_port__"


def keep(module: ModuleType) -> bool:
    """Change ``swift.arguments.deploy_args``, just imported; say whether it could be."""
    return change_once(
        module,
        _KEPT,
        lambda: _change(module),
        unknown=_unknown,
        framework="ms-swift",
        otherwise="a server that is started again may listen on another port",
    )


def _unknown(module: ModuleType) -> str:
    finds = getattr(module, _FINDS, None)
    known = callable(finds) and [*inspect.signature(finds).parameters][:1] == ["start_port"]
    return "" if known else _FINDS


def _change(module: Any) -> None:
    finds = module.find_free_port

    @functools.wraps(finds)
    def told(start_port: int | None = None, *args: object, **kwargs: object) -> object:
        if start_port and _nobody_listens(start_port):
            return start_port
        return finds(start_port, *args, **kwargs)

    module.find_free_port = told


def _nobody_listens(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
        return True
