"""One real Ray cluster of two light nodes for the tests of a module that ask for it."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from node_pair import TwoNodes

from tests.unlisted_cluster import unlisted_cluster


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """A connected driver on a cluster of two nodes, whose workers import the modules of this directory."""
    import ray

    folder = tmp_path_factory.mktemp("nodes")
    here = Path(__file__).parent
    folders = [str(one) for one in (here, *filter(Path.is_dir, here.iterdir()))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(folder / "driver"))
        patch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
        patch.setattr(sys, "path", [*folders, *sys.path])
        cluster = unlisted_cluster()
        both = TwoNodes(cluster, folder)
        # Of its own: in /tmp/ray clusters of other tests tell Prometheus of theirs, in the same file.
        rays = tempfile.mkdtemp(prefix="rays-", dir="/tmp")  # short: Ray's sockets lie in there
        try:
            both.add(num_cpus=2, include_dashboard=False, temp_dir=rays)
            both.add()
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield both
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(rays, ignore_errors=True)
