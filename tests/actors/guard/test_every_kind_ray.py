"""Classes of every kind answer their callers through real Ray as bare: watched, named and decorated."""

import os
import re
import sys
from pathlib import Path

import every_kind
import pytest

from tests.worker_start import FORKED

pytestmark = pytest.mark.ray

WAYS = ["bare", "watched", "named", "decorated"]
WAIT_S = 120  # for a busy machine: a deadline, no measure
DECORATE = """

import rayguard

for _name in CALLS:
    rayguard.guard(globals()[_name])
"""
ID = re.compile(r"\b[0-9a-f]{32,}\b")
HOW_IT_ENDED = ("no licence", "gone", "exit_code=3", "INTENDED_USER_EXIT", "SYSTEM_ERROR")
OFF = {"runtime_env": {"rayguard": False}}


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A job under the plugin, and one copy of all classes for each way, in modules that workers import."""
    import ray

    modules, source = tmp_path_factory.mktemp("modules"), Path(every_kind.__file__).read_text()
    for way in WAYS:
        (modules / f"{way}_kinds.py").write_text(source + DECORATE * (way == "decorated"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_RUNTIME_ENV_PLUGINS", '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]')
        patch.setenv("RAY_RUNTIME_ENV_HOOK", "rayguard.cluster.driver.prepare")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")]))
        patch.setenv(FORKED, "pydantic")  # nothing of ours: bare is bare, and what loads late loads late
        patch.setattr(sys, "path", [str(modules), *sys.path])
        named = [f"named_kinds:{name}" for name in every_kind.CALLS if name != "MadeInFunction"]
        config = {"guard": named, "agent": False, "supervisor": False}
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"rayguard": config},
        )
        try:
            yield {way: __import__(f"{way}_kinds") for way in WAYS}
        finally:
            ray.shutdown()


def answer(ref):
    """Return what a caller gets, without what differs between two actors of one kind."""
    import ray

    try:
        return ray.get(ref, timeout=WAIT_S)
    except ray.exceptions.RayTaskError as error:
        return type(error.cause).__name__, ID.sub("ID", str(error.cause))
    except ray.exceptions.RayActorError as error:
        words = [word for word in HOW_IT_ENDED if word in str(error)]
        return type(error).__name__, getattr(error, "actor_init_failed", None), words
    except Exception as error:
        return type(error).__name__, ID.sub("ID", str(error))


def through_ray(way, module, name):
    """Return the answers to all calls, in a row; nothing is started before the first is asked for."""
    import ray

    options = {"num_cpus": 0, **(OFF if way in {"bare", "decorated"} else {})}
    actor = ray.remote(**options)(getattr(module, name)).remote()
    for method, *args in module.CALLS[name]:
        yield answer(getattr(actor, method).remote(*args))
    ray.kill(actor)


@pytest.mark.filterwarnings(
    "ignore:Classes should inherit from `BaseModel` before generic classes"
)  # Ray's own
@pytest.mark.parametrize("name", every_kind.CALLS)
def test_callers_get_what_bare_gives(copies, name):
    """The same answers, and errors of the same type that say the same."""
    begun = {way: through_ray(way, module, name) for way, module in copies.items()}
    found = {way: repr(list(answers)).replace(f"{way}_kinds", "kinds") for way, answers in begun.items()}
    assert found == dict.fromkeys(WAYS, found["bare"])
