"""Waiting for a GPU's memory: only where there is a GPU, and never for ever."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from rayguard.engine.build import footprint


class Driver:
    """Stands for pynvml; lists ``pid`` for the first ``looks`` looks."""

    def __init__(self, pid, looks):
        self.pid, self.looks, self.shut_down = pid, looks, False

    def nvmlInit(self):
        return None

    def nvmlShutdown(self):
        self.shut_down = True

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, _handle):
        self.looks -= 1
        return [SimpleNamespace(pid=self.pid)] if self.looks >= 0 else []


def test_it_returns_once_the_dead_are_off_the_device(monkeypatch):
    """It looks until the driver no longer lists the process."""
    driver = Driver(4711, looks=2)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(footprint, "_CHECK_S", 0.001)
    assert footprint.wait_for_memory([4711], deadline_s=5.0)
    assert driver.looks < 0
    assert driver.shut_down


def test_it_gives_up_at_its_deadline(monkeypatch):
    """A driver that never lets go does not hold the recovery."""
    monkeypatch.setitem(sys.modules, "pynvml", Driver(4711, looks=10**9))
    monkeypatch.setattr(footprint, "_CHECK_S", 0.001)
    assert not footprint.wait_for_memory([4711], deadline_s=0.05)


def test_others_on_the_device_are_not_waited_for(monkeypatch):
    """Only the engine's own processes count."""
    monkeypatch.setitem(sys.modules, "pynvml", Driver(1, looks=10**9))
    assert footprint.wait_for_memory([4711], deadline_s=0.05)


def _has_gpu():
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount() > 0
    except Exception:
        return False


@pytest.mark.skipif(_has_gpu(), reason="there is a GPU here")
def test_without_a_gpu_it_returns_at_once():
    """No driver, nothing to wait for."""
    assert footprint.wait_for_memory([os.getpid()], deadline_s=30.0)


@pytest.mark.gpu
@pytest.mark.skipif(not _has_gpu(), reason="needs a GPU and its driver")
def test_on_a_gpu_a_process_without_device_memory_is_not_waited_for():
    """The real driver answers, and does not list us."""
    assert footprint.wait_for_memory([os.getpid()], deadline_s=5.0)
