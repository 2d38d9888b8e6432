"""The nodes of a real Ray tell their versions: by address from outside, and from a connected process."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rayguard
from rayguard.preflight_checks import node_versions
from tests.unlisted_cluster import unlisted_cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture
def two_nodes():
    """Light ones, of which one has a GPU that is none."""
    cluster = unlisted_cluster()
    for gpus in (0, 1):
        cluster.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=80 << 20)
    yield cluster
    cluster.shutdown()


def test_each_node_tells_its_versions(two_nodes, monkeypatch):
    """Also where all CPUs are taken; and a process that named the cluster has loaded no Ray."""
    import ray

    found = node_versions.of_cluster(two_nodes.address, wait_s=100)
    assert (found.failed, found.silent) == ("", ())
    assert sorted(one.gpus for one in found.nodes) == [0.0, 1.0]
    assert {one.versions["Ray"] for one in found.nodes} == {ray.__version__}
    assert len({one.node for one in found.nodes}) == 2, "nodes of one machine are told apart"
    code = (
        f"import sys, rayguard; print(len(rayguard.preflight(prompts=8, address={two_nodes.address!r}).errors),"
        "'ray' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150
    )
    assert done.stdout.split() == ["0", "False"]
    ray.init(address=two_nodes.address, log_to_driver=False)
    try:
        assert node_versions.connected_here()
        report = rayguard.preflight(prompts=8)
        assert [one for one in report.findings if one.id.startswith("versions.")] == []
    finally:
        ray.shutdown()
