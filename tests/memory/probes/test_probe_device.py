"""GPU memory: by a stand-in driver and a stand-in torch everywhere, by the real ones where there is a GPU."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from rayguard.memory.probes.device import DeviceProbe, torch_reserved

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml's."""


class Driver:
    """Stands for pynvml with two GPUs; names in ``broken`` fail."""

    NVMLError = NVMLError

    def __init__(self, *broken):
        self.broken, self.inits, self.shutdowns = set(broken), 0, 0

    def _may(self, name):
        if name in self.broken:
            raise NVMLError(name)

    def nvmlInit(self):
        self._may("init")
        self.inits += 1

    def nvmlShutdown(self):
        self.shutdowns += 1

    def nvmlDeviceGetCount(self):
        self._may("count")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        self._may(f"gpu{index}")
        return index

    def nvmlDeviceGetMemoryInfo(self, index):
        return SimpleNamespace(used=(index + 1) * GIB, total=80 * GIB)

    def nvmlDeviceGetUUID(self, index):
        return f"GPU-{index}abc".encode()  # older versions answer in bytes

    def nvmlDeviceGetName(self, index):
        self._may("name")
        return "H200"

    def nvmlDeviceGetComputeRunningProcesses(self, index):
        self._may("processes")
        return [
            SimpleNamespace(pid=10 + index, usedGpuMemory=GIB),
            SimpleNamespace(pid=77, usedGpuMemory=None),
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, index):
        return [SimpleNamespace(pid=10 + index, usedGpuMemory=GIB)]


@pytest.fixture
def driver(monkeypatch):
    def install(*broken):
        found = Driver(*broken)
        monkeypatch.setitem(sys.modules, "pynvml", found)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return found

    return install


def test_each_gpu_is_read_with_its_users(driver):
    """A process that is listed twice counts once; one whose bytes are unknown is not listed with zero."""
    fake = driver()
    probe = DeviceProbe()
    first, second = probe.read()
    assert (first.index, first.uuid, first.name, first.used, first.total) == (
        0,
        "GPU-0abc",
        "H200",
        GIB,
        80 * GIB,
    )
    assert (first.users, second.users) == ({10: GIB}, {11: GIB})
    probe.read()
    probe.close()
    assert (fake.inits, fake.shutdowns) == (1, 1)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1", [1]), ("GPU-0a", [0]), ("", []), ("1, 0", [0, 1]), ("-1", []), ("MIG-3", [])],
)
def test_a_worker_sees_only_its_own_gpus(driver, monkeypatch, visible, expected):
    """Ray sets CUDA_VISIBLE_DEVICES; the driver does not care."""
    driver()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in DeviceProbe(visible_only=True).read()] == expected
    assert len(DeviceProbe().read()) == 2


@pytest.mark.parametrize(
    ("broken", "read"),
    [("init", []), ("count", []), ("gpu0", [1]), ("name", [0, 1]), ("processes", [0, 1])],
)
def test_what_the_driver_refuses_is_missing_and_nothing_raises(driver, broken, read):
    """A GPU that fell off the bus does not hide the other one."""
    driver(broken)
    assert [gpu.index for gpu in DeviceProbe().read()] == read


def test_a_missing_driver_is_said_and_asked_for_once(driver, monkeypatch):
    """Loading a library that is not there costs milliseconds each time."""
    fake = driver("init")
    probe = DeviceProbe()
    probe.read()
    fake.broken.clear()
    assert probe.read() == ()
    assert probe.missing == "init"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    probe = DeviceProbe()
    assert probe.read() == ()
    assert "pynvml" in probe.missing


class Cuda:
    def __init__(self, initialised=True, stats=()):
        self._initialised, self._stats = initialised, stats

    def is_initialized(self):
        return self._initialised

    def device_count(self):
        assert self._initialised, "asking the driver for its devices is not free"
        return len(self._stats)

    def memory_stats(self, index):
        assert self._initialised
        return self._stats[index]


def test_torchs_cache_is_seen_by_device(monkeypatch):
    """A device that nothing was taken from is left out."""
    stats = [{}, {"reserved_bytes.all.current": 10 * GIB}]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(stats=stats)))
    assert torch_reserved() == {1: 10 * GIB}


@pytest.mark.parametrize(
    "torch",
    [
        None,
        SimpleNamespace(),
        SimpleNamespace(cuda=SimpleNamespace()),
        SimpleNamespace(cuda=Cuda(initialised=False)),
    ],
)
def test_without_cuda_in_use_torch_is_not_asked(monkeypatch, torch):
    """Not loaded, half loaded, not initialised: no reading, and no initialisation."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert torch_reserved() == {}


def test_a_look_does_not_load_torch():
    """A watcher must not cost a process half a gigabyte."""
    code = "import sys; from rayguard.memory.probes.device import *; torch_reserved(); DeviceProbe().read(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "False"


def _has_gpu():
    return bool(DeviceProbe().read())


def _torch_has_cuda():
    try:
        import torch
    except ImportError:
        return False
    return torch.version.cuda is not None


@pytest.mark.gpu
@pytest.mark.skipif("not _has_gpu()", reason="needs a GPU and its driver")
def test_the_real_driver_tells_use_and_total():
    """NVML, nothing initialised in this process."""
    for gpu in DeviceProbe().read():
        assert gpu.total > 0
        assert 0 <= gpu.used <= gpu.total
        assert gpu.uuid.startswith("GPU-")


@pytest.mark.gpu
@pytest.mark.skipif(
    "not _has_gpu() or not _torch_has_cuda()", reason="needs a GPU, its driver and torch with CUDA"
)
def test_real_tensors_are_seen_by_torch_and_by_the_driver():
    """It rises with a tensor, and falls when the cache is emptied."""
    import torch

    assert torch_reserved() == {}
    block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    held = torch_reserved()[0]
    assert held >= 64 << 20
    assert DeviceProbe().read()[0].used >= held
    del block
    torch.cuda.empty_cache()
    assert torch_reserved().get(0, 0) < held
