"""EasyR1's workers for a CPU: its own update of the policy, on a model under DDP and gloo.

Samples depend on nothing but the weights and the prompts, so that a run that was interrupted can be held against
one that was not. The sum of all parameters after each update goes to ``EASYR1_SUMS``; a rank dies where
``EASYR1_STRIKE`` says so: lines of a method, a rank and the number of a call, of which the first holds. The gradients
of update number ``EASYR1_NAN`` are NaN.
"""

import json
import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM
from verl.protocol import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.actor.dp_actor import DataParallelPPOActor


class FSDPWorker(Worker):
    """An actor with its rollout and reference, in one process."""

    def __init__(self, config, role):
        super().__init__()
        self.config, self.role, self.calls = config, role, {}
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self._init_dist_mesh(config.actor, "actor")

    def _init_dist_mesh(self, config, role):
        config.global_batch_size *= self.config.rollout.n
        config.global_batch_size_per_device = config.global_batch_size // (
            dist.get_world_size() // config.ulysses_size
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        path = self.config.actor.model.model_path
        self.model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32)
        self.reference = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32).eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.config.actor.optim.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 1.0)
        parallel = DistributedDataParallel(self.model, find_unused_parameters=True)
        self.actor = DataParallelPPOActor(
            self.config.actor, actor_module=parallel, actor_optimizer=self.optimizer
        )
        self.scorer = DataParallelPPOActor(self.config.actor, actor_module=self.reference)
        self.awake = False

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, path, save_model_only=False):
        Path(path).mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict()}
        if not save_model_only:
            rng = torch.get_rng_state(), random.getstate()
            state["optim"] = self.optimizer.state_dict()
            state["extra_state"] = {"scheduler": self.scheduler.state_dict(), "rng": rng}
        for name, value in state.items():
            torch.save(value, self._file(path, name))
            print(f"[rank-{self.rank}]: Saved {self._file(path, name)}.")
        dist.barrier()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path):
        self.model.load_state_dict(torch.load(self._file(path, "model"), weights_only=False))
        self.optimizer.load_state_dict(torch.load(self._file(path, "optim"), weights_only=False))
        extra = torch.load(self._file(path, "extra_state"), weights_only=False)
        self.scheduler.load_state_dict(extra["scheduler"])
        torch.set_rng_state(extra["rng"][0])
        print(f"[rank-{self.rank}]: Loaded {path}.", flush=True)
        dist.barrier()

    def _file(self, path, name):
        return Path(path) / f"{name}_world_size_{self.world_size}_rank_{self.rank}.pt"

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update_actor(self, data: DataProto):
        self._strike("update_actor")
        if os.environ.get("EASYR1_NAN") == str(self.calls["update_actor"]):
            data.batch["advantages"] = data.batch["advantages"] * float("nan")
        steps = []
        step = self.optimizer.step
        self.optimizer.step = lambda *a, **k: (steps.append(1), step(*a, **k))
        metrics = self.actor.update_policy(data=data)
        del self.optimizer.step
        self.scheduler.step()
        if self.rank == 0:
            total = sum(parameter.detach().double().sum().item() for parameter in self.model.parameters())
            with Path(os.environ["EASYR1_SUMS"]).open("a") as file:
                file.write(
                    json.dumps({"pid": os.getpid(), "sum": total, "rows": len(data), "steps": len(steps)})
                    + "\n"
                )
        return DataProto(
            non_tensor_batch={
                key: np.array([value] if np.isscalar(value) else value) for key, value in metrics.items()
            }
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def prepare_rollout_engine(self):
        assert not self.awake
        self.awake = True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def release_rollout_engine(self):
        assert self.awake
        self.awake = False

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @torch.no_grad()
    def generate_sequences(self, prompts: DataProto):
        self._strike("generate_sequences")
        assert self.awake
        each = prompts.meta_info.get("n", self.config.rollout.n)
        ids, mask, places = (
            prompts.batch[name].repeat_interleave(each, 0)
            for name in ("input_ids", "attention_mask", "position_ids")
        )
        width, length = ids.size(1), self.config.rollout.response_length
        seeds = [int(row.sum()) * 1_000 + at for at, row in enumerate(ids)]
        chance = [torch.Generator().manual_seed(seed) for seed in seeds]
        for _ in range(length):
            logits = self.model(input_ids=ids, attention_mask=mask, position_ids=places).logits[:, -1].float()
            found = [
                torch.multinomial(one.softmax(-1), 1, generator=by)
                for one, by in zip(logits, chance, strict=True)
            ]
            ids = torch.cat([ids, torch.stack(found)], 1)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            places = torch.cat([places, places[:, -1:] + 1], 1)
        batch = {
            "prompts": ids[:, :width],
            "responses": ids[:, width:],
            "input_ids": ids,
            "attention_mask": mask,
            "response_mask": mask[:, width:],
            "position_ids": places,
        }
        return DataProto.from_dict(tensors=batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_probs(self, data: DataProto):
        return self._scored(self.actor, data, "old_log_probs")

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_probs(self, data: DataProto):
        return self._scored(self.scorer, data, "ref_log_probs")

    def _scored(self, by, data, name):
        data.meta_info["temperature"] = self.config.rollout.temperature
        found = by.compute_log_prob(data=data)
        return DataProto.from_dict(
            tensors={name: found}, meta_info={"temperature": self.config.rollout.temperature}
        )

    def _strike(self, method):
        self.calls[method] = self.calls.get(method, 0) + 1
        word = Path(os.environ["EASYR1_STRIKE"])
        first, *others = word.read_text().splitlines() or [""]
        if first.split() == [method, str(self.rank), str(self.calls[method])]:
            word.write_text("\n".join(others))
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
