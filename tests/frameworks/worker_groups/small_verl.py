"""The interface of verl's groups of workers, written small: for tests where neither framework is installed.

What a group has and what it is called is as in ``verl.single_controller.ray.base``, so that the same checks run
on the real one (``checks_verl``); how it is done is not.
"""

from __future__ import annotations

import os
from enum import Enum, auto

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

MAGIC = "attrs_3141562937"


class Dispatch(Enum):
    """How a call's arguments are shared out."""

    ONE_TO_ALL = auto()
    DP_COMPUTE = auto()


def register(dispatch_mode, *, blocking=True):
    """Mark a method as one that a group calls."""

    def marked(method):
        setattr(method, MAGIC, {"dispatch_mode": dispatch_mode, "blocking": blocking})
        return method

    return marked


class Worker:
    """The base of all workers."""

    def __init__(self):
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    @register(Dispatch.ONE_TO_ALL)
    def execute_with_func_generator(self, function):
        """Run a function within the worker."""
        return function(self)


def func_generator(self, method_name, dispatch_fn, collect_fn, execute_fn, blocking):
    """Make one method of a group."""

    def func(*args, **kwargs):
        args, kwargs = dispatch_fn(self, *args, **kwargs)
        output = execute_fn(method_name, *args, **kwargs)
        return collect_fn(self, ray.get(output) if blocking else output)

    return func


class RayResourcePool:
    """Where the workers of a group live."""

    def __init__(self, process_on_nodes, use_gpu=True, max_colocate_count=1):
        self.store, self.world_size, self._placed = process_on_nodes, sum(process_on_nodes), None

    def placed(self):
        """Reserve the place, once."""
        if self._placed is None:
            self._placed = placement_group([{"CPU": 0.5}] * self.world_size)
            ray.get(self._placed.ready())
        return self._placed


class RayClassWithInitArgs:
    """A class of workers, and what they are made with."""

    def __init__(self, cls, *args, **kwargs):
        self.cls, self.args, self.kwargs = cls, args, kwargs


class RayWorkerGroup:
    """A group of workers, or a part of one that was spawned from it."""

    def __init__(self, resource_pool=None, ray_cls_with_init=None, bin_pack=True, name_prefix=None, **of):
        self._workers, self._worker_names = [], of.get("worker_names") or []
        self._master_addr, self._master_port = None, None
        self.name_prefix, self.ray_cls_with_init = name_prefix or os.urandom(3).hex(), ray_cls_with_init
        if resource_pool is None:
            self._workers = [ray.get_actor(name) for name in self._worker_names]
        else:
            self._init_with_resource_pool(
                resource_pool, ray_cls_with_init, bin_pack, of.get("detached", False)
            )
        self._bind(func_generator)

    def _init_with_resource_pool(self, resource_pool, ray_cls_with_init, bin_pack, detached):
        self._master_addr, self._master_port = "localhost", "0"
        for rank in range(resource_pool.world_size):
            where = PlacementGroupSchedulingStrategy(resource_pool.placed(), rank)
            variables = {"RANK": str(rank), "WORLD_SIZE": str(resource_pool.world_size)}
            name = f"{self.name_prefix}Worker_0:{rank}"
            made = ray_cls_with_init.cls.options(
                name=name, num_cpus=0.5, scheduling_strategy=where, runtime_env={"env_vars": variables}
            )
            self._workers.append(made.remote(*ray_cls_with_init.args, **ray_cls_with_init.kwargs))
            self._worker_names.append(name)

    def _bind(self, generate):
        for name in dir(self.ray_cls_with_init.cls):
            said = getattr(getattr(self.ray_cls_with_init.cls, name, None), MAGIC, None)
            if said is not None:
                to_all = said["dispatch_mode"] is Dispatch.ONE_TO_ALL
                shared = _to_all if to_all else _each_its_own
                setattr(self, name, generate(self, name, shared, _all, self.execute_all, said["blocking"]))

    def spawn(self, prefix_set):
        """Return a group for each role, with the role's methods under their own names."""
        found = {}
        for role in prefix_set:
            part = type(self)(ray_cls_with_init=self.ray_cls_with_init, worker_names=self._worker_names)
            for name in [name for name in dir(part) if name.startswith(f"{role}_")]:
                setattr(part, name.removeprefix(f"{role}_"), getattr(part, name))
            found[role] = part
        return found

    def execute_rank_zero_async(self, method_name, *args, **kwargs):
        """Send a call to the first worker."""
        return getattr(self._workers[0], method_name).remote(*args, **kwargs)

    def execute_all(self, method_name, *args, **kwargs):
        """Send a call to all workers."""
        return self.execute_all_async(method_name, *args, **kwargs)

    def execute_all_async(self, method_name, *args, **kwargs):
        """Send a call to all workers, to each its share."""
        return [
            getattr(worker, method_name).remote(
                *(arg[rank] for arg in args), **{key: value[rank] for key, value in kwargs.items()}
            )
            for rank, worker in enumerate(self._workers)
        ]

    @property
    def workers(self):
        """The handles."""
        return self._workers

    @property
    def world_size(self):
        """How many there are."""
        return len(self._workers)


def create_colocated_worker_cls(class_dict):
    """Return a class of workers in which those of several roles share a process."""
    classes = {role: made.cls.__ray_actor_class__ for role, made in class_dict.items()}
    given = {role: (made.args, made.kwargs) for role, made in class_dict.items()}

    class WorkerDict(Worker):
        def __init__(self):
            super().__init__()
            self.worker_dict = {role: cls(*given[role][0], **given[role][1]) for role, cls in classes.items()}

    for role, cls in classes.items():
        for name in dir(cls):
            if hasattr(getattr(cls, name), MAGIC):
                setattr(WorkerDict, f"{role}_{name}", _of_role(role, name, getattr(cls, name)))
    return RayClassWithInitArgs(ray.remote(WorkerDict))


def _of_role(role, name, method):
    def of_role(self, *args, **kwargs):
        return getattr(self.worker_dict[role], name)(*args, **kwargs)

    setattr(of_role, MAGIC, getattr(method, MAGIC))
    return of_role


def _to_all(group, *args, **kwargs):
    return [[arg] * group.world_size for arg in args], {
        key: [value] * group.world_size for key, value in kwargs.items()
    }


def _each_its_own(_group, *args, **kwargs):
    return args, kwargs


def _all(_group, output):
    return output
