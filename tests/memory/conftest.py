"""No haste: these tests run in a process whose heap is full of other tests."""

import pytest

from rayguard.memory import growth_types
from rayguard.memory.growth_names import way_to


@pytest.fixture(autouse=True)
def _without_haste(monkeypatch):
    """The budgets are meant for a worker's heap; on a slow machine a pass over this one takes longer."""
    monkeypatch.setitem(growth_types.Census.__init__.__kwdefaults__, "deadline_s", 60.0)
    monkeypatch.setitem(way_to.__kwdefaults__, "deadline_s", 60.0)
    monkeypatch.setattr(growth_types, "_NAMING_S", 60.0)
