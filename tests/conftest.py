"""In which order the tests run, and where their engines leave the sockets that vLLM never removes."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tests import worker_start

settings.register_profile("rayguard", deadline=None)  # on a busy machine an example may take any time
settings.load_profile("rayguard")
_SOCKETS = "VLLM_RPC_BASE_PATH"

HERE = Path(__file__).parent
# They look at this process's whole heap within budgets of time that are meant for a worker's heap: before the
# tests of engines have loaded vLLM and thousands of signatures into it.
_FIRST = {HERE / name for name in ("memory", "objects", "process")}
# Those of minutes, begun last, would leave the other cores idle; not both at once: each fills the cores.
_ORDER = (
    _FIRST,
    *({HERE / name} for name in ("never_worse", "actors", "trials", "pool", "trainers")),
)


def pytest_collection_modifyitems(items):
    """Put those of the heap and the longest first; all others keep their order."""
    items.sort(
        key=lambda item: min((at for at, one in enumerate(_ORDER) if one & set(item.path.parents)), default=9)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Have workers of Ray start in one step."""
    if item.get_closest_marker("ray") is not None:
        worker_start.use()


@pytest.fixture(scope="module")
def own_heap():
    """Hide from the collector what is there already: a pass over the heap of the whole suite takes a second.

    For tests that look at objects of their own, as a worker's heap has them: modules and their variables are hidden too.
    """
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_configure(config):
    """Give the engines of the whole run a folder of their own: each leaves seven files in /tmp otherwise."""
    if _SOCKETS not in os.environ:  # with several processes the first makes it for all
        config.sockets = os.environ[_SOCKETS] = tempfile.mkdtemp(prefix="rg-")  # short: such paths end at 107


def pytest_unconfigure(config):
    """Remove it, by whoever made it."""
    if hasattr(config, "sockets"):
        del os.environ[_SOCKETS]
        shutil.rmtree(config.sockets, ignore_errors=True)
