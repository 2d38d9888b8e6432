"""Runs as each Python of a watched command starts: the user's own ``sitecustomize`` first, then our hooks.

Python imports one module of this name, the first on its path. This one stands before any other there
(``rayguard.frameworks.startup``), so it hands on to the next, which takes its place in every respect. Under
``-S``, ``-E`` and ``-I`` Python does not come by here, and under another interpreter's packages there may be
no rayguard: then there are no hooks, and nothing else is different.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - pathlib takes 10 ms that each start would pay


def _run_users_own() -> None:
    others = [place for place in sys.path if os.path.realpath(place) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _run_users_own()  # its errors are told by Python, as ever
finally:
    with contextlib.suppress(Exception):
        from rayguard.frameworks.startup import attach_if_asked

        attach_if_asked()
