"""Restart options: filled in where the user set none, in whichever process an actor is created."""

import pytest
import ray
import ray.actor

from rayguard.actors import options
from rayguard.actors.guard import guard
from rayguard.actors.mark import Guarding, mark_of
from rayguard.actors.options import filled, install
from rayguard.errors import ConfigError
from rayguard.recovery.tally import TALLY

ONCE = Guarding(idempotent=False)


@pytest.mark.parametrize(
    ("mark", "given", "max_restarts", "max_task_retries"),
    [
        (Guarding(), {}, -1, -1),
        (Guarding(), {"max_restarts": None, "max_task_retries": None}, -1, -1),
        (Guarding(), {"max_restarts": 3}, 3, -1),
        (Guarding(), {"max_restarts": 0}, 0, None),
        (Guarding(), {"max_task_retries": 0}, -1, 0),
        (Guarding(), {"max_restarts": 2, "max_task_retries": 5}, 2, 5),
        (ONCE, {}, -1, 0),
        (ONCE, {"max_restarts": 0}, 0, None),
        (ONCE, {"max_task_retries": 4}, -1, 4),
    ],
)
def test_only_what_the_user_left_open_is_filled_in(mark, given, max_restarts, max_task_retries):
    """An explicit option wins, 0 among them."""
    before = dict(given)
    chosen = filled(mark, given)
    assert chosen["max_restarts"] == max_restarts
    assert chosen.get("max_task_retries") == max_task_retries
    assert given == before


def created_with(actor_class, monkeypatch):
    """Return the options that Ray's own creation would get, without a cluster."""
    seen = {}

    def create(self, args, kwargs, **chosen):
        seen.update(chosen)

    hook = options._hooked(create)
    monkeypatch.setattr(ray.actor.ActorClass, "_remote", hook)
    actor_class.remote()
    return seen


def test_the_hook_fills_in_for_guarded_classes_only(monkeypatch):
    """Everybody else's actors are none of our business."""

    @ray.remote
    class Stranger:
        pass

    @ray.remote
    @guard
    class Guarded:
        pass

    assert "max_restarts" not in created_with(Stranger, monkeypatch)
    assert created_with(Guarded, monkeypatch)["max_restarts"] == -1
    assert created_with(Guarded.options(max_restarts=0), monkeypatch)["max_restarts"] == 0
    assert created_with(Guarded.options(num_cpus=0), monkeypatch)["max_task_retries"] == -1


def test_the_hook_is_put_in_once():
    """However many classes are guarded."""
    install()
    hook = ray.actor.ActorClass._remote
    install()
    assert ray.actor.ActorClass._remote is hook


def test_a_ray_without_the_place_to_hook_is_left_alone(monkeypatch):
    """The class is guarded all the same; only the options stay the user's."""
    before = TALLY.guard_errors["options"]
    monkeypatch.delattr(ray.actor.ActorClass, "_remote")

    @guard
    class Guarded:
        def work(self):
            return 1

    assert Guarded().work() == 1
    assert TALLY.guard_errors["options"] == before + 1


def test_a_bug_in_the_hook_does_not_stop_the_creation(monkeypatch):
    """The actor is created with the user's options."""

    def broken(*_):
        raise RuntimeError("a bug in rayguard")

    @ray.remote(num_cpus=0)
    @guard
    class Guarded:
        pass

    monkeypatch.setattr(options, "_prepared", broken)
    assert created_with(Guarded, monkeypatch) == {"num_cpus": 0}


def test_above_ray_the_same_actor_class_comes_back_with_its_options():
    """Whether Ray's class or ours came first makes no difference."""

    @ray.remote(max_restarts=1)
    class Above:
        def work(self):
            """Document."""

    plain = Above.__ray_metadata__.modified_class.__ray_actor_class__
    assert guard(idempotent=False)(Above) is Above
    assert Above._default_options == {"max_restarts": 1, "max_task_retries": 0}
    assert mark_of(plain) == mark_of(Above.__ray_metadata__.modified_class)
    assert not mark_of(plain).idempotent


def test_a_class_that_its_module_has_defined_before_is_marked_as_late():
    """A worker would import it bare."""
    assert mark_of(guard(type("Here", (), {"__module__": __name__}))).late is False
    assert mark_of(guard(Module)).late is True


class Module:
    """Bound to its name when the guard comes."""


def test_guarding_above_and_below_is_twice():
    """Both reach the same class."""

    @ray.remote
    @guard
    class Both:
        pass

    with pytest.raises(ConfigError, match="guarded twice"):
        guard(Both)


def test_what_is_no_actor_class_is_named():
    """A handle or an ``options()`` wrapper is not what was meant."""

    @ray.remote
    class Plain:
        pass

    with pytest.raises(ConfigError, match="ActorOptionWrapper"):
        guard(Plain.options(num_cpus=0))
    with pytest.raises(ConfigError, match="function"):
        guard(ray.remote(lambda: 1))
