"""vLLM's server as TRL wants it, on the CPU, as a process that can be struck.

NCCL alone is stood in for, on both sides: the same meeting point, tensors by way of its store. All else is vLLM's own:
the HTTP server, the engine's process, the reload of weights layer by layer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.check_frameworks.environments import ROOT

HOST, START_S, GROUP_S = "127.0.0.1", 400.0, 60
_PAUSE = threading.Event()


class StoreGroup:
    """In the place of ``PyNcclCommunicator``. ``group`` is what TRL's client lets go of at its end."""

    def __init__(self, host, port, rank, world_size, device):
        from vllm.distributed.utils import StatelessProcessGroup

        self.group = StatelessProcessGroup.create(
            host=host, port=port, rank=rank, world_size=world_size, store_timeout=GROUP_S
        )

    def broadcast(self, tensor, src, stream=None):
        """Fill ``tensor`` where it is received."""
        received = self.group.broadcast(tensor.detach(), src)
        if received is not tensor:
            tensor.data.copy_(received)

    def destroy(self):
        self.group = None


def without_nccl():
    """Have vLLM's weight transfer go by way of the store, in this process."""
    import torch
    from vllm.distributed.weight_transfer import nccl_common, nccl_engine

    def received(iterator, group, src, post_unpack_func, **_):
        for name, (shape, dtype) in iterator:
            tensor = torch.empty(shape, dtype=dtype)
            group.broadcast(tensor, src)
            post_unpack_func([(name, tensor)])

    torch.accelerator.current_device_index = lambda: 0
    nccl_common.stateless_init_process_group = StoreGroup
    nccl_engine.packed_nccl_broadcast_consumer = received


@dataclass
class Served:
    """A server of one model on one port; it can be killed with its engine, and started again."""

    model: Path
    port: int
    log: Path
    process: subprocess.Popen | None = field(default=None, init=False)

    @property
    def url(self):
        return f"http://{HOST}:{self.port}"

    def start(self):
        """Start it, and do not wait."""
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), "--host", HOST, "--port", str(self.port),
            "--dtype", "float32", "--max-model-len", "256", "--enforce-eager", "--max-num-seqs", "8",
            "--weight-transfer-config", '{"backend": "nccl"}', "--logprobs-mode", "processed_logprobs",
            "--max-logprobs", "-1", "--worker-extension-cls", "tests.check_frameworks.cpu_worker.StoreWorker",
        ]  # fmt: skip
        own = {
            "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_HOST_IP": HOST,
            "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | own, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self):
        """Wait until it answers.

        Raises:
            TimeoutError: It does not.
        """
        over = time.monotonic() + START_S
        while time.monotonic() < over:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            _PAUSE.wait(0.2)
        raise TimeoutError(f"no server: {self.log.read_text(errors='replace')[-2000:]}")

    def kill(self):
        """End it with all its processes, at once."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
