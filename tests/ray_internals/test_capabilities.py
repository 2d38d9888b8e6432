"""Each private name of Ray made to be missing, one at a time: nothing of the user's breaks, and it is said once."""

import asyncio
import importlib
import logging
import os
import pkgutil
import subprocess
import sys
import threading
import types
from types import SimpleNamespace

import pytest
import ray

import rayguard.ray_internals
from rayguard.actors import quarantined_nodes
from rayguard.actors.life import incarnation
from rayguard.cluster.supervisor import gcs_events
from rayguard.cluster.view import survey
from rayguard.errors import CapabilityOffError
from rayguard.harmless import errors, harmless
from rayguard.pool import gcs_watch
from rayguard.ray_internals import (
    capability,
    gcs_connection,
    gcs_tables,
    handshake,
    kv,
    runtime_env_plugin,
    worker,
    worker_startup,
)
from rayguard.ray_internals.capability import Capability, capabilities, switched_off
from rayguard.ray_internals.node_stats import StoreProbe

for _one in pkgutil.iter_modules(rayguard.ray_internals.__path__, "rayguard.ray_internals."):
    importlib.import_module(_one.name)
ALL = {one.name: one for one in capabilities()}
NAMES = [(name, word) for name, one in ALL.items() for word in one.needs]
PARTS = [(name, part) for name, one in ALL.items() for part in one.parts]
NOWHERE = "127.0.0.1:1"
OFF = "nothing, in silence"


@pytest.fixture(autouse=True)
def _afresh():
    """Nothing has been looked up; afterwards all is as it was, what is replaced included."""
    before = {one: dict(vars(one)) for one in capabilities()}
    for one in before:
        one.forget()
    yield
    for one in capabilities():
        if one not in before:
            del capability._all[one.name]
    for one, state in before.items():
        vars(one).update(state)


def miss(monkeypatch, *places):
    """Have these names be where nobody finds them."""
    find = capability.named

    def named(place):
        if place in places:
            raise AttributeError(place)
        return find(place)

    monkeypatch.setattr(capability, "named", named)


def silently(do):
    """Run ``do`` as all of the guard runs: beside a user's call."""
    with harmless("trial"):
        return do()
    return OFF


def heard_by_a_pool():
    return asyncio.run(gcs_watch.listen("here", SimpleNamespace(beyond=lambda _: True)))


def heard_by_a_supervisor():
    line = gcs_events.listen(lambda: gcs_events.GcsLine(NOWHERE, "01000000"), print, print)
    return asyncio.run(asyncio.wait_for(line, 30))


def jobs_of_a_command():
    problems = []
    found = survey._part(problems, "jobs", survey._jobs)
    return found, len(problems)


def hook_of_a_user():
    module = types.ModuleType("hook_of_a_user")
    module.ran = []
    module.function = lambda: module.ran.append(True)
    sys.modules["hook_of_a_user"] = module
    worker_startup.run_users_hook("hook_of_a_user.function")
    with pytest.raises(RuntimeError, match="no_such_hook"):
        worker_startup.run_users_hook("no_such_hook.function")
    return module.ran


def plugin_of_a_node():
    """Ray's own check of plugins, and what the plugin does to a worker."""
    from ray._private.runtime_env.plugin import RuntimeEnvPlugin

    class Does:
        priority = 1

        def modify_context(self, *_):
            raise AssertionError("it is off")

    made = runtime_env_plugin.plugin("trial")(Does)
    found = made(), SimpleNamespace(env_vars={})
    found[0].modify_context([], {}, found[1], None)
    found[0].validate({"trial": 1})
    return issubclass(made, RuntimeEnvPlugin), made.name, made.__name__, found[1].env_vars


# What users of each capability get where it is off; a user's call gets what bare Ray gives.
ANSWERS = {
    "table of names": [
        (kv.connected, False),
        (lambda: incarnation.ActorMemory("a").load(), {}),
        (lambda: incarnation.ActorMemory("a").save({}), False),
        (lambda: incarnation.ActorMemory("a").delete(), None),
        (quarantined_nodes._asked, {}),
        (lambda: silently(lambda: kv.records("agent:")), OFF),
    ],
    "place in Ray": [
        (worker.inside_ray_worker, False),
        (worker.this_actor, None),
        (worker.this_actor_id, ""),
        (lambda: incarnation.Incarnation.current().actor_id, ""),
        (incarnation.PastDeath.before_this, None),
    ],
    "folders of the node": [
        (lambda: incarnation._crash("ab", 1), None),
        (lambda: silently(worker.temp_folder), OFF),
    ],
    "table of actors": [
        (lambda: gcs_tables.actor_row("ab"), None),
        (lambda: gcs_tables.actors_mentioning("ab", ""), []),
        (lambda: silently(gcs_tables.living_actors), OFF),
    ],
    "table of workers": [(lambda: gcs_tables.worker_row("ab"), None)],
    "table of jobs": [(jobs_of_a_command, (None, 1))],
    "draining nodes": [(gcs_tables.draining_nodes, {})],
    "resources of nodes": [(gcs_tables.nodes_in_use, set())],
    "questions to other clusters": [(lambda: gcs_tables.raylet_of(NOWHERE, "a"), None)],
    "statistics of the object store": [
        (lambda: StoreProbe(NOWHERE).read(), None),
        (lambda: StoreProbe(NOWHERE).references(), None),
    ],
    "news of the cluster": [(heard_by_a_supervisor, None)],
    "ends of workers": [(lambda: silently(lambda: gcs_connection.WorkerEnds(NOWHERE)), OFF)],
    "word on actors": [(heard_by_a_pool, None)],
    "first question to a cluster": [
        (lambda: handshake.cluster_versions(NOWHERE, 0.1), ("", "")),
        (lambda: handshake.ping_client_server(NOWHERE, 0.1), None),
    ],
    "token of this machine": [(handshake.take_token, False)],
    "nodes of this machine": [(handshake.a_node_runs_here, True)],
    "a user's setup hook through Ray": [(hook_of_a_user, [True])],
    "watch over actors": [(lambda: worker_startup.see_classes(print), False)],
    "watch over tasks": [(lambda: worker_startup.replace_functions(print), False)],
    "plugin": [(plugin_of_a_node, (True, "trial", "Does", {}))],
}


@pytest.fixture
def in_a_worker(monkeypatch):
    """A process that Ray would take for a worker."""
    monkeypatch.setattr(worker, "connected_ray", lambda: SimpleNamespace(WORKER_MODE=None))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)


def test_all_names_are_there_with_the_ray_that_is_installed():
    """And every self-test passes."""
    not_yet = [name for name, one in ALL.items() if not one.usable()]
    assert switched_off() == {}
    assert set(not_yet) <= {"ended references"}, (
        "the only one whose test needs a connection, as in test_another_ray"
    )
    assert not ray.is_initialized()


@pytest.mark.parametrize(("name", "word"), NAMES)
def test_one_name_that_is_missing_harms_nobody_and_is_said_once(monkeypatch, caplog, in_a_worker, name, word):
    """What asks for it answers as bare Ray would, nothing of Ray's is replaced, one line stands in the log."""
    one = ALL[name]
    places = {place for each in ALL.values() for place in each.needs.values()}
    before = {place: capability.named(place) for place in places}
    counted = errors.total()
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "rayguard"):
        miss(patch, one.needs[word])
        for _ in range(3):
            assert silently(one.found) is OFF
            assert not one.usable()
            assert not one.replace(dict.fromkeys(one.needs, lambda _: pytest.fail("a wrapper was made")))
            for use, answer in ANSWERS.get(name, ()):
                assert use() == answer
    lines = [line.getMessage() for line in caplog.records]
    assert [line for line in lines if line.startswith(f"rayguard's {name}: off")] == [lines[0]]
    moved = one.needs[word].replace(":", ".").strip(".")
    assert f"moved {moved}" in lines[0]
    assert one.without in lines[0]
    assert moved in switched_off()[name]
    assert errors.total() == counted
    assert {place: capability.named(place) for place in places} == before


def test_no_answer_is_of_a_capability_that_is_gone():
    """The table above goes with the names."""
    assert set(ANSWERS) <= set(ALL)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_an_attribute_that_an_object_of_rays_has_lost_turns_it_off(caplog, name, part):
    """Known only once there is such an object; said once as well."""
    one = ALL[name]
    for _ in range(3):
        assert silently(lambda: one.part(object(), part)) is OFF
    assert part in one.why_off
    assert not one.usable()
    assert len(caplog.records) == 1


def test_a_client_that_has_lost_a_method_is_no_table(monkeypatch, caplog):
    """All are looked for before the first is called."""
    client = SimpleNamespace(internal_kv_put=lambda *_: pytest.fail("half of a table was used"))
    monkeypatch.setattr(kv._kv, "_found", {"client": lambda: client})
    for _ in range(3):
        assert not incarnation.ActorMemory("a").save({})
    assert "internal_kv_get" in kv._kv.why_off
    assert len(caplog.records) == 1


# -- the rules themselves, on names of the standard library


def own(**options):
    return Capability(
        "trial", "nothing is tried", {"join": "os.path:join", "split": "os.path:split"}, **options
    )


def test_a_self_test_that_fails_turns_it_off(caplog):
    """The names are there, what they stand for is another thing."""
    tried = []

    def test(found):
        tried.append(found)
        assert found["join"]("a", "b") == "b/a", "the other way round"

    one = own(test=test)
    for _ in range(3):
        with pytest.raises(CapabilityOffError, match="the other way round"):
            one.found()
    assert len(tried) == len(caplog.records) == 1
    assert "its test failed with Ray" in switched_off()["trial"]


def test_a_self_test_may_ask_for_what_it_tests():
    """Nobody hangs, and it is tried once."""
    tried = []
    one = own(test=lambda found: tried.append(found["join"]("a", "b")))
    assert one.usable()
    assert one.usable()
    assert tried == ["a/b"]


@pytest.mark.parametrize(
    ("version", "on"), [((2, 39), False), ((2, 40), True), ((2, 60), True), ((2, 61), False), ((3, 0), False)]
)
def test_what_does_harm_with_another_ray_is_off_there(monkeypatch, version, on):
    """By Ray's minor version, whatever names there are."""
    monkeypatch.setattr(capability, "ray_version", lambda: version)
    one = own(known=((2, 40), (2, 60)), only_known=True)
    assert one.usable() == on
    assert on or f"not tried with Ray {version[0]}.{version[1]}" in one.why_off
    assert own(known=((2, 40), (2, 60))).usable()


def test_a_package_that_is_not_installed_is_no_move_of_rays(monkeypatch):
    """The line in the log says what is to be done."""

    def named(_):
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr(capability, "named", named)
    one = own()
    assert not one.usable()
    assert "moved" not in one.why_off
    assert "No module named 'grpc'" in one.why_off


@pytest.fixture
def rays(monkeypatch):
    """A module as of Ray's, with a class of Python's and one of C's."""
    module = types.ModuleType("module_of_ray")
    module.Own = type("Own", (), {"act": lambda _: "bare"})
    module.Heir = type("Heir", (module.Own,), {})
    module.Foreign = int
    monkeypatch.setitem(sys.modules, "module_of_ray", module)
    return module


def wrapped(act):
    return lambda *args: f"wrapped {act(*args)}"


def test_what_is_replaced_is_replaced_once(rays):
    """However often it is asked for."""
    one = Capability("trial", "", {"act": "module_of_ray:Own.act"})
    assert all(one.replace({"act": wrapped}) for _ in range(1_100))
    assert rays.Own().act() == "wrapped bare"


def test_where_the_second_cannot_be_replaced_the_first_is_put_back(rays, caplog):
    """A class that has become C's takes no attributes; an inherited one is inherited again."""
    needs = {
        "own": "module_of_ray:Own.act",
        "heir": "module_of_ray:Heir.act",
        "c": "module_of_ray:Foreign.bit_length",
    }
    one, before = Capability("trial", "", needs), rays.Own.act
    for _ in range(3):
        assert not one.replace(dict.fromkeys(needs, wrapped))
    assert rays.Own.act is before
    assert "act" not in vars(rays.Heir)
    assert "bit_length" in one.why_off
    assert len(caplog.records) == 1


def test_many_threads_that_ask_first_look_once():
    """As the threads of a worker that begins."""
    tried = []
    gate = threading.Barrier(8)
    one = own(test=lambda _: tried.append(True))

    def ask():
        gate.wait(10)
        one.found()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert tried == [True]


AGENT = """
import logging
import os
from rayguard.ray_internals import capability

find = capability.named
def named(place):
    if place == "ray._private.runtime_env.plugin:RuntimeEnvPlugin":
        raise AttributeError(place)
    return find(place)
capability.named = named

from ray._private.runtime_env.plugin import RuntimeEnvPluginManager
print(*RuntimeEnvPluginManager().plugins)
"""


def test_the_agent_of_a_node_loads_a_plugin_of_another_ray():
    """As the node starts it, which would not start where this raised."""
    setting = {"RAY_RUNTIME_ENV_PLUGINS": '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]'}
    ran = subprocess.run(
        [sys.executable, "-c", AGENT],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **setting},
        check=True,
    )
    assert ran.stdout.split() == ["rayguard"]
    assert ran.stderr.count("rayguard's plugin: off") == 1
