"""Runs a function after a module was imported: how a hook reaches a framework that is loaded later.

Costs an import of another module one look into a dictionary. The module is made by its own loader, from its
own file, and looks to everybody as it would; what goes wrong in a function is counted and logged, and the
import goes on. Standard library only: it is loaded as each Python of a watched command starts.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING

from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PIECE = "hook after an import"


class _Finder:
    """Stands first among the finders, and finds nothing by itself."""

    def __init__(self) -> None:
        self.wanted: dict[str, list[Callable[[ModuleType], object]]] = {}
        self._asking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the others find, with its loader told to run our functions too; None for all else."""
        if name not in self.wanted or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = self._of_others(name, path, target)
        finally:
            self._asking.now = False
        if spec is not None:
            with harmless(_PIECE):
                self._prepare(name, spec)
        return spec

    def _of_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _prepare(self, name: str, spec: ModuleSpec) -> None:
        loader = spec.loader
        # Loaders of files have one module each; one that many share (of a zip, built in) stays as it is.
        if loader is None or getattr(loader, "name", None) != name:
            raise TypeError(f"{name} is loaded by {loader!r}: what should follow its import does not")
        make = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # ours, which stands before its class's: reload() is as ever
            make(module)
            self.arrived(name, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def arrived(self, name: str, module: ModuleType) -> None:
        """Run what waits for a module, once."""
        for then in self.wanted.pop(name, ()):
            with harmless(_PIECE):
                then(module)


_finder = _Finder()
_lock = threading.Lock()


def after_import(name: str, then: Callable[[ModuleType], object]) -> None:
    """Call ``then`` with the module ``name`` once it has been imported: now, if it has been already."""
    with _lock:
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        _finder.wanted.setdefault(name, []).append(then)
    if name in sys.modules:
        with harmless(_PIECE):
            # Not what stands there as it is: another thread may be in the midst of it.
            _finder.arrived(name, importlib.import_module(name))


def loaded_late(hook: str) -> Callable[[ModuleType], object]:
    """Return ``hook`` as a function that loads it when it is called."""

    def then(module: ModuleType) -> object:
        place, _, name = hook.partition(":")
        return getattr(importlib.import_module(place), name)(module)

    return then
