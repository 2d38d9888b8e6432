"""One local Ray cluster for the tests of a module that ask for it."""

import os
import sys
from pathlib import Path

import pytest

from tests.worker_start import FORKED

# Not those of memory, where what a process takes is its own.
_FORKS = frozenset({"test_guard_ray.py", "test_restorable_ray.py"})
LATE = '''
import threading

_LOCK = threading.Lock()  # cannot be pickled


class Late:
    """Defined in a module, guarded from elsewhere."""

    def __init__(self, start: int = 0):
        self.start = start

    def add(self, amount: int, *, twice: bool = False):
        with _LOCK:
            self.start += amount * (2 if twice else 1)
        return self.start

    def fail(self):
        raise ValueError("late")

    async def wait(self):
        return "waited"
'''


@pytest.fixture(scope="module")
def cluster(request, tmp_path_factory):
    """A cluster whose workers import the test modules and write to a journal of their own."""
    import ray

    modules = tmp_path_factory.mktemp("modules")
    (modules / "late_guarded.py").write_text(LATE)
    here = Path(__file__).parent
    paths = [str(modules), *(str(one) for one in (here, *filter(Path.is_dir, here.iterdir())))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
        if request.path.name in _FORKS:
            patch.setenv(FORKED, "pytest,rayguard.actors.guard.wrappers")
        patch.setattr(sys, "path", [*paths, *sys.path])
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            yield ray
        finally:
            ray.shutdown()
