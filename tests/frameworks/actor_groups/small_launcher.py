"""The interface of OpenRLHF's groups of actors, written small: for tests where it is not installed.

What a group has and what it is called is as in ``openrlhf.trainer.ray.launcher``, so that the same checks run
on the real one (``tests.check_frameworks.openrlhf_groups``); how it is done is not.
"""

from __future__ import annotations

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class BaseModelActor:
    """A rank, before it has a model."""

    def __init__(self, world_size, rank, master_addr, master_port):
        self._world_size, self._rank = world_size, rank
        self._master_addr, self._master_port = master_addr or "localhost", master_port or 1

    def get_master_addr_port(self):
        """Say where the ranks meet."""
        return self._master_addr, self._master_port

    def _setup_distributed(self, strategy):
        self.strategy = strategy
        strategy.setup_distributed()

    def execute_batch(self, method_name, all_data, start_idx, end_idx):
        """Call a method for each of a batch."""
        items = [dict(zip(all_data, one, strict=True)) for one in zip(*all_data.values(), strict=True)]
        return [getattr(self, method_name)(**item) for item in items[start_idx:end_idx]]


class RayActorGroup:
    """A group of ranks."""

    def __init__(self, num_nodes, num_gpus_per_node, ray_actor_type, pg=None, num_gpus_per_actor=1):
        self._num_nodes, self._num_gpus_per_node = num_nodes, num_gpus_per_node
        self.ray_actor_type, self.duplicate_actors = ray_actor_type, 1
        self._initiate_actors(pg, num_gpus_per_actor)

    def _initiate_actors(self, pg, num_gpus_per_actor):
        world_size = self._num_nodes * self._num_gpus_per_node
        if pg is None:
            pg = placement_group([{"CPU": 0.5}] * world_size)
            ray.get(pg.ready())
        self._actor_handlers = []
        address = (None, None)
        for rank in range(world_size):
            where = PlacementGroupSchedulingStrategy(pg, placement_group_bundle_index=rank)
            options = {"num_cpus": 0.5 * num_gpus_per_actor, "scheduling_strategy": where}
            made = self.ray_actor_type.options(**options).remote(world_size, rank, *address)
            self._actor_handlers.append(made)
            address = ray.get(self._actor_handlers[0].get_master_addr_port.remote())

    def async_init_model_from_pretrained(self, *args, **kwargs):
        """Begin to make the model."""
        return [actor.init_model_from_pretrained.remote(*args, **kwargs) for actor in self._actor_handlers]

    def async_save_model(self):
        """Begin to save the model."""
        return [actor.save_model.remote() for actor in self._actor_handlers]

    def async_run_method(self, method_name, *args, **kwargs):
        """Begin a method of each."""
        return [getattr(actor, method_name).remote(*args, **kwargs) for actor in self._actor_handlers]

    def async_run_method_batch(self, method_name, **kwargs):
        """Begin a method of each, with its share."""
        total, ranks = len(next(iter(kwargs.values()))), len(self._actor_handlers)
        if total < ranks:
            raise ValueError(f"Insufficient batch size: {total}")
        size = -(-total // ranks)
        refs = []
        for rank, actor in enumerate(self._actor_handlers):
            share = {key: value[rank * size : (rank + 1) * size] for key, value in kwargs.items()}
            count = len(next(iter(share.values())))
            refs.append(actor.execute_batch.remote(method_name, ray.put(share), 0, count))
        return refs
