"""An OpenRLHF whose groups are not as they are known is left as it is, with one clear line."""

from __future__ import annotations

import importlib.util
import logging

import pytest

from rayguard.frameworks.actor_groups import openrlhf
from tests.frameworks.actor_groups import small_launcher


@pytest.fixture
def launcher():
    """The small interface, loaded anew: one that may be changed."""
    spec = importlib.util.spec_from_file_location("small_launcher_anew", small_launcher.__file__)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def parts(launcher):
    return launcher.placement_group, dict(vars(getattr(launcher, "RayActorGroup", object)))


def test_one_as_it_is_known_is_changed_once(launcher):
    """Asked a second time, it says the same and changes nothing."""
    before = parts(launcher)
    assert openrlhf.attach(launcher)
    after = parts(launcher)
    changed = {name for name, value in after[1].items() if before[1].get(name) is not value}
    sends = {name for name in before[1] if name.startswith("async_")}
    assert changed == {"_initiate_actors", "_actor_handlers", *sends}
    assert openrlhf.attach(launcher)
    assert parts(launcher) == after


def another_sender(self, name):
    return [actor.remote(name) for actor in self._actor_handlers]


def another_way(self):
    return [actor.save_model.options(name="save").remote() for actor in self._actor_handlers]


def doctored(launcher, change):
    group = launcher.RayActorGroup
    if change == "no group":
        del launcher.RayActorGroup
    elif change == "no place":
        launcher.placement_group = None
    elif change == "another sender":
        group.async_fit_actor_model = another_sender
    elif change == "other parameters":
        group._initiate_actors = lambda self, cfg: self._actor_handlers
    elif change == "other handles":
        group.async_save_model = lambda self: [actor.save_model.remote() for actor in self._actors]
    elif change == "another way":
        group.async_save_model = another_way
    elif change == "a property of its own":
        group._actor_handlers = property(lambda self: [])
    else:
        delattr(group, change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no group", "RayActorGroup"),
        ("no place", "placement_group"),
        ("another sender", "RayActorGroup.async_fit_actor_model"),
        ("other parameters", "RayActorGroup._initiate_actors"),
        ("other handles", "RayActorGroup.async_save_model, without _actor_handlers"),
        ("another way", "RayActorGroup.async_save_model, which sends in another way"),
        ("a property of its own", "RayActorGroup._actor_handlers"),
        ("async_run_method_batch", "RayActorGroup.async_run_method_batch"),
        ("async_init_model_from_pretrained", "RayActorGroup.async_init_model_from_pretrained"),
    ],
)
def test_one_of_another_shape_is_not_touched(launcher, change, said, caplog):
    """It says in one line which part it is, and what is missing for it."""
    doctored(launcher, change)
    before = parts(launcher)
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not openrlhf.attach(launcher)
    assert parts(launcher) == before
    assert len(caplog.records) == 1
    assert f"({said})" in caplog.text
