"""The runtime environment of workers that begin with their imports done."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Of a runtime environment: workers with one of these run another Python than the one that has the modules.
_OTHER_PYTHON = (
    *("py_executable", "pip", "uv", "conda", "container", "image_uri"),
    *("_nsight", "_rocprof_sys"),
)
# Where rayguard is not installed, the worker starts as it would without it.
_START = """
import os, sys
try:
    from rayguard.preloading.start import {0}
except ImportError:
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
{0}(sys.argv[1].split(","), sys.argv[2:])
""".strip()
_AT_ONCE, _LATER = "main", "main_later"
# Ray has a shell run it, on the node of the worker: the Python of its workers there, or the driver's.
_PYTHON = (
    r"""$(command -v "$(tr '\0' ' ' </proc/$RAY_RAYLET_PID/cmdline"""
    r""" | sed -n 's/.*--python_worker_command=\([^ ]*\) .*/\1/p')" """
    "|| command -v {} || command -v python3)"
)


def preloaded(*modules: str, runtime_env: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return a ``runtime_env`` whose workers begin with ``modules`` imported.

        @ray.remote(max_restarts=-1, runtime_env=rayguard.preloaded("vllm"))
        class Rollout(rayguard.RolloutMixin): ...

    The first such worker of a node starts a process that imports Ray and ``modules``; workers are forked
    from it, and share its memory. A new life of an actor does not import ``vllm`` again, which takes 5 to
    15 s. The process ends a minute after its last worker, and with Ray on its node. Where it cannot be
    (no Linux, modules that start threads or initialise a GPU at their import, an import that takes more than
    30 s) workers start as they do without.

    What modules read from environment variables at their import they read before the actor's class is loaded:
    set such variables in ``runtime_env["env_vars"]``, not in the class's module.

    Args:
        modules: Names as in an ``import`` statement: installed packages, or what ``working_dir`` brings.
        runtime_env: What else the workers need; a copy of it is returned.

    Raises:
        ConfigError: No module, a name that is none, or a runtime environment with a Python of its own (pip,
            uv, conda, a container).
    """
    if not modules:
        raise ConfigError('preloaded() needs the names of modules, as in preloaded("vllm")')
    for name in modules:
        if not is_module(name):
            raise ConfigError(f"preloaded() takes names of modules, as in an import statement; got {name!r}")
    asked = dict(runtime_env or {})
    if other := with_another_python(asked):
        raise ConfigError(
            f"preloaded() does not go with {other!r} in a runtime_env, which gives workers another Python"
        )
    if sys.platform != "linux":
        return asked
    return {**asked, "py_executable": starting(_PYTHON.format(shlex.quote(sys.executable)), modules)}


def preloaded_later(module: str, runtime_env: Mapping[str, object]) -> dict[str, object]:
    """Return a ``runtime_env`` of actors whose next lives begin with ``module`` imported.

    Not their first ones: what forks workers imports when an actor has, and says so (``ask``).
    """
    python = _PYTHON.format(shlex.quote(sys.executable))
    return {**runtime_env, "py_executable": starting(python, [module], _LATER)}


def python_of(py_executable: str) -> str:
    """Return the Python that this starts workers with, when it is of this module; else all of it."""
    return py_executable.partition(f" -c '{_START.partition(' import {0}')[0]}")[0]


def preloads_later(py_executable: str) -> bool:
    """Say whether that is of ``preloaded_later``."""
    return _START.format(_LATER) in py_executable


def with_another_python(runtime_env: Mapping[str, object]) -> str:
    """Return what gives workers another Python than Ray's own, or an empty string."""
    return next((name for name in _OTHER_PYTHON if runtime_env.get(name)), "")


def starting(python: str, modules: Sequence[str], how: str = _AT_ONCE) -> str:
    """Return what Ray starts workers with in the place of ``python``, both pieces of shell."""
    return f"{python} -c {shlex.quote(_START.format(how))} {','.join(modules)}"


def is_module(name: object) -> bool:
    """Say whether that can be the name of a module."""
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
