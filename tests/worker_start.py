"""Starts a Ray worker in one step. For tests alone, whose workers' starts are a good part of what they cost.

Ray 2.60 starts Python, imports itself, sets the variables of the runtime environment, and starts Python again,
which imports all that a second time. This does the first part without that import. What it does not know it leaves
to Ray's own. Loads as little as it can.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
from pathlib import Path


def use() -> None:
    """Have the clusters that this process starts do so. Without what is private here, Ray starts them as it does."""
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private.parameter import RayParams

        if not isinstance(vars(RayParams)["__init__"], functools.partialmethod):
            RayParams.__init__ = functools.partialmethod(RayParams.__init__, setup_worker_path=__file__)


def main() -> None:
    """Become the worker."""
    options = argparse.ArgumentParser()
    options.add_argument("--serialized-runtime-env-context", default="{}")
    options.add_argument("--language", default="")
    known, rest = options.parse_known_args()
    context = json.loads(known.serialized_runtime_env_context or "{}")
    variables = context.get("env_vars") or {}
    python = context.get("py_executable") or sys.executable
    asked = context.get("command_prefix") or context.get("override_worker_entrypoint") or " " in python
    if asked or known.language != "PYTHON" or any("$" in value for value in variables.values()):
        own = str(Path(rest[0]).with_name("setup_worker.py"))
        os.execv(sys.executable, [sys.executable, own, *sys.argv[1:]])
    os.environ.update(variables)
    os.execvp(python, [python, *rest])


if __name__ == "__main__":
    main()
