"""verl's interface of rollouts in small, without Ray: a client, a load balancer and servers with the same contract.

Actors are objects here: a handle runs a call at once. A server's plan says how each of its answers ends.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from concurrent.futures import Future
from types import SimpleNamespace


class Handle:
    """Stands for an actor, as Ray's handle does."""

    def __init__(self, instance):
        self.instance, self._ray_actor_id = instance, os.urandom(16)
        self.dead = None  # the error of every call

    @property
    def __ray_call__(self):
        return SimpleNamespace(remote=lambda function, *args: self.made(function, self.instance, *args))

    @property
    def __ray_ready__(self):
        return SimpleNamespace(remote=lambda: self.made(lambda: True))

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return SimpleNamespace(remote=functools.partial(self.made, getattr(self.instance, name)))

    def made(self, function, *args, **kwargs):
        answer = Future()
        if self.dead is not None:
            answer.set_exception(self.dead)
            return Reference(answer)
        try:
            answer.set_result(function(*args, **kwargs))
        except Exception as error:
            answer.set_exception(error)
        return Reference(answer)


class Reference:
    """What a call is answered by later."""

    def __init__(self, answer):
        self._answer = answer

    def future(self):
        return self._answer

    def __await__(self):
        return asyncio.wrap_future(self._answer).__await__()


class Server:
    """Answers with its name and step; raises what stands in its plan."""

    def __init__(self, name, step=3):
        self.name, self.global_steps, self.plan, self.asked = name, step, [], []

    def abort_all_requests(self):
        """End all, before an update."""

    def generate(self, request_id, prompt_ids, sampling_params):
        self.asked.append(request_id)
        if self.plan:
            raise self.plan.pop(0)
        return SimpleNamespace(
            token_ids=[*prompt_ids, self.name], extra_fields={"global_steps": self.global_steps}
        )


class GlobalRequestLoadBalancer:
    """Sticky by a request's name, or else the server with the fewest requests."""

    def __init__(self, servers):
        self._servers = dict(servers)
        self._inflight_requests = dict.fromkeys(servers, 0)
        self._request_id_to_server = {}

    def acquire_server(self, request_id):
        server = self._request_id_to_server.get(request_id)
        if server not in self._inflight_requests:
            if not self._inflight_requests:
                raise RuntimeError("No available servers in load balancer")
            server = min(self._inflight_requests, key=self._inflight_requests.get)
        self._request_id_to_server[request_id] = server
        self._inflight_requests[server] += 1
        return server, self._servers[server]

    def release_server(self, server_id):
        if self._inflight_requests.get(server_id):
            self._inflight_requests[server_id] -= 1

    def add_servers(self, servers):
        self._inflight_requests.update(dict.fromkeys(servers, 0))
        self._servers.update(servers)

    def remove_servers(self, server_ids):
        for one in server_ids:
            self._inflight_requests.pop(one, None)
            self._servers.pop(one, None)

    def get_all_servers(self):
        return list(self._inflight_requests)


class LLMServerClient:
    """Asks the balancer for a server, asks the server, and gives it back."""

    def __init__(self, config, load_balancer_handle=None):
        self.config, self._load_balancer = config, load_balancer_handle

    async def _acquire_server(self, request_id, **extra):
        return await self._load_balancer.acquire_server.remote(request_id=request_id)

    def _release_server(self, server_id):
        self._load_balancer.release_server.remote(server_id=server_id)

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        server_id, server = await self._acquire_server(request_id)
        try:
            return await server.generate.remote(request_id, prompt_ids, sampling_params, **kwargs)
        finally:
            self._release_server(server_id)


def auto_await(function):
    """Run it where nobody does."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        made = function(*args, **kwargs)
        caller = inspect.currentframe().f_back
        return made if caller.f_code.co_flags & inspect.CO_COROUTINE else asyncio.run(made)

    return wrapper


class RayResourcePool:
    """The placement groups of one replica."""

    def __init__(self):
        self.pgs = [object()]


def placement_group(**_):
    """Make one."""
    return object()


class Replica:
    """A server and a worker with GPUs of their own. Once it is up it has the weights of the checkpoint alone."""

    rollout_mode = SimpleNamespace(value="standalone")

    def __init__(self, replica_rank, config, model_config, gpus_per_node=8, name_suffix=""):
        self.replica_rank, self.config, self.model_config = replica_rank, config, model_config
        self.gpus_per_node, self.name_suffix = gpus_per_node, f"_{name_suffix}" * bool(name_suffix)
        self.servers, self.workers, self.resource_pool, self.server_address = [], [], None, None

    @property
    def server_handle(self):
        return self.servers[0]

    async def init_standalone(self):
        self.resource_pool = RayResourcePool()
        self.servers, self.workers = [Handle(Server(f"{self.replica_rank}", step=None))], [Handle(object())]
        self.server_address = f"10.0.0.1:{os.urandom(3).hex()}"


class LLMServerManager:
    """Makes replicas, and a balancer of their servers."""

    def __init__(self, config, number=3):
        self.config, self.number = config, number

    async def _initialize_llm_servers(self):
        self.rollout_replicas = [
            Replica(replica_rank=rank, config=self.config, model_config="model", name_suffix="of us")
            for rank in range(self.number)
        ]
        await asyncio.gather(*(one.init_standalone() for one in self.rollout_replicas))
        self.server_handles = [one.server_handle for one in self.rollout_replicas]
        self.server_addresses = [one.server_address for one in self.rollout_replicas]

    async def _init_global_load_balancer(self):
        servers = dict(zip(self.server_addresses, self.server_handles, strict=True))
        self.global_load_balancer = Handle(GlobalRequestLoadBalancer(servers))


class CheckpointEngine:
    """Keeps its group from one update to the next, if it is not told otherwise, and takes no other members."""

    wire_format = "named_tensors"

    def __init__(self, rebuild_group=False):
        self.rebuild_group, self.size = rebuild_group, None

    def init_process_group(self, size):
        if self.rebuild_group or self.size is None:
            self.size = size
        assert self.size == size

    def finalize(self):
        if self.rebuild_group:
            assert self.size is not None, "it is in no group"
            self.size = None


class Group:
    """Handles, each with an engine."""

    def __init__(self, handles, engines, **engine):
        self._workers, self.world_size = handles, len(handles)
        self.engines = [engines.setdefault(one, CheckpointEngine(**engine)) for one in handles]

    def execute_checkpoint_engine(self, method, *args):
        return [
            handle.made(getattr(engine, name), *(one[at] for one in args))
            for at, (handle, engine, name) in enumerate(zip(self._workers, self.engines, method, strict=True))
        ]


class CheckpointEngineManager:
    """Pushes weights to all its replicas."""

    backend_cls = CheckpointEngine

    def __init__(self, backend, replicas, **engine):
        self.backend, self.replicas, self.pushed = backend, replicas, []
        self.config = SimpleNamespace(engine_kwargs={backend: engine})
        self.engine, self.engines = engine, {}
        self.actor_wg = Group([Handle(object())], self.engines, **engine)
        self.error = None  # of the next update, as it has reached the replicas

    def add_replicas(self, replicas):
        self.replicas.extend(replicas)

    def remove_replicas(self, replicas):
        self.replicas = [one for one in self.replicas if one not in replicas]

    def build_process_group(self, rollout):
        assert self.backend_cls is CheckpointEngine
        size = self.actor_wg.world_size + rollout.world_size
        for group in (self.actor_wg, rollout):
            number = group.world_size
            for one in group.execute_checkpoint_engine(["init_process_group"] * number, [size] * number):
                one.future().result()

    @auto_await
    async def update_weights(self, global_steps=None):
        if self.backend == "naive":
            return {}
        self.pushed.append([one.replica_rank for one in self.replicas])
        for replica in self.replicas:
            for server in replica.servers:
                await server.abort_all_requests.remote()
        workers = [one for each in self.replicas for one in each.workers]
        self.build_process_group(Group(workers, self.engines, **self.engine))
        if self.error is not None:
            raise self.error
        for replica in self.replicas:
            for server in replica.servers:
                server.instance.global_steps = global_steps
        return {"step": global_steps}
