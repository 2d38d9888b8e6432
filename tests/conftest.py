"""In which order the tests run."""

from __future__ import annotations

from pathlib import Path

# They look at this process's whole heap within budgets of time that are meant for a worker's heap: before the
# tests of engines have loaded vLLM and thousands of signatures into it.
_FIRST = {Path(__file__).parent / name for name in ("memory", "objects", "process")}


def pytest_collection_modifyitems(items):
    """Put the tests of the heap first; all others keep their order."""
    items.sort(key=lambda item: not _FIRST & set(item.path.parents))
