"""A verl that is not as it is known is left as it is, with one clear line."""

from __future__ import annotations

import importlib.util
import logging

import pytest

from rayguard.frameworks.worker_groups import verl
from tests.frameworks.worker_groups import small_verl


@pytest.fixture
def module():
    """The small interface, loaded anew: one that may be changed."""
    spec = importlib.util.spec_from_file_location("small_verl_anew", small_verl.__file__)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def parts(module):
    return module.func_generator, dict(vars(module.RayWorkerGroup))


def test_one_as_it_is_known_is_changed_once(module):
    """Asked a second time, it says the same and changes nothing."""
    before = parts(module)
    assert verl.attach(module)
    after = parts(module)
    assert after[0] is not before[0]
    assert after[1]["execute_all"] is before[1]["execute_all"]
    assert verl.attach(module)
    assert parts(module) == after


def doctored(module, change):
    group = module.RayWorkerGroup
    if change == "func_generator":
        module.func_generator = lambda group, name, **how: None
    elif change == "no func_generator":
        del module.func_generator
    elif change == "no group":
        del module.RayWorkerGroup
    elif change == "_init_with_resource_pool":
        group._init_with_resource_pool = lambda self, pool: None
    elif change == "workers":
        group.workers = lambda self: []
    elif change == "name_prefix":
        group.__init__ = lambda self: None
    else:
        delattr(group, change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("func_generator", "func_generator"),
        ("no func_generator", "func_generator"),
        ("no group", "RayWorkerGroup"),
        ("_init_with_resource_pool", "RayWorkerGroup._init_with_resource_pool"),
        ("execute_all_async", "RayWorkerGroup.execute_all_async"),
        ("execute_rank_zero_async", "RayWorkerGroup.execute_rank_zero_async"),
        ("workers", "RayWorkerGroup.workers"),
        ("name_prefix", "RayWorkerGroup."),
    ],
)
def test_one_of_another_shape_is_not_touched(module, change, said, caplog):
    """It says in one line which part it is, and what is missing for it."""
    doctored(module, change)
    before = dict(vars(module)), dict(vars(getattr(module, "RayWorkerGroup", object)))
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not verl.attach(module)
    assert (dict(vars(module)), dict(vars(getattr(module, "RayWorkerGroup", object)))) == before
    assert len(caplog.records) == 1
    assert f"({said}" in caplog.text
