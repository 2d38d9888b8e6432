"""What is trained in the trials: a small transformer, on three ranks. Knows nothing of gangs and faults.

Whatever may be forgotten by who restores a state is in it: dropout and Python's random numbers on each rank,
AdamW's moments, a schedule, the number of the step. Data of a step is a function of its number and the rank.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY, WIDTH, LAYERS, LENGTH, BATCH = 96, 48, 2, 24, 4
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Network(nn.Module):
    """A language model of 60 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class Training:
    """One rank's part of a training."""

    def build(self, rank: int, strategy: str, mesh: Any) -> None:
        """Make model and optimizer, on the default process group."""
        torch.set_num_threads(1)
        self.rank, self.seed, self.number = rank, 0, 0
        network = Network()
        if strategy == "fsdp2":
            for layer in network.layers:
                fully_shard(layer, mesh=mesh)
            self.model: nn.Module = fully_shard(network, mesh=mesh)
        else:
            self.model = DistributedDataParallel(network, find_unused_parameters=True)
        self._optimize()

    def _optimize(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step / 5))

    def begin_anew(self, seed: int) -> None:
        """Forget all that was learned: from here on everything follows from ``seed`` and the rank."""
        self.seed, self.number = seed, 0
        torch.manual_seed(seed)
        whole = Network().state_dict()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                value = whole[name.removeprefix("module.")]
                if hasattr(parameter, "to_local"):
                    value = distribute_tensor(
                        value, parameter.device_mesh, parameter.placements, src_data_rank=None
                    )
                parameter.copy_(value)
                parameter.grad = None
        self._optimize()
        torch.manual_seed(1_000 * seed + self.rank)
        random.seed(1_000 * seed + self.rank)

    def train(self, step: int, strike: Callable[[str], bool] = lambda _: False) -> tuple[str, str]:
        """Make a step; return the bits of this rank's loss and of the mean. ``strike`` is asked on the way."""
        data = torch.Generator().manual_seed(1_000 * self.seed + 10 * step + self.rank)
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=data)
        strike("start")
        logits = self.model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss = loss * (1 + random.random() / 10)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        total = loss.detach().clone()
        if strike("meeting"):
            return "", ""
        dist.all_reduce(total)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.number += 1
        strike("end")
        return loss.item().hex(), total.item().hex()

    def tensors(self) -> list[torch.Tensor]:
        """Return this rank's part of all that was learned: weights, and the optimizer's moments."""
        found = []
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            found += [parameter, state["step"], *(state[name] for name in _MOMENTS)]
        return [getattr(one, "to_local", lambda one=one: one)().detach() for one in found]

    def fingerprint(self) -> str:
        """Return a digest of it, with the random numbers that come next."""
        digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
        digest.update(repr((random.getstate(), self.number, self.schedule.get_last_lr())).encode())
        for tensor in self.tensors():
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def write(self, path: str) -> None:
        """Write a checkpoint of this rank, as a job without a gang would."""
        rest = (self.seed, self.number, self.schedule.state_dict(), torch.get_rng_state(), random.getstate())
        torch.save({"tensors": self.tensors(), "rest": rest}, path)

    def read(self, path: str) -> None:
        """Take a checkpoint up."""
        kept = torch.load(path, weights_only=False)
        for parameter in self.model.parameters():
            empty = {name: torch.zeros_like(parameter) for name in _MOMENTS}
            self.optimizer.state[parameter] = {"step": torch.zeros(()), **empty}
        with torch.no_grad():
            for mine, value in zip(self.tensors(), kept["tensors"], strict=True):
                mine.copy_(value)
        self.seed, self.number, schedule, generator, python = kept["rest"]
        self.schedule.load_state_dict(schedule)
        for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
            group["lr"] = rate
        torch.set_rng_state(generator)
        random.setstate(python)
