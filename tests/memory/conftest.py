"""No haste: these tests run in a process whose heap is full of other tests."""

import pytest

from rayguard.memory.growth import heap_census
from rayguard.memory.growth.names import way_to


@pytest.fixture(autouse=True)
def _without_haste(monkeypatch):
    """The budgets are meant for a worker's heap; on a slow machine a pass over this one takes longer."""
    monkeypatch.setitem(heap_census.HeapCensus.__init__.__kwdefaults__, "deadline_s", 60.0)
    monkeypatch.setitem(way_to.__kwdefaults__, "deadline_s", 60.0)
    monkeypatch.setattr(heap_census, "_NAMING_S", 60.0)
