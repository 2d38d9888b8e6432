"""Trainers for gangs, made within functions: pickled by value, so workers import nothing of the tests."""

from __future__ import annotations

import rayguard


def striker():
    """What does to the calling rank what is said, once for each file that marks it."""

    def strike(rank, fault, mark):
        import ctypes
        import os
        import pathlib
        import signal
        import threading

        import torch

        def raises():
            raise KeyError("a row without a label")

        def loops():
            while True:
                pass

        kinds = {
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
            "raise": raises,
            "sleep": lambda: threading.Event().wait(600),
            "loop": loops,
            "gil": lambda: ctypes.PyDLL(None).usleep(600_000_000),
            "odd": lambda: torch.distributed.broadcast(torch.zeros(1), 0),
        }
        if fault is not None and fault[1] == rank and not (mark and pathlib.Path(mark).exists()):
            if mark:
                pathlib.Path(mark).touch()
            kinds[fault[0]]()

    return strike


def small_trainer():  # noqa: C901 - a class with its methods
    """A small network with dropout, sharded (FSDP2) or in DDP; faults are said in the call."""
    strike = striker()

    class Small(rayguard.TrainerMixin):
        def __init__(self, strategy="fsdp", fail_setup=None):
            self.strategy, self.fail_setup, self.number = strategy, fail_setup, 0

        def setup(self, group):
            import torch
            from torch.distributed.fsdp import fully_shard

            if self.fail_setup == group.rank:
                raise ValueError(f"no data on rank {group.rank}")
            self.group = group
            torch.manual_seed(5)
            model = torch.nn.Sequential(
                torch.nn.Linear(6, 16), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(16, 1)
            )
            if self.strategy == "fsdp":
                fully_shard(model, mesh=group.mesh())
            elif self.strategy == "ddp":
                model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            else:
                model = torch.nn.parallel.DistributedDataParallel(model)
            self.model = model
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
            torch.manual_seed(100 + group.rank)  # dropout differs from rank to rank

        def step(self, number, fault=None, mark=None):
            import torch

            strike(self.group.rank, fault, mark)
            rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(number * 10 + self.group.rank))
            loss = self.model(rows).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.number += 1
            return loss.item(), self.number

        def learn(self, chunk):
            """A step on a part of a batch: the mean over all of its rows."""
            self.model.eval()
            for part, real in chunk:
                (self.model(part["x"])[:real].square().sum() * chunk.weight()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return chunk.rank

        def digest(self):
            """The weights, whole, on each rank."""
            from torch.distributed.tensor import DTensor

            whole = [
                one.full_tensor() if isinstance(one, DTensor) else one for one in self.model.parameters()
            ]
            return [one.detach().flatten().tolist() for one in whole]

        def where(self, fault=None, mark=None):
            import os

            strike(self.group.rank, fault, mark)
            return os.getpid(), self.group.rank, self.group.size, self.group.generation

    return Small
