"""A real vLLM engine whose worker leaks: it is replaced by a new one while it works."""

from __future__ import annotations

import threading
import time

import pytest

from rayguard.actors.mark import mark_of
from rayguard.actors.memory.memory_guard import MemoryGuard
from rayguard.memory import judge, watcher
from rayguard.memory.probes.files import FilesProbe
from rayguard.memory.probes.node import MonitorSettings, NodeMemory
from rayguard.memory.probes.process import TreeMemory
from rayguard.memory.probes.sample import Probes, Sources
from rayguard.recovery.incident import Outcome
from rayguard.testing import tiny_qwen
from tests.engine.real import ENVIRONMENT, PROMPTS, Owner, incidents, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

MIB = 1 << 20
TOTAL = 640 * MIB  # so small that 300 MiB are half of it


class Node:
    """A node on which nothing but an engine's processes ever grows."""

    settings = MonitorSettings()

    def __init__(self, engines):
        self._tree = TreeMemory(engines, again_s=0.0)
        self._base = self._engine()

    def _engine(self):
        return sum(found.private for found in self._tree.read().values())

    def read(self):
        used = TOTAL // 2 + max(0, self._engine() - self._base)
        return NodeMemory(used=min(TOTAL, used), total=TOTAL, source="a test")

    def own_cgroup(self):
        return None


@pytest.fixture
def owner(tmp_path, monkeypatch):
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(judge, "_WARM_S", 0.5)
    monkeypatch.setattr(watcher, "_FULL_S", 0.2)
    model = tiny_qwen.build(tmp_path / "model", spread=0.2)
    one = Owner(str(model), "LLM", worker_extension_cls="tests.engine.hoarding.Hoarder")
    one.start_engine()
    yield one
    one.stop_engine()


@pytest.fixture
def guard(owner):
    """The memory guard of an actor that owns this engine, on a node of its own, warm."""
    processes, nowhere = owner._engine_slot.processes, FilesProbe([])
    sources = Sources(node=Node(processes), shm=nowhere, disk=nowhere, devices=None)
    one = MemoryGuard(owner, mark_of(type(owner)), probes=Probes(sources, engines=processes))
    one._watcher._interval_s = 0.1
    one.start()
    until = time.monotonic() + 60
    while one._watcher.state.engine == 0:
        assert time.monotonic() < until
        threading.Event().wait(0.05)
    threading.Event().wait(1.0)  # what the engine has now is its own
    yield one
    one.close()


def params():
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, repetition_penalty=1.3)


def test_an_engine_whose_memory_grows_is_replaced_while_it_works(owner, guard):
    """Same answers, other processes, the memory is back, and the incident says all of it."""

    def answers():
        return told(owner.with_engine(lambda engine: engine.generate(PROMPTS, params(), use_tqdm=False)))

    wanted, before, said = answers(), owner.engine_status(), []
    assert owner.with_engine(lambda engine: engine.collective_rpc("hoard", args=(300,))) == [300]
    until = time.monotonic() + 120
    while owner.engine_status()["epoch"] == before["epoch"] or not incidents():
        said.append(answers())
        assert time.monotonic() < until, guard._watcher.state
    assert said
    assert all(one == wanted for one in said)
    assert owner.engine_status()["pids"]["core"] != before["pids"]["core"]
    (incident,) = incidents()
    assert (incident.kind, incident.outcome) == ("host_oom", Outcome.RECOVERED)
    assert incident.remedy == "relieve+engine"
    freed = int(incident.notes[-1].split()[2])
    assert freed > 200, incident.notes
    assert owner.engine_status()["restarts"] == before["restarts"], "no fault, and nothing is spent for one"
