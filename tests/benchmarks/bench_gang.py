"""What keeping a rank's state costs each call of a gang, beside a copy of the same bytes in memory and beside a step.

Then, on two Ray nodes of this machine, what a call costs while states are copied to the other node, beside a gang
that copies none: blocks of calls of the two gangs, in turn.

A real gang of two ranks (FSDP2 on gloo) trains a model; in each rank's process, after each step, its state is
kept once more by the whole of rayguard's way (found, taken apart, written to the mapped file), and its tensors
are copied one by one into buffers that are kept, in turn. The last line is JSON, medians in ms: ``kept_ms``,
``copied_ms``, ``step_ms`` (without what keeps), ``state_mb`` of a rank, ``ratio`` of the first two (bar 1.5),
``share`` of a step (bar 0.02, by the state of 20 MB and a step of at least 100 ms); ``copies_ratio`` of a call with
copies to one without (no bar: both nodes share these cores), ``copies_behind`` the most calls that they lagged.
Ends with 1 where the ratio is missed.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import rayguard
from tests.unlisted_cluster import unlisted_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_RATIO, MOST_SHARE = 1.5, 0.02
STEPS, WARM, RANKS = 60, 10, 2
BLOCKS, BLOCK = 6, 10  # of each gang, and calls in one
COPIED_S = 120.0
WIDTH, LAYERS, ROWS = 920, 4, 512  # 3.4 million parameters: 20 MB of state on each of two ranks


def trainer() -> type:  # noqa: C901 - a class with its methods
    """The class, by value: workers import nothing of this file."""
    width, layers, rows = WIDTH, LAYERS, ROWS

    class Measured(rayguard.TrainerMixin):
        def setup(self, group):
            import torch
            from torch.distributed.fsdp import fully_shard

            torch.manual_seed(0)
            self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
            fully_shard(self.model, mesh=group.mesh())
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=True)

        def step(self):
            import time

            import torch

            began = time.perf_counter()
            loss = self.model(torch.randn(rows, width)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return time.perf_counter() - began

        def measure(self, turn):
            """Keep and copy what the step has changed: seconds of each, and the bytes."""
            import tempfile
            import time
            from pathlib import Path

            from rayguard.process import state_bytes
            from rayguard.process.snapshot_file import SnapshotFile
            from rayguard.trainers.shards import taken_apart

            if not hasattr(self, "_rayguard_bench"):
                path = Path(tempfile.mkdtemp()) / "one.snapshot"
                buffers = [one.clone() for one in self._tensors()]
                self._rayguard_bench = SnapshotFile(path, both=True), buffers
                self._rayguard_folder = path.parent
            file, buffers = self._rayguard_bench

            def keep():
                file.write_as(turn, state_bytes.to_parts(taken_apart(self.state_dict())))

            def copy():
                for buffer, tensor in zip(buffers, self._tensors(), strict=True):
                    buffer.copy_(tensor)

            took = {}
            for do in (keep, copy) if turn % 2 else (copy, keep):
                began = time.perf_counter()
                do()
                took[do.__name__] = time.perf_counter() - began
            return took["keep"], took["copy"], sum(one.nbytes for one in buffers)

        def clean(self):
            import shutil

            shutil.rmtree(self._rayguard_folder)

        def _tensors(self):
            states = [list(one.values()) for one in self.optimizer.state.values()]
            found = [*self.model.state_dict().values(), *(tensor for one in states for tensor in one)]
            return [one.to_local() if hasattr(one, "to_local") else one for one in found]

    return Measured


def copies() -> dict[str, float]:
    """Return what calls cost with copies and without."""
    import ray

    with tempfile.TemporaryDirectory(prefix="rays-", dir="/tmp") as folder:  # short: sockets lie in there
        cluster = unlisted_cluster()
        try:
            cluster.add_node(num_cpus=2 * RANKS, include_dashboard=False, temp_dir=folder)
            cluster.add_node(num_cpus=0)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            return _copies()
        finally:
            ray.shutdown()
            cluster.shutdown()


def _copies() -> dict[str, float]:
    took: tuple[list[float], list[float]] = ([], [])
    behind = 0
    options = {"num_cpus": 0.5}
    with (
        rayguard.TrainerGang(
            trainer(), ranks=RANKS, options=options, policy=rayguard.GangPolicy(copies=0)
        ) as without,
        rayguard.TrainerGang(trainer(), ranks=RANKS, options=options) as copied,
    ):
        for block in range(BLOCKS):
            for gang, seconds in zip((without, copied), took, strict=True):
                for _ in range(BLOCK):
                    began = time.perf_counter()
                    gang.call("step")
                    if block:
                        seconds.append(time.perf_counter() - began)
                        behind = max(behind, gang.status().copies_behind or 0)
            until = time.monotonic() + COPIED_S
            while copied.status().copies_behind != 0 and time.monotonic() < until:
                threading.Event().wait(0.01)
    without_s, with_s = map(statistics.median, took)
    return {
        "call_ms": round(1e3 * without_s, 1),
        "copies_ratio": round(with_s / without_s, 3),
        "copies_behind": behind,
    }


def main() -> int:
    """Measure, print, judge."""
    import ray

    ray.init(
        address="local", num_cpus=RANKS, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    steps: list[float] = []
    kept: list[float] = []
    copied: list[float] = []
    size = 0
    try:
        with rayguard.TrainerGang(trainer(), ranks=RANKS, options={"num_cpus": 0.5}) as gang:
            for turn in range(STEPS):
                steps += gang.call("step")
                for keep_s, copy_s, size in gang.call("measure", turn):  # noqa: B007 - the same on all ranks
                    kept.append(keep_s)
                    copied.append(copy_s)
            gang.call("clean")
    finally:
        ray.shutdown()
    warm = WARM * RANKS
    told = _told(steps[warm:], kept[warm:], copied[warm:], size) | copies()
    print(json.dumps(told), flush=True)
    return int(told["ratio"] > MOST_RATIO)


def _told(
    steps: Sequence[float], kept: Sequence[float], copied: Sequence[float], size: int
) -> dict[str, float]:
    step, keep, copy = (1e3 * statistics.median(one) for one in (steps, kept, copied))
    return {
        "kept_ms": round(keep, 2),
        "copied_ms": round(copy, 2),
        "step_ms": round(step, 1),
        "state_mb": round(size / 1e6, 1),
        "ratio": round(keep / copy, 2),
        "share": round(keep / step, 4),
    }


if __name__ == "__main__":
    sys.exit(main())
