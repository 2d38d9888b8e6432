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
