"""Ray's worker in a process that was forked: what it imports before, and what makes it one."""

from __future__ import annotations

import functools
import importlib
import runpy
import sys
from typing import TYPE_CHECKING, NoReturn

from rayguard.harmless import harmless
from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TITLE = "rayguard: forks Ray's workers"
_IMPORTS = ("ray._private.node", "ray.actor", "ray._private.runtime_env.setup_hook")
threads = Capability(
    "threads of preloaded workers",
    "torch in an actor with preloaded modules uses as many threads as the machine has cores",
    {"set": "ray._private.utils:set_omp_num_threads_if_unset"},
)


def prepare() -> None:
    """Import what each worker needs; raises whatever that raises."""
    raylet = importlib.import_module("ray._raylet")
    raylet.setproctitle(_TITLE)  # it finds the arguments' place only as long as no variable has changed
    for name in _IMPORTS:
        importlib.import_module(name)


def run(arguments: Sequence[str], fit_threads: Callable[[], None]) -> NoReturn:
    """Be the worker with this command line.

    ``fit_threads``: called when Ray has said how many threads a worker's libraries are to use, which those
    that are imported already have not seen.
    """

    def wrap(say: Callable[[], bool]) -> Callable[[], bool]:
        @functools.wraps(say)
        def said() -> bool:
            changed = say()
            if changed:
                with harmless("preloading"):
                    fit_threads()
            return changed

        return said

    with harmless("preloading"):
        threads.replace({"set": wrap})
    sys.argv[:] = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()
