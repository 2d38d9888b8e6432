"""Starts a Ray worker in one step. For tests alone, whose workers' starts are a good part of what they cost.

Ray 2.60 starts Python, imports itself, sets the variables of the runtime environment, and starts Python again,
which imports all that a second time. This does the first part without that import; where a cluster's variable
``FORKED`` says which modules its workers need beside Ray, they are forked from one process that has them, as
``rayguard.preloaded`` does. Not for tests of the agent, of memory or of the heap: forked workers share pages, the
seed of hashes and the layout of memory, and have modules that the collector does not see.
What it does not know it leaves to Ray's own. Loads as little as it can.
"""

from __future__ import annotations

import os
import sys

FORKED = "TESTS_WORKERS_HAVE"  # no variable of rayguard's own: those are looked for by their beginning


def use() -> None:
    """Have the clusters that this process starts do so. Without what is private here, Ray starts them as it does."""
    import contextlib
    import functools

    with contextlib.suppress(ImportError, AttributeError):
        from ray._private.parameter import RayParams

        if not isinstance(vars(RayParams)["__init__"], functools.partialmethod):
            RayParams.__init__ = functools.partialmethod(RayParams.__init__, setup_worker_path=__file__)


def main() -> None:
    """Become the worker, or have it forked."""
    known, rest = {"--serialized-runtime-env-context": "{}", "--language": ""}, []
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        if name in known:
            known[name] = value
        else:
            rest.append(word)
    context = {}
    if known["--serialized-runtime-env-context"] not in {"", "{}"}:
        import json

        context = json.loads(known["--serialized-runtime-env-context"])
    variables = context.get("env_vars") or {}
    python = context.get("py_executable") or sys.executable
    if FORKED in os.environ and "rayguard.preloading.start import main_later" in python:
        python = sys.executable  # of a pool: it is to be forked, and here that can be at once
    asked = context.get("command_prefix") or context.get("override_worker_entrypoint") or " " in python
    if asked or known["--language"] != "PYTHON" or any("$" in value for value in variables.values()):
        own = os.path.join(os.path.dirname(rest[0]), "setup_worker.py")  # noqa: PTH118, PTH120 - pathlib is slow
        os.execv(sys.executable, [sys.executable, own, *sys.argv[1:]])
    os.environ.update(variables)
    if FORKED in os.environ and python == sys.executable:
        from rayguard.preloading.start import forked

        if forked([name for name in os.environ[FORKED].split(",") if name], rest):
            return
    os.execvp(python, [python, *rest])


if __name__ == "__main__":
    main()
