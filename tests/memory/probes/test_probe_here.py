"""The probe set: one sample of everything, a missing source said once, and nothing that raises."""

import logging
import os
import subprocess
from types import SimpleNamespace

import pytest
from trees import GIB, meminfo, version_2, written

from rayguard.memory.probes.device import DeviceMemory
from rayguard.memory.probes.files import FilesProbe, FileSystem
from rayguard.memory.probes.node import MonitorSettings, NodeProbe
from rayguard.memory.probes.sample import Probes, Sources, sources_of_this_process
from rayguard.memory.reading import Quantity
from rayguard.process.identity import ProcessId
from rayguard.ray_internals.node_stats import StoreMemory


class Store:
    """Stands for a raylet; answers with ``memory``."""

    address = "nowhere:1"

    def __init__(self, memory=None):
        self.memory = memory

    def read(self):
        if isinstance(self.memory, Exception):
            raise self.memory
        return self.memory


class Devices:
    missing = ""

    def read(self):
        users = {os.getpid(): 3 * GIB, 1: GIB}
        return (DeviceMemory(index=2, uuid="GPU-1", name="H200", used=5 * GIB, total=80 * GIB, users=users),)

    def close(self):
        pass


@pytest.fixture
def sources(tmp_path):
    own = "0::/job\n"
    written(tmp_path / "proc", {"meminfo": meminfo(100, 60), "self/cgroup": own})
    written(tmp_path / "cgroup", {"cgroup.controllers": "", **version_2("job/", 8 * GIB, GIB)})
    return Sources(
        node=NodeProbe(
            MonitorSettings(usage_threshold=0.5), proc=tmp_path / "proc", cgroup=tmp_path / "cgroup"
        ),
        store=Store(StoreMemory(used=5, capacity=10)),
        shm=FilesProbe(["/x"], ask=lambda path: FileSystem(path=path, used=1, total=2)),
        disk=FilesProbe(["/y"], ask=lambda path: FileSystem(path=path, used=3, total=4)),
        devices=Devices(),
    )


def of(sample, quantity):
    return [(r.used, r.limit, r.who, r.pid) for r in sample.readings if r.quantity is quantity]


def test_a_sample_has_everything_that_can_be_seen(sources):
    """With the time and the step it was taken at."""
    probes = Probes(sources, clock=lambda: 12.5)
    sample, me = probes.sample(step=4), os.getpid()
    assert (sample.at, sample.step) == (12.5, 4)
    assert of(sample, Quantity.STORE) == [(5, 10, "", 0)]
    assert of(sample, Quantity.SHM) == [(1, 2, "/x", 0)]
    assert of(sample, Quantity.DISK) == [(3, 4, "/y", 0)]
    assert of(sample, Quantity.DEVICE) == [(5 * GIB, 80 * GIB, "GPU 2", 0), (3 * GIB, 80 * GIB, "GPU 2", me)]
    (node, own) = of(sample, Quantity.NODE)
    assert node == (40 * GIB, 100 * GIB, "", 0)
    assert own[:2] == (GIB, 8 * GIB)
    (private,) = of(sample, Quantity.PRIVATE)
    (heap,) = of(sample, Quantity.HEAP)
    (native,) = of(sample, Quantity.NATIVE)
    assert private[0] > heap[0] + native[0] - (8 << 20)
    assert private[3] == heap[3] == native[3] == me
    assert probes.kills_at() == 50 * GIB
    probes.close()


def test_a_quick_sample_asks_only_for_what_is_cheap(sources):
    """No raylet, no driver, no disk."""
    sources.store.memory = RuntimeError("must not be asked")
    probes = Probes(sources)
    assert {r.quantity for r in probes.quick().readings} == {Quantity.PRIVATE, Quantity.MAPPED}
    assert of(probes.quick(node=True), Quantity.NODE)[0][:2] == (40 * GIB, 100 * GIB)


def test_an_engines_processes_are_in_the_sample(sources):
    """The roots and what they started, apart from this process; by the roots a new life is known."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        probes = Probes(sources, engines=lambda: [ProcessId.of(child.pid)])
        sample = probes.sample()
        assert [pid for *_, pid in of(sample, Quantity.PRIVATE)] == [os.getpid()]
        ((used, _, who, _),) = of(sample, Quantity.ENGINE)
        assert 0 < used < 64 << 20
        assert who == f"processes {child.pid}"
        probes.close()
    finally:
        child.kill()
        child.wait(10)


@pytest.mark.parametrize("answer", [None, RuntimeError("the raylet is gone")])
def test_a_source_that_is_missing_is_said_once_and_the_others_are_read(sources, caplog, answer):
    """At level info: nothing is wrong with the user's program."""
    sources.store.memory = answer
    broken = SimpleNamespace(read=lambda: 1 / 0, close=lambda: None)
    sources.devices = broken
    sources.disk = broken
    probes = Probes(sources)
    with caplog.at_level(logging.INFO, "rayguard"):
        samples = [probes.sample() for _ in range(3)]
    assert all(of(sample, Quantity.NODE) and not of(sample, Quantity.STORE) for sample in samples)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert all(any(name in line for line in said) for name in ("object store", "GPUs", "disk"))
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_source_that_comes_back_is_read_again(sources):
    """A raylet may be slow once."""
    probes, memory = Probes(sources), sources.store.memory
    sources.store.memory = None
    assert of(probes.sample(), Quantity.STORE) == []
    sources.store.memory = memory
    assert of(probes.sample(), Quantity.STORE) == [(5, 10, "", 0)]


def test_outside_of_ray_there_is_no_store_and_a_reason(monkeypatch, caplog):
    """A trainer without Ray is watched all the same."""
    monkeypatch.delenv("RAY_RAYLET_PID", raising=False)
    monkeypatch.setattr("rayguard.memory.probes.sample.own_ray_node", lambda: None)
    with caplog.at_level(logging.INFO, "rayguard"):
        probes = Probes()
    assert any("belongs to no Ray node" in record.getMessage() for record in caplog.records)
    assert of(probes.sample(), Quantity.NODE)
    probes.close()


def test_a_ray_of_another_version_is_a_missing_source(monkeypatch):
    """Its private parts may be others."""

    def broken():
        raise AttributeError("no such thing in this Ray")

    monkeypatch.setattr("rayguard.memory.probes.sample.own_ray_node", broken)
    sources = sources_of_this_process()
    assert "no such thing" in sources.missing["object store"]
    assert sources.store is None
