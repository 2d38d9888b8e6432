"""Beside verl's own tests: rayguard is in a driver and its workers where the plugin is on, and nowhere else."""

from __future__ import annotations

import os
import sys

import ray
from verl.single_controller.base import Worker
from verl.single_controller.ray.base import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


@ray.remote
class Bystander(Worker):
    """Has what each worker has."""


def is_loaded():
    """Say whether this process has loaded any of rayguard."""
    return any(name.partition(".")[0] == "rayguard" for name in sys.modules)


def test_rayguard_is_where_the_plugin_is():
    """A group is looked after, and its worker watched, or neither."""
    ray.init(num_cpus=100)
    try:
        group = RayWorkerGroup(RayResourcePool([1], use_gpu=False), RayClassWithInitArgs(cls=Bystander))
        found = {
            "driver": is_loaded(),
            "group": "_rayguard_family" in vars(group),
            "worker": group.execute_func_rank_zero(is_loaded),
        }
    finally:
        ray.shutdown()
    assert found == dict.fromkeys(found, "RAYGUARD_PLUGIN" in os.environ)
