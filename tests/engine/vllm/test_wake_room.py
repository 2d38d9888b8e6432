"""A sleeping engine is woken only where its memory is free again. With a driver that is none."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from rayguard import RequestError
from rayguard.engine.vllm.changes.own_calls import OwnCalls
from rayguard.engine.weights.changes import WeightChanges

GIB = 1 << 30
OTHER = 4711


class Driver:
    """Stands for pynvml: one GPU of 80 GiB."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self):
        self.held = {os.getpid(): 60 * GIB}
        self.mig = 0

    def nvmlInit(self): ...

    def nvmlShutdown(self): ...

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, _device):
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.held.items()]

    def nvmlDeviceGetMemoryInfo(self, _device):
        return SimpleNamespace(free=80 * GIB - sum(self.held.values()), total=80 * GIB)

    def nvmlDeviceGetMigMode(self, _device):
        if self.mig is None:
            raise self.NVMLError
        return self.mig, self.mig


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


@pytest.fixture
def calls():
    """A core whose process is this one; what reached it is in ``sent``."""
    sent = []
    manager = SimpleNamespace(processes=[SimpleNamespace(pid=os.getpid())])
    core = SimpleNamespace(resources=SimpleNamespace(engine_manager=manager))
    own = OwnCalls(WeightChanges())

    def call(name, *args, **kwargs):
        return own.before(core, name, lambda *_, **__: sent.append(name))(*args, **kwargs)

    return SimpleNamespace(call=call, sent=sent, asleep=lambda: own._asleep is core)


def falls_asleep(driver, calls):
    calls.call("sleep", 1)
    driver.held[os.getpid()] = 2 * GIB


@pytest.mark.parametrize("mig", [0, None], ids=["no instances", "a GPU that knows none"])
def test_a_wake_up_without_room_is_not_sent_and_says_who_holds_it(driver, calls, mig):
    driver.mig = mig
    falls_asleep(driver, calls)
    driver.held[OTHER] = 40 * GIB
    with pytest.raises(RequestError) as caught:
        calls.call("wake_up")
    assert calls.sent == ["sleep"]
    assert calls.asleep(), "and it is known to sleep on"
    said = str(caught.value)
    assert "gave up 58.0 GiB of GPU 0, and 38.0 are free (process 4711: 40.0 GiB)" in said
    assert "call wake_up again" in said
    del driver.held[OTHER]
    calls.call("wake_up")
    assert calls.sent == ["sleep", "wake_up"]


def test_with_room_or_for_some_tags_it_is_sent(driver, calls):
    falls_asleep(driver, calls)
    driver.held[OTHER] = 20 * GIB  # 58 are free
    calls.call("wake_up")
    falls_asleep(driver, calls)
    driver.held[OTHER] = 70 * GIB
    calls.call("wake_up", ["weights"])
    assert calls.sent == ["sleep", "wake_up", "sleep", "wake_up"]


@pytest.mark.parametrize("what", ["instances", "another namespace", "no driver"])
def test_where_nobody_can_tell_it_is_sent(driver, calls, monkeypatch, what):
    if what == "instances":
        driver.mig = 1
    elif what == "another namespace":
        driver.held = {99: 60 * GIB}
    else:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    calls.call("sleep", 1)
    driver.held[OTHER] = 79 * GIB
    calls.call("wake_up")
    assert calls.sent == ["sleep", "wake_up"]
