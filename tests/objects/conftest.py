"""One small local Ray cluster for the tests of a module that ask for it; the process's holdings begin anew."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    import ray

    paths = [str(Path(__file__).parent), *sys.path]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("PYTHONPATH", os.pathsep.join(p for p in (paths[0], os.environ.get("PYTHONPATH")) if p))
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=400_000_000,
        )
        try:
            yield ray
        finally:
            ray.shutdown()


@pytest.fixture(autouse=True)
def _without_haste(monkeypatch):
    """The heap is full of tests."""
    from rayguard.objects import heap, holders

    monkeypatch.setitem(heap.search.__kwdefaults__, "deadline_s", 120.0)
    monkeypatch.setattr(holders.name_holders, "__defaults__", (120.0,))


@pytest.fixture
def fresh(cluster, monkeypatch):
    """The cluster, with nothing known of what tests before made, and no pause between two searches."""
    from rayguard.harmless import errors
    from rayguard.objects import reaper
    from rayguard.objects.holdings import HOLDINGS
    from rayguard.objects.ledger import Ledger

    HOLDINGS.objects, HOLDINGS.actors = Ledger(), Ledger()
    HOLDINGS.step = 0
    HOLDINGS.tracking = False
    monkeypatch.setattr(reaper, "_SHARE", 1e9)
    before = errors.copy()
    yield cluster
    HOLDINGS.tracking = False
    assert +errors == +before, "rayguard failed inside: see the log"
