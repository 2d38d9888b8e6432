"""Restart options: filled in where the user set none, in whichever process an actor is created."""

import pytest
import ray
import ray.actor

from rayguard.actors.guard import restart_options
from rayguard.actors.guard.guard import guard
from rayguard.actors.guard.mixins import RolloutMixin
from rayguard.actors.guard.restart_options import filled, install
from rayguard.actors.mark import Guarding, StateRule, mark_of
from rayguard.actors.methods import bare, is_guarded
from rayguard.errors import ConfigError
from rayguard.ray_internals import actor_creation
from rayguard.ray_internals.capability import switched_off
from rayguard.recovery.memory_policy import MemoryPolicy

TWICE = Guarding(state=StateRule.STATELESS, idempotent=True)
ONCE = Guarding(state=StateRule.STATELESS)
SAYS = Guarding(state=StateRule.RESTORABLE)  # Ray repeats what was cut off; the next life decides


@pytest.mark.parametrize(
    ("mark", "given", "max_restarts", "max_task_retries"),
    [
        *(
            (mark, given, restarts, repeats)
            for mark in (TWICE, SAYS)
            for given, restarts, repeats in (
                ({}, -1, -1),
                ({"max_restarts": None, "max_task_retries": None}, -1, -1),
                ({"max_restarts": 3}, 3, -1),
                ({"max_restarts": 0}, 0, None),
                ({"max_task_retries": 0}, -1, 0),
                ({"max_restarts": 2, "max_task_retries": 5}, 2, 5),
            )
        ),
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


@pytest.mark.parametrize(
    ("options", "given", "told"),
    [
        ({"state": "none"}, {}, True),
        ({"state": "none"}, {"max_restarts": 0}, False),
        ({}, {"max_restarts": -1}, False),
    ],
    ids=str,
)
def test_the_supervisor_gets_word_of_the_actors_that_are_restored(options, given, told, monkeypatch):
    """It may end those alone; where the user asked Ray for restarts, bare Ray would go on."""
    words = []
    monkeypatch.setattr(
        restart_options, "leave_word", lambda name, **word: words.extend([name] * word["restored"])
    )
    monkeypatch.setattr(restart_options.actor_classes, "actor_id", lambda handle: handle)
    actor_class = ray.remote(guard(**options)(type("Made", (), {})))
    chosen, after = restart_options._before(actor_class, given)
    after("an actor")
    assert words == ["an actor"] * told, chosen


@pytest.mark.parametrize("idempotent", [None, True, False])
@pytest.mark.parametrize(
    "given",
    [{}, {"max_restarts": None}, {"max_restarts": 3}, {"max_task_retries": 2}, {"num_cpus": 0}],
    ids=str,
)
def test_options_of_an_actor_whose_state_nobody_knows_stay_as_they_are(idempotent, given):
    """That its calls may run twice does not say that it may begin anew."""
    assert filled(Guarding(idempotent=idempotent), given) == given


class Says:
    """Has a state and can say it."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Short:
    """Does so by the shorter names."""

    snapshot, restore = Says.state_dict, Says.load_state_dict


class Renamed:
    """By names of its own."""

    save, load = Says.state_dict, Says.load_state_dict


@pytest.mark.parametrize(
    ("base", "options", "state"),
    [
        (object, {}, StateRule.UNSAID),
        (object, {"idempotent": True}, StateRule.UNSAID),
        (object, {"state": "none"}, StateRule.STATELESS),
        (object, {"state": None}, StateRule.UNSAID),
        (object, {"memory": MemoryPolicy(recycle="stateless")}, StateRule.STATELESS),
        (object, {"memory": MemoryPolicy()}, StateRule.UNSAID),
        (Says, {}, StateRule.RESTORABLE),
        (Says, {"state": "none"}, StateRule.STATELESS),
        (Says, {"state": ("state_dict", "load_state_dict")}, StateRule.RESTORABLE),
        (Short, {}, StateRule.RESTORABLE),
        (Renamed, {}, StateRule.UNSAID),
        (Renamed, {"state": ["save", "load"]}, StateRule.RESTORABLE),
        (
            Renamed,
            {"state": ["save", "load"], "memory": MemoryPolicy(recycle="stateless")},
            StateRule.RESTORABLE,
        ),
        (RolloutMixin, {}, StateRule.STATELESS),
    ],
)
def test_what_a_class_is_shows_or_is_said(base, options, state):
    """What its user says comes first; half a pair of methods is no way to have a state back."""
    assert mark_of(guard(**options)(type("Made", (base,), {}))).state is state
    if base is Says and not isinstance(options.get("state"), tuple):
        half = type("Half", (base,), {"load_state_dict": None})
        expected = StateRule.UNSAID if "state" not in options else state
        assert mark_of(guard(**options)(half)).state is expected


async def _later(self):
    return {}


def _many(self):
    yield {}


def _loose():
    return {}


UNFIT = {
    "coroutine": _later,
    "generator": _many,
    "value": {},
    "none": None,
    "path": lambda self, path: path,
    "property": property(_later),
    "static": staticmethod(_loose),
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT)
def test_what_cannot_be_called_between_two_calls_says_no_state(unfit):
    """A ``snapshot`` that writes to a path, a coroutine, a property: the guard could not have the state."""
    cls = type("Cls", (Short,), {"snapshot": unfit})
    assert mark_of(guard(cls)).state is StateRule.UNSAID
    with pytest.raises(ConfigError, match="Cls cannot hand its state over by snapshot and restore"):
        guard(state=("snapshot", "restore"))(type("Cls", (Short,), {"snapshot": unfit}))


def test_a_subclass_may_say_what_its_base_does_not_and_the_other_way_round():
    """It is found where it is used; what the base's user said of it holds for both."""
    base = guard(type("Base", (), {}))
    assert mark_of(base).state is StateRule.UNSAID
    assert mark_of(type("Sub", (Says, base), {})).state is StateRule.RESTORABLE
    says = guard(type("Base", (Says,), {}))
    assert mark_of(type("Sub", (says,), {"state_dict": None})).state is StateRule.UNSAID
    none = guard(state="none")(type("Base", (), {}))
    assert mark_of(type("Sub", (Says, none), {})).state is StateRule.STATELESS
    named = guard(state=("save", "load"))(type("Base", (Renamed,), {}))
    assert mark_of(type("Sub", (named, Says), {})).state_methods == ("save", "load")


def test_what_a_class_has_of_torch_says_the_weights_alone():
    """Not the optimizer beside them, nor the step: nobody would see that these began anew."""
    import torch

    class Own(torch.nn.Module):
        def state_dict(self, *args, **kwargs):
            return super().state_dict(*args, **kwargs)

    class Both(Own):
        def load_state_dict(self, state, *args, **kwargs):
            return super().load_state_dict(state, *args, **kwargs)

    class Model(torch.nn.Module):
        pass

    class Decorated(Both):
        state_dict = torch.no_grad()(Both.state_dict)

    said = ("state_dict", "load_state_dict")
    states = {cls: mark_of(guard(cls)).state for cls in (Model, Own, Both, Decorated)}
    assert [state is StateRule.RESTORABLE for state in states.values()] == [False, False, True, True]
    assert mark_of(guard(state=said)(type("Said", (torch.nn.Module,), {}))).state is StateRule.RESTORABLE
    assert mark_of(guard(type("Sgd", (torch.optim.SGD,), {}))).state is StateRule.UNSAID


def test_the_guard_calls_what_its_user_wrote():
    """The one that says the state has no wrapper, and that of the other is passed by: no call of a caller's."""

    class Base(Short):
        def restore(self, state):
            return "base", state

    class Other(Short):
        def restore(self, state):
            return "other", state

    own = guard(type("Own", (), {**vars(Short), **vars(Base)}))
    inheriting = guard(type("Inheriting", (Base,), {}))
    both = type("Both", (inheriting, type("Next", (Other, Base), {})), {})
    for cls, owner in ((own, "base"), (inheriting, "base"), (both, "other")):
        assert not is_guarded(cls.snapshot)
        assert is_guarded(cls.restore)
        found = bare(cls(), "restore")
        assert not is_guarded(found)
        assert found(3) == (owner, 3)
    instance = own()
    instance.restore = list
    assert bare(instance, "restore") is list


def test_methods_of_a_derived_class_are_guarded_where_an_actor_is_made_of_it(monkeypatch):
    """Else the state would be kept while they run, and not after them."""

    class Base:
        def __init__(self):
            self.n = 0

        def step(self):
            return self.n

    class Sub(guard(Base), Says):
        def __init__(self):
            super().__init__()
            self.m = 1

        def step(self):
            return super().step() + self.m

        def more(self):
            return 2

    actor_class = ray.remote(Sub)
    assert created_with(actor_class, monkeypatch)["max_restarts"] == -1
    modified = actor_class.__ray_metadata__.modified_class
    assert all(is_guarded(vars(modified)[name]) for name in ("__init__", "step", "more", "load_state_dict"))
    assert not is_guarded(modified.state_dict)
    assert not is_guarded(Sub.more), "the class itself stays as it is"
    made = modified()
    assert (made.step(), made.more()) == (1, 2)


def test_a_rollout_says_so_without_a_word_of_its_user():
    """Its engine and weights are restored, and sampling may run twice."""
    mark = mark_of(type("Rollout", (RolloutMixin,), {}))
    assert (mark.state, mark.idempotent) == (StateRule.STATELESS, True)


def created_with(actor_class, monkeypatch):
    """Return the options that Ray's own creation would get, without a cluster."""
    seen = {}

    def create(self, args, kwargs, **chosen):
        seen.update(chosen)

    monkeypatch.setattr(ray.actor.ActorClass, "_remote", actor_creation.wrapped(create))
    actor_class.remote()
    return seen


def test_the_hook_fills_in_for_guarded_classes_only(monkeypatch):
    """Everybody else's actors are none of our business."""

    @ray.remote
    class Stranger:
        pass

    @ray.remote
    @guard(state="none", idempotent=True)
    class Guarded:
        pass

    @ray.remote
    @guard
    class Unsaid:
        pass

    assert "max_restarts" not in created_with(Stranger, monkeypatch)
    assert not {"max_restarts", "max_task_retries"} & set(created_with(Unsaid, monkeypatch))
    assert created_with(Guarded, monkeypatch)["max_restarts"] == -1
    assert created_with(Guarded.options(max_restarts=0), monkeypatch)["max_restarts"] == 0
    assert created_with(Guarded.options(num_cpus=0), monkeypatch)["max_task_retries"] == -1


def test_the_hook_is_put_in_once():
    """However many classes are guarded."""
    install()
    hook = ray.actor.ActorClass._remote
    install()
    assert ray.actor.ActorClass._remote is hook


def test_a_ray_without_the_place_to_hook_is_left_alone(monkeypatch, caplog):
    """The class is guarded all the same; only the options stay the user's, and it is said once."""
    actor_creation.CREATION.forget()
    with monkeypatch.context() as patch:
        patch.delattr(ray.actor.ActorClass, "_remote")

        @guard
        class Guarded:
            def work(self):
                return 1

        guard(type("Another", (), {}))
        assert Guarded().work() == 1
        assert "ray.actor.ActorClass._remote" in switched_off()["actor creation"]
    actor_creation.CREATION.forget()
    assert sum("actor creation: off" in line for line in caplog.messages) == 1


def test_a_bug_in_the_hook_does_not_stop_the_creation(monkeypatch):
    """The actor is created with the user's options."""

    def broken(*_):
        raise RuntimeError("a bug in rayguard")

    @ray.remote(num_cpus=0)
    @guard
    class Guarded:
        pass

    monkeypatch.setattr(restart_options, "_prepared", broken)
    assert created_with(Guarded, monkeypatch) == {"num_cpus": 0}


def test_above_ray_the_same_actor_class_comes_back_with_its_options():
    """Whether Ray's class or ours came first makes no difference."""

    @ray.remote(max_restarts=1)
    class Unsaid:
        pass

    assert guard(Unsaid) is Unsaid
    assert Unsaid._default_options == {"max_restarts": 1}

    @ray.remote(max_restarts=1)
    class Above:
        def work(self):
            """Document."""

    plain = Above.__ray_metadata__.modified_class.__ray_actor_class__
    assert guard(state="none", idempotent=False)(Above) is Above
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
