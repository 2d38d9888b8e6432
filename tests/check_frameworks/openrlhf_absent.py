"""Stands in for the packages that OpenRLHF imports and that cannot be there without a GPU."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from unittest.mock import MagicMock

GONE = ("deepspeed", "flash_attn", "bitsandbytes")  # packages that need CUDA to be built


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes up the packages that cannot be there."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        made = MagicMock(name=spec.name)
        made.__spec__, made.__name__, made.__path__ = spec, spec.name, []
        return made

    def exec_module(self, module):
        pass


def make_up():
    """Have them made up in this process."""
    sys.meta_path.append(_Absent())
