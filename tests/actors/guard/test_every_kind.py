"""Classes of every kind behave as bare, decorated or watched: in a plain process, where nothing fails."""

import dataclasses
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import every_kind
import pytest

from rayguard.actors.guard.guard import guard
from rayguard.actors.methods import is_guarded
from rayguard.cluster.plugin import activation, lazy_watch, pending_calls
from rayguard.cluster.plugin.config import asked

WAYS = ["decorated", "decorated_below", "named", "watched", "watched_late"]
PLAYS = [(name, number) for name, plays in every_kind.PLAYS.items() for number in range(len(plays))]


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """A worker's process that is watched, in which nothing goes on aside; a journal of the test's own."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setattr(lazy_watch, "config", asked({"agent": False, "supervisor": False, "memory": False}))
    monkeypatch.setattr(lazy_watch, "waiting", [])
    monkeypatch.setattr(lazy_watch, "arrived", False)
    monkeypatch.setattr(lazy_watch, "start_loading", lambda **_: None)
    monkeypatch.setattr(pending_calls, "load_guard", lambda: activation)


@pytest.fixture
def copy(monkeypatch):
    """Load a copy of all the classes."""

    def load(name):
        spec = spec_from_file_location(name, Path(every_kind.__file__))
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def below(module, name):
    """Return a subclass without a method of its own: what it inherits is called through ``super``."""
    return type(name, (getattr(module, name),), {"__module__": module.__name__})


def put_under(way, module, name):
    cls = getattr(module, name)
    if way == "decorated_below":
        return guard(below(module, name))
    if way == "decorated":
        return guard(cls)
    if way == "named":
        lazy_watch.config["guard"][f"{module.__name__}:{cls.__qualname__}"] = asked({"guard": ["a:B"]})[
            "guard"
        ]["a:B"]
    lazy_watch.enlist(cls)
    if way == "watched_late":
        activation.arrive()
    return cls


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "number"), PLAYS, ids=[f"{name}-{number}" for name, number in PLAYS])
def test_it_behaves_as_bare(way, name, number, copy):
    """The same answers, the same errors with the same words, the same order of what happens."""
    module = copy(f"{way}_every_kind")
    one = every_kind if way != "decorated_below" else copy("bare_every_kind")
    bare = getattr(one, name) if way != "decorated_below" else below(one, name)
    under = put_under(way, module, name)
    wanted, found = (
        where.tried(where.PLAYS[name][number], cls) for where, cls in ((one, bare), (module, under))
    )
    assert repr(found).replace(module.__name__, one.__name__) == repr(wanted)


@pytest.mark.parametrize("name", every_kind.CALLS)
def test_what_is_called_is_put_under_guard(name, copy):
    """So that these tests test something: a method at least, of each class that has one of its own."""
    cls = put_under("decorated", copy("decorated_every_kind"), name)
    assert any(is_guarded(getattr(cls, one, None)) for one in dir(cls) if not one.startswith("__"))


def test_a_class_that_is_made_anew_after_the_guard_goes_on():
    """``dataclass(slots=True)`` makes another class, and puts what the first one held into it."""

    class Above:
        def inherited(self):
            return self.x + 1

    @dataclasses.dataclass(slots=True)
    @guard
    class Anew(Above):
        x: int = 1

        def own(self):
            return self.x

    one = Anew(4)
    assert (one.own(), one.inherited()) == (4, 5)
    assert is_guarded(Anew.inherited)
