"""The runtime environment of workers that begin with their imports done."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Of a runtime environment: workers with one of these run another Python than the one that has the modules.
_OTHER_PYTHON = ("py_executable", "pip", "uv", "conda", "container", "image_uri")
# Where rayguard is not installed, the worker starts as it would without it.
_START = """
import os, sys
try:
    from rayguard.preloading.start import main
except ImportError:
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
main(sys.argv[1].split(","), sys.argv[2:])
""".strip()


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
    python = f"$(command -v {shlex.quote(sys.executable)} || command -v python3)"  # Ray has a shell run it
    return {**asked, "py_executable": starting(python, modules)}


def with_another_python(runtime_env: Mapping[str, object]) -> str:
    """Return what gives workers another Python than Ray's own, or an empty string."""
    return next((name for name in _OTHER_PYTHON if runtime_env.get(name)), "")


def starting(python: str, modules: Sequence[str]) -> str:
    """Return what Ray starts workers with in the place of ``python``, both pieces of shell."""
    return f"{python} -c {shlex.quote(_START)} {','.join(modules)}"


def is_module(name: object) -> bool:
    """Say whether that can be the name of a module."""
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
