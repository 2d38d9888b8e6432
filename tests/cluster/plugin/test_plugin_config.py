"""What the plugin can be told, and what it says of what it cannot."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.actors.guard.guard import guard_class
from rayguard.actors.mark import StateRule, mark_of
from rayguard.cluster.plugin import guard_marks
from rayguard.cluster.plugin.config import asked
from rayguard.errors import ConfigError
from rayguard.recovery.memory_policy import MemoryPolicy

WRONG = [
    ({"gaurd": []}, ['"gaurd"', "did you mean 'guard'", "flight_recorder"]),
    ({"zzz": 1}, ['"zzz"', "is not known", "guard, watch, memory"]),
    ({"watch": 1}, ['["watch"]', "boolean"]),
    ({"watch": "yes"}, ['["watch"]', "boolean"]),
    ({"guard": ["pkg.mod.Class"]}, ["'pkg.mod.Class'", "did you mean 'pkg.mod:Class'?"]),
    ({"guard": ["pkg.mod:"]}, ["'pkg.mod:'", '"package.module:Class"']),
    ({"guard": "pkg:Class"}, ['["guard"]', "list of class paths"]),
    ({"guard": [3]}, ['["guard"]', "not 3"]),
    ({"guard": {"a:B": {"max_restart": 1}}}, ['["a:B"]["max_restart"]', "did you mean 'max_restarts'"]),
    ({"guard": {"a:B": {"max_restarts": -2}}}, ['["a:B"]["max_restarts"]', "-1"]),
    ({"guard": {"a:B": {"state": "restorable"}}}, ['["a:B"]["state"]', '"none"']),
    ({"guard": {"a:B": {"state": ["save"]}}}, ['["a:B"]["state"]', "names of two methods"]),
    ({"guard": {"a:B": {"state": ["save", 3]}}}, ['["a:B"]["state"]', "names of two methods"]),
    ({"guard": {"a:B": {"state": True}}}, ['["a:B"]["state"]', "names of two methods"]),
    ({"guard": {"a:B": {"group": "a b"}}}, ['["group"]', "'a b'"]),
    ({"guard": {"a:B": None}}, ['["a:B"]', "mapping"]),
    ({"memory": True}, ['["memory"]', "mapping or False"]),
    ({"memory": {"nod": 1}}, ['["memory"]["nod"]', "did you mean 'node'"]),
    ({"memory": {"node": {"soft": 0.5}}}, ['["memory"]["node"]["hard"]', "missing"]),
    ({"memory": {"process_limit": -1}}, ['["memory"]', "process_limit", "more than 0"]),
    ({"memory": {"node": {"soft": 0.9, "hard": 0.8}}}, ['["memory"]', "soft must be below hard"]),
    ({"metrics_port": 70_000}, ['["metrics_port"]', "65535"]),
    ({"preload": ["torch nn"]}, ['["preload"]', "'torch nn'", "import statement"]),
    ({"preload": "torch"}, ['["preload"]', "list"]),
    ({"home": "here"}, ['["home"]', "'here'"]),
    ([1], ["takes a mapping", "False to switch"]),
    ("on", ["takes a mapping"]),
]


@pytest.mark.parametrize(("given_", "words"), WRONG)
def test_what_cannot_be_is_refused_by_its_name(given_, words):
    """The error names the key, what is allowed, and the nearest key that there is."""
    with pytest.raises(ConfigError) as caught:
        asked(given_)
    for word in ['runtime_env["rayguard"]', *words]:
        assert word in str(caught.value)


def test_each_mistake_has_its_own_sentence():
    """Who corrects a configuration wants to see all that is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        asked({"watch": 1, "gaurd": [], "metrics_port": -1})
    assert str(caught.value).count('runtime_env["rayguard"]') == 3


def test_nothing_said_watches_everything():
    """``{}`` and True are the recommended configuration."""
    assert asked({}) == asked(True)
    assert asked({})["watch"] is True
    assert asked({})["guard"] == {}


@pytest.mark.parametrize("off", [None, False])
def test_it_can_be_switched_off(off):
    """None and False ask for nothing."""
    assert asked(off) is None


def test_a_list_of_classes_is_a_mapping_without_options():
    """Both spellings mean the same."""
    assert asked({"guard": ["a.b:C"]}) == asked({"guard": {"a.b:C": {}}})


options = st.fixed_dictionaries(
    {},
    optional={
        "state": st.none() | st.just("none") | st.just(["save", "load"]) | st.just(("save", "load")),
        "idempotent": st.booleans(),
        "max_restarts": st.none() | st.integers(-1, 9),
        "max_task_retries": st.none() | st.integers(-1, 9),
        "group": st.none() | st.from_regex(r"[a-z][a-z0-9.-]{0,9}", fullmatch=True),
    },
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "guard": st.dictionaries(st.sampled_from(["a:B", "a.b.c:D.E", "__main__:W"]), options),
        "watch": st.booleans(),
        "memory": st.none()
        | st.just(False)
        | st.fixed_dictionaries(
            {}, optional={"process_limit": st.integers(1, 10**12), "horizon_steps": st.just(2)}
        ),
        "flight_recorder": st.booleans(),
        "metrics_port": st.none() | st.integers(0, 65_535),
        "agent": st.booleans(),
        "frameworks": st.booleans(),
        "new_replicas": st.booleans(),
        "preload": st.lists(st.sampled_from(["torch", "torch.nn"])),
    },
)


@given(configs)
def test_what_workers_get_is_plain_json_that_says_the_same(config):
    """A checked configuration survives JSON and a second check; the user's own is left as it is."""
    before = copy.deepcopy(config)
    checked = asked(config)
    assert config == before
    assert json.loads(json.dumps(checked)) == checked
    assert asked(checked) == checked


@given(configs)
def test_watching_never_acts(config):
    """Whatever was asked for, a class that is only watched has no process recycled, and is marked so."""
    mark = guard_marks.watching(asked(config), object())
    assert mark.watching
    assert mark.policy.memory is None or mark.policy.memory.recycle is None


def test_a_named_class_gets_what_was_said_of_it():
    """Options of one class, and the policies of all."""
    config = asked(
        {"guard": {"a:B": {"idempotent": False, "group": "ranks"}}, "memory": {"recycle": "state"}}
    )
    mark = guard_marks.guarding(config, config["guard"]["a:B"])
    assert (mark.idempotent, mark.group, mark.watching) == (False, "ranks", False)
    assert mark.policy.memory == MemoryPolicy(recycle="state")
    named = config["guard"]["a:B"]
    assert guard_marks.guarding(asked({"memory": False}), named).policy.memory is None


class Says:
    """Has a state and can say it."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Renamed:
    """Does so by names of its own."""

    save, load = Says.state_dict, Says.load_state_dict


@pytest.mark.parametrize(
    ("cls", "said", "state", "idempotent"),
    [
        (object, {}, StateRule.UNSAID, None),
        (object, {"idempotent": True}, StateRule.UNSAID, True),
        (object, {"idempotent": False}, StateRule.UNSAID, False),
        (object, {"state": "none"}, StateRule.STATELESS, None),
        (Says, {}, StateRule.RESTORABLE, None),
        (Says, {"state": "none"}, StateRule.STATELESS, None),
        (Renamed, {}, StateRule.UNSAID, None),
        (Renamed, {"state": ("save", "load")}, StateRule.RESTORABLE, None),
    ],
)
def test_a_named_class_is_what_it_shows_or_what_was_said_of_it(cls, said, state, idempotent):
    """As with the decorator; nothing is repeated without a word."""
    config = asked({"guard": {"a:B": said}})
    mark = mark_of(
        guard_class(type("Named", (cls,), {}), guard_marks.guarding(config, config["guard"]["a:B"]))
    )
    assert (mark.state, mark.idempotent) == (state, idempotent)


def test_the_step_of_memory_is_only_where_there_is_such_a_method():
    """Watched classes without the named method are looked at between all calls."""
    config = asked({"memory": {"step": "train"}})
    trainer = type("Trainer", (), {"train": lambda self: None})
    assert guard_marks.watching(config, trainer).policy.memory.step == "train"
    assert guard_marks.watching(config, object()).policy.memory.step is None
