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


class CheckpointEngineManager:
    """Pushes weights to all its replicas."""

    def __init__(self, backend, replicas):
        self.backend, self.replicas, self.pushed = backend, replicas, []

    def remove_replicas(self, replicas):
        self.replicas = [one for one in self.replicas if one not in replicas]

    @auto_await
    async def update_weights(self, global_steps=None):
        if self.backend == "naive":
            return {}
        self.pushed.append([one.replica_rank for one in self.replicas])
        return {"step": global_steps}
