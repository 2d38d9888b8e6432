"""Where actors are created: one wrap, steps around it, and a Ray that has moved one of the names."""

import logging

import pytest
import ray
from ray.actor import ActorClass

from rayguard.actors.guard import restart_options
from rayguard.actors.guard.guard import guard
from rayguard.actors.mark import mark_of
from rayguard.errors import CapabilityOffError
from rayguard.ray_internals import actor_classes, actor_creation
from rayguard.ray_internals.capability import switched_off


@pytest.fixture
def steps(monkeypatch):
    """No steps but those that a test adds."""
    found = {}
    monkeypatch.setattr(actor_creation, "_steps", found)
    return found


@pytest.fixture
def moved(monkeypatch):
    """Have a capability miss one name, as if nobody had asked for it before; and put all back."""
    changed = []

    def miss(capability, word):
        monkeypatch.setitem(capability.needs, word, capability.needs[word] + "_as_it_was")
        capability.forget()
        changed.append(capability)

    yield miss
    monkeypatch.undo()
    for capability in changed:
        capability.forget()


def depth(method):
    """Return how many wraps there are around Ray's own method."""
    wraps = 0
    while (method := getattr(method, "__wrapped__", None)) is not None:
        wraps += "rayguard" in method.__module__
    return wraps


def created(actor_class, **options):
    """Create an actor without a cluster; return what the steps and Ray's own creation had to say, in order."""
    said = []

    def create(_self, _args, _kwargs, **chosen):
        said.append(chosen)
        return "handle"

    assert actor_creation.wrapped(create)(actor_class, (), {}, **options) == "handle"
    return said


def step(said, name):
    def before(_actor_class, options):
        said.append(f"before {name}")
        return {**options, name: len(said)}, lambda handle: said.append(f"after {name} {handle}")

    return before


def test_steps_stand_around_a_creation_as_if_each_were_wrapped_around_those_before(steps):
    """The last one's options come first, and its word comes last; without an ``after`` nothing comes."""
    said = []
    actor_creation.add("inner", step(said, "inner"))
    actor_creation.add("outer", step(said, "outer"))
    actor_creation.add("silent", lambda _actor_class, options: (options, None))
    assert created(object(), name="x") == [{"name": "x", "outer": 1, "inner": 2}]
    assert said == ["before outer", "before inner", "after inner handle", "after outer handle"]


def test_a_step_that_is_added_again_takes_its_own_place(steps):
    """However often a module is told to install itself."""
    said = []
    for _ in range(1100):
        actor_creation.add("one", step(said, "one"))
        actor_creation.add("two", step(said, "two"))
    created(object())
    assert said == ["before two", "before one", "after one handle", "after two handle"]
    assert depth(ActorClass._remote) <= 1


def test_what_a_step_raises_reaches_whoever_creates_the_actor(steps):
    """A mistake in an actor's own ``runtime_env`` is told before anything is made."""

    def refuse(_actor_class, _options):
        raise ValueError("no")

    actor_creation.add("strict", refuse)
    with pytest.raises(ValueError, match="no"):
        created(object())


def test_a_ray_without_the_place_leaves_creations_alone_and_says_so_once(steps, moved, caplog):
    """And whoever comes for it is told that it is not there."""
    moved(actor_creation.CREATION, "create")
    before = ActorClass._remote
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert [actor_creation.add("one", step([], "one")) for _ in range(1100)] == [False] * 1100
    assert ActorClass._remote is before
    (line,) = caplog.messages
    assert "actor creation: off" in line
    assert "ray.actor.ActorClass._remote" in switched_off()["actor creation"]


@pytest.mark.parametrize(
    ("capability", "word"),
    [(one, word) for one in (actor_classes.CLASSES, actor_creation.CREATION) for word in one.needs],
    ids=lambda value: getattr(value, "name", value),
)
def test_with_any_name_moved_a_users_classes_and_actors_are_what_they_are(moved, caplog, capability, word):
    """Guarded below ``ray.remote`` they work as before; above it the same class comes back."""
    moved(capability, word)

    class Plain:
        pass

    with caplog.at_level(logging.WARNING, "rayguard"):
        above, below = ray.remote(num_cpus=0)(Plain), ray.remote(guard(type("Below", (), {})))
        assert guard(above) is above
        restart_options.install()
        assert created(below, num_cpus=1)[0]["num_cpus"] == 1
        assert created(above) is not None
    assert sum(f"{capability.name}: off" in line for line in caplog.messages) == 1
    assert len(caplog.messages) == 1, "and nothing else is said"


def test_actor_classes_that_keep_their_class_elsewhere_are_noticed(moved, monkeypatch):
    """Attributes of objects are no names of a module: they are tried."""
    actor_classes.CLASSES.forget()
    monkeypatch.setattr(ray, "remote", lambda **_: lambda plain: plain)
    with pytest.raises(CapabilityOffError, match="test failed with Ray"):
        actor_classes.CLASSES.found()
    actor_classes.CLASSES.forget()


def test_the_class_behind_an_actor_class_is_the_users(moved):
    """And another language has none."""

    class Plain:
        pass

    above = ray.remote(max_restarts=3)(Plain)
    assert actor_classes.is_actor_class(above)
    assert not actor_classes.is_actor_class(Plain)
    assert actor_classes.written_class(above) is Plain
    assert actor_classes.default_options(above) == {"max_restarts": 3}
    foreign = type("Foreign", (), {"__ray_metadata__": type("Metadata", (), {"modified_class": None})})
    assert actor_classes.written_class(foreign) is None
    assert mark_of(Plain) is None


def test_only_a_handle_has_an_actors_id():
    """Whatever else a user passes around."""
    handle = type("Handle", (), {})()
    vars(handle)["_ray_actor_id"] = b"\1\2"
    assert actor_classes.actor_id(handle) == "0102"
    assert [actor_classes.actor_id(one) for one in (1, "a", None, object(), [handle])] == [""] * 5
