"""Small actors for verl's own rollouts: servers behind its balancer, replicas and a trainer for its weight updates."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from pathlib import Path

STEP, TOKENS, EACH_S, WAIT_S = 7, 6, 0.5, 300.0


def server_class():  # noqa: C901 - all within one, as it is sent to the actors
    """Return a class of servers. It is sent to them whole, so all that it needs is within."""

    class EngineDeadError(RuntimeError):
        pass

    class Server:
        def __init__(self, name, folder, tokens, each_s):
            import asyncio

            self.name, self.folder, self.tokens, self.each_s = name, folder, tokens, each_s
            self.global_steps, self.engine_died, self.aborted = None, False, asyncio.Event()

        async def set_global_steps(self, step):
            self.global_steps = step

        async def kill_engine(self):
            self.engine_died = True

        async def abort_all_requests(self, **_):
            return {}  # as of an engine that goes on with them

        release_kv_cache = resume_kv_cache = resume_generation = abort_all_requests

        async def abort(self):
            self.aborted.set()

        async def process(self):
            import os

            return os.getpid()

        async def generate(
            self, request_id, prompt_ids, sampling_params, image_data=None, video_data=None, **_
        ):
            import asyncio
            from pathlib import Path
            from types import SimpleNamespace as TokenOutput

            (Path(self.folder) / f"{self.name}-{request_id}").write_text("")
            made, most = [], sampling_params.get("max_tokens", self.tokens)
            while len(made) < most:
                await asyncio.sleep(self.each_s)
                if self.engine_died:
                    raise EngineDeadError("EngineCore encountered an issue")
                if self.aborted.is_set():
                    self.aborted.clear()
                    break
                made.append((sum(prompt_ids) + sum(made)) % 97)  # of what stands before it alone
            return TokenOutput(
                token_ids=made,
                log_probs=[0.0] * len(made),
                num_preempted=0,
                routed_experts=None,
                stop_reason="completed" if len(made) == most else "aborted",
                extra_fields={"global_steps": self.global_steps, "server": self.name},
            )

    return Server


class Rollouts:
    """Servers behind verl's own balancer, of which all checks use one: it imports much."""

    balancer = None

    def __init__(self, ray, names="ab", *, weights=True, backend="nccl", **options):
        from omegaconf import OmegaConf
        from verl.workers.rollout.router import get_router_handle

        self.ray, self.folder = ray, Path(tempfile.mkdtemp(prefix="rayguard-check-"))
        made = ray.remote(num_cpus=0, **options)(server_class())
        self.servers = {one: made.remote(one, str(self.folder), TOKENS, EACH_S) for one in names}
        self.pids = {name: ray.get(one.process.remote()) for name, one in self.servers.items()}
        if weights:
            ray.get([one.set_global_steps.remote(STEP) for one in self.servers.values()])
        if Rollouts.balancer is None:
            Rollouts.balancer = get_router_handle(servers={})
        ray.get(self.balancer.add_servers.remote(self.servers))
        rollout = {"name": "vllm", "response_length": TOKENS, "checkpoint_engine": {"backend": backend}}
        self.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})

    def client(self, name="LLMServerClient", **options):
        from verl.workers.rollout import llm_server

        return getattr(llm_server, name)(config=self.config, load_balancer_handle=self.balancer, **options)

    def active(self):
        return sorted(self.ray.get(self.balancer.get_all_servers.remote()))

    async def busy(self, name, most=1):
        """Wait until a server has so many requests."""
        until = time.monotonic() + WAIT_S
        while len(list(self.folder.glob(f"{name}-*"))) < most:
            assert time.monotonic() < until, f"{name} has no {most} requests"
            await asyncio.sleep(0.01)

    def wait_for(self, name):
        """Wait until a server that Ray starts anew is up."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            with contextlib.suppress(self.ray.exceptions.ActorUnavailableError):
                return self.ray.get(self.servers[name].process.remote(), timeout=WAIT_S)
            threading.Event().wait(0.2)
        raise AssertionError(f"{name} has not come back")

    def asked(self, name):
        return len(list(self.folder.glob(f"{name}-*")))

    def close(self):
        self.ray.get(self.balancer.remove_servers.remote(list(self.servers)))
        self.ray.get(self.balancer.clear_sticky_cache.remote())
        for one in self.servers.values():
            self.ray.kill(one)


def manager(ray):  # noqa: C901 - as above
    """Return verl's own manager of three replicas and a trainer, with small actors, and their handles."""
    from types import SimpleNamespace

    from verl.checkpoint_engine import base

    class SmallEngine:
        @classmethod
        def build_topology(cls, trainers, rollouts, metadata):
            return {"rank": list(range(trainers))}, {"rank": [trainers + one for one in range(rollouts)]}

    class Small:
        def __init__(self):
            self.got = []

        async def execute_checkpoint_engine(self, method, *args, **kwargs):
            return method

        async def update_weights(self, global_steps=None):
            self.got.append(global_steps)

        async def abort_all_requests(self, **_):
            return {}

        async def done(self):
            return True

        async def received(self):
            import os

            return os.getpid(), self.got

    base.CheckpointEngineRegistry._registry["small"] = SmallEngine
    actor = ray.remote(num_cpus=0)(Small)
    trainer = actor.remote()

    class Trainer:
        world_size = 1

        def execute_checkpoint_engine(self, method, **_):
            return [trainer.execute_checkpoint_engine.remote(one) for one in method]

        def update_weights(self, global_steps=None, mode=None):
            return [trainer.update_weights.remote(global_steps)]

    class Replica:
        def __init__(self, rank):
            self.replica_rank, self.servers, self.workers = rank, [actor.remote()], [actor.remote()]

        async def all_of(self, *_, **__):
            await asyncio.gather(*(one.done.remote() for one in self.servers))

        abort_all_requests = release_kv_cache = resume_kv_cache = resume_generation = all_of

    config = SimpleNamespace(backend="small", custom_backend_module=None)
    return base.CheckpointEngineManager(config, Trainer(), [Replica(rank) for rank in range(3)])


def kept_engine():
    """Return a class of weight engines that keep their group, as verl's for NCCL do."""

    class KeptEngine:
        wire_format = "named_tensors"

        def __init__(self, rebuild_group=False):
            self.rebuild_group, self.rank, self.world_size = rebuild_group, None, None

        @classmethod
        def build_topology(cls, trainers, rollouts, metadata):
            size = trainers + rollouts
            ranks = list(range(size))
            return (
                {"rank": ranks[:trainers], "world_size": [size] * trainers},
                {"rank": ranks[trainers:], "world_size": [size] * rollouts},
            )

        def prepare(self):
            return "metadata"

        def init_process_group(self, rank, world_size):
            if self.rebuild_group or self.rank is None:
                self.rank, self.world_size = rank, world_size
            else:
                assert (self.rank, self.world_size) == (rank, world_size), "the group has other members"

        def finalize(self):
            if self.rebuild_group:
                assert self.rank >= 0
                self.rank = self.world_size = None

    return KeptEngine


def receiver_class():
    """Return a class of workers that bring weights to the server of their replica."""
    engine = kept_engine()

    class Receiver:
        def __init__(self, server=""):
            self.engine, self.server = engine(), server

        def execute_checkpoint_engine(self, method, *args, **kwargs):
            return getattr(self.engine, method)(*args, **kwargs)

        def update_weights(self, global_steps=None):
            import ray

            if self.server:
                ray.get(ray.get_actor(self.server).set_global_steps.remote(global_steps))

    return Receiver


class Standalone:
    """verl's own server manager, balancer and manager of weights, over replicas with placement groups of their own."""

    def __init__(self, ray, number=3):
        from types import SimpleNamespace

        from omegaconf import OmegaConf
        from verl.checkpoint_engine import base
        from verl.workers.rollout.llm_server import LLMServerManager
        from verl.workers.rollout.replica import RolloutReplicaRegistry

        self.ray, self.folder = ray, Path(tempfile.mkdtemp(prefix="rayguard-check-"))
        RolloutReplicaRegistry.register("small", lambda: replica_class(ray, str(self.folder)))
        base.CheckpointEngineRegistry._registry["kept"] = kept_engine()
        rollout = {
            "_target_": "verl.workers.config.RolloutConfig",
            "name": "small",
            "nnodes": 1,
            "n_gpus_per_node": number,
            "tensor_model_parallel_size": 1,
            "data_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
            "disable_log_stats": True,
            "response_length": TOKENS,
            "prometheus": {"_target_": "verl.workers.config.PrometheusConfig", "enable": False},
            "disaggregation": {"_target_": "verl.workers.config.DisaggregationConfig", "enabled": False},
            "checkpoint_engine": {
                "_target_": "verl.workers.config.CheckpointEngineConfig",
                "backend": "kept",
            },
        }
        self.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}})
        self.servers = LLMServerManager.create(config=self.config)
        self.trainer = ray.remote(num_cpus=0)(receiver_class()).remote()
        engine = SimpleNamespace(backend="kept", custom_backend_module=None, engine_kwargs={})
        self.manager = base.CheckpointEngineManager(engine, self, self.servers.get_replicas())

    world_size = 1  # of the trainer

    def execute_checkpoint_engine(self, method, *args, **kwargs):
        given = {name: value[0] for name, value in kwargs.items()}
        return [self.trainer.execute_checkpoint_engine.remote(method[0], *(one[0] for one in args), **given)]

    def update_weights(self, global_steps=None, mode=None):
        return [self.trainer.update_weights.remote(global_steps)]

    def client(self):
        return self.servers.get_client()

    def active(self):
        return sorted(self.ray.get(self.servers.global_load_balancer.get_all_servers.remote()))

    def pid_of(self, rank):
        """Return the process that serves for a replica now."""
        return self.ray.get(self.servers.rollout_replicas[rank].server_handle.process.remote())

    async def busy(self, most):
        until = time.monotonic() + WAIT_S
        while len(list(self.folder.glob("*"))) < most:
            assert time.monotonic() < until, f"there are no {most} requests"
            await asyncio.sleep(0.01)

    def close(self):
        from ray.util import remove_placement_group

        actors = [self.trainer, self.servers.global_load_balancer]
        for replica in {*self.manager.replicas, *self.servers.rollout_replicas}:
            actors += [*replica.servers, *replica.workers]
            for group in replica.resource_pool.pgs:
                remove_placement_group(group)
        for one in actors:
            self.ray.kill(one)
            with contextlib.suppress(self.ray.exceptions.RayActorError):  # until its name is free
                self.ray.get(one.__ray_ready__.remote(), timeout=WAIT_S)
        until = time.monotonic() + WAIT_S
        while self.ray.available_resources().get("GPU", 0) < self.ray.cluster_resources()["GPU"]:
            assert time.monotonic() < until, "its GPUs are not free"
            threading.Event().wait(0.2)


def replica_class(ray, folder):
    """Return a class of verl's replicas with small servers."""
    from verl.single_controller.ray import RayClassWithInitArgs
    from verl.workers.rollout.replica import RolloutReplica

    class SmallReplica(RolloutReplica):
        def get_ray_class_with_init_args(self):
            return RayClassWithInitArgs(cls=ray.remote(receiver_class()), server=f"small_{self.replica_rank}")

        async def launch_servers(self):
            name = f"small_{self.replica_rank}"
            made = ray.remote(num_cpus=0)(server_class()).options(name=name, max_concurrency=100)
            self.servers.append(made.remote(name, folder, TOKENS, EACH_S))
            self._server_handle = self.servers[0]
            self._server_address = f"{name}:{await self.servers[0].process.remote()}"

    return SmallReplica
