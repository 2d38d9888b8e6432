"""``ray.get`` in a process that has groups: others' references are asked for as ever."""

from __future__ import annotations

import pickle
import sys
import weakref
from types import SimpleNamespace

import pytest

from rayguard.frameworks.actor_groups import references, watched_get
from rayguard.frameworks.actor_groups.sent_call import Arguments, SentCall, SentPart
from rayguard.frameworks.worker_groups.calls import Effect
from rayguard.ray_internals import object_refs


class Ref:
    """A reference that comes to a value, or to an error."""

    def __init__(self, name, comes_to):
        self.name, self.comes_to = name, comes_to

    def hex(self):
        return self.name


class Whose:
    """Makes calls again by giving their parts another reference."""

    def __init__(self, again=None):
        self.again, self.told = again, []

    def survived(self, error, failed, until):
        self.told.append((error, [call.name for call, _ in failed], until))
        for call, _ in failed if self.again is not None else []:
            call.times += 1
            call.parts[0].again = self.again
        return self.again is not None

    def over(self, call, *, dropped):
        self.told.append((call.name, dropped))


@pytest.fixture
def get(monkeypatch):
    """One over a Ray that is none."""
    from ray.exceptions import GetTimeoutError

    def bare(refs, *, timeout=None):
        found = [one.comes_to for one in (refs if isinstance(refs, list) else [refs])]
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found if isinstance(refs, list) else found[0]

    small = SimpleNamespace(get=bare, wait=lambda refs, **_: (refs, []))
    monkeypatch.setitem(sys.modules, "ray", small)
    monkeypatch.setitem(sys.modules, "ray.exceptions", SimpleNamespace(GetTimeoutError=GetTimeoutError))
    monkeypatch.setattr(object_refs, "is_reference", lambda value: isinstance(value, Ref))
    monkeypatch.setattr(watched_get, "given", references.Given())
    watched_get.watch()
    watched_get.watch()
    assert small.get.bare is bare
    return small.get


def sent(whose, ref, name="fit"):
    call = SentCall(name, Effect.UPDATE, 1, [SentPart(0, name, Arguments((), {}), ref.hex())], whole=True)
    watched_get.given.add(whose, call, call.parts[0])
    return call


def test_others_are_answered_as_ever(get):
    """Their errors too, and where a group has calls under way."""
    whose = Whose()
    sent(whose, Ref("ours", 1))
    assert get(Ref("other", 5)) == 5
    assert get([Ref("other", 5), Ref("more", 7)]) == [5, 7]
    with pytest.raises(LookupError):
        get(Ref("other", LookupError()))
    assert whose.told == []


def test_a_call_that_came_to_nothing_is_answered_by_what_is_made_again(get):
    """Also when it is asked for a second time; what it is asked for together with stays."""
    whose, ours = Whose(Ref("again", 3)), Ref("ours", OSError("died"))
    call = sent(whose, ours)
    assert get([Ref("other", 5), ours]) == [5, 3]
    assert get(ours) == 3
    assert call.is_answered
    assert [name for name, *_ in whose.told[1:]] == ["fit", "fit"]


def test_one_that_is_not_made_again_fails_as_it_would(get):
    """The very error."""
    whose, error = Whose(), OSError("died")
    sent(whose, Ref("fine", 1), "forward")
    ours = Ref("ours", error)
    sent(whose, ours)
    with pytest.raises(OSError, match="died") as caught:
        get([Ref("fine", 1), ours])
    assert caught.value is error
    assert [calls for _, calls, _ in whose.told] == [["fit"]], "only what has failed"


def test_in_another_process_it_is_that_ones(get, monkeypatch):
    """As a part of a function that is sent there, say."""
    said = pickle.dumps(get)
    monkeypatch.undo()
    import ray

    assert pickle.loads(said) is ray.get


def test_a_group_that_has_gone_is_asked_nothing(get):
    """Its references are Ray's alone; they do not keep it."""
    whose, ours = Whose(Ref("again", 3)), Ref("ours", OSError("died"))
    sent(whose, ours)
    gone = weakref.ref(whose)
    del whose
    assert gone() is None
    with pytest.raises(OSError, match="died"):
        get(ours)
