"""Paths under ``guard`` that matched no actor: told at the job's end, once, and an exit waits for nothing."""

import json
import threading
import time
from types import SimpleNamespace

import pytest

from rayguard.cluster.plugin import named_classes, unmatched_paths
from rayguard.ray_internals import gcs_tables, kv, worker
from rayguard.ray_internals.rows import ActorRow

SEEN = {"verl.workers.fsdp_workers:ActorRolloutRefWorker": 3, "verl.main:TaskRunner": 1, "a.b:C": 2, "d:E": 1}


@pytest.fixture
def said(monkeypatch):
    """What was said, and a table of what had been said before."""
    lines, keys = [], set()
    monkeypatch.setattr(
        named_classes, "say", lambda path, cause, _, job_id: lines.append((path, cause, job_id))
    )
    monkeypatch.setattr(kv, "keys", lambda prefix, **_: [key for key in keys if key.startswith(prefix)])
    monkeypatch.setattr(kv, "connected", lambda: True)
    return SimpleNamespace(lines=lines, keys=keys)


def test_a_path_that_matched_nothing_is_told_with_the_classes_that_come_nearest(said):
    """With how many actors there were of each; the module may be what is wrong, or the class."""
    unmatched_paths.tell(["verl.workers:ActorRolloutRefWorker", "a.b:C"], SEEN, "01")
    ((path, cause, job),) = said.lines
    assert (path, job) == ("verl.workers:ActorRolloutRefWorker", "01")
    assert cause.startswith(
        "verl.workers:ActorRolloutRefWorker guarded nothing: no actor of this job was of that class; seen: "
        "verl.workers.fsdp_workers:ActorRolloutRefWorker (3 actors), "
    )
    assert cause.endswith(", and 1 other classes")


@pytest.mark.parametrize(
    ("path", "seen"),
    [("x:Y", {}), ("a.b:C", SEEN), ("__main__:Trainer", {"train:Trainer": 1}), ("told.of:It", SEEN)],
)
def test_nothing_is_told(said, path, seen):
    """No actor at all; a match; one of the driver's own file, of which Ray has the name; told before."""
    said.keys.add("plugin:01:told.of:It is not guarded: the module 'told.of' has no 'It'")
    unmatched_paths.tell([path], seen, "01")
    assert said.lines == []


def test_a_class_of_the_drivers_file_is_known_by_its_name_alone(said):
    """And where there is none of that name, it is told."""
    unmatched_paths.tell(["__main__:Trainer"], {"train:Other": 1}, "01")
    assert len(said.lines) == 1


@pytest.mark.parametrize(
    ("runtime_env", "paths"),
    [
        ({"rayguard": {"guard": ["a:B"]}}, ("a:B",)),
        ({"rayguard": {"guard": {"a:B": {"state": "none"}}}}, ("a:B",)),
        ({"rayguard": {}}, ()),
        ({"rayguard": True}, ()),
        ({"rayguard": False}, ()),
        ({"env_vars": {}}, ()),
    ],
    ids=str,
)
def test_what_a_job_named_stands_in_its_runtime_env(runtime_env, paths):
    """As the driver wrote it."""
    assert unmatched_paths.of_runtime_env(json.dumps(runtime_env)) == paths
    assert unmatched_paths.of_runtime_env("") == ()


@pytest.fixture
def driver(said, monkeypatch):
    """A driver that named one class; what it knows of its job's actors is what the test says."""
    import ray

    ends = []
    monkeypatch.setattr(worker, "before_leaving", ends.append)
    monkeypatch.setattr(unmatched_paths, "_named", ())
    context = SimpleNamespace(get_job_id=lambda: "01")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    unmatched_paths.tell_at_end({"a:Typo": {}})
    (end,) = ends
    return end


def test_the_driver_tells_before_it_lets_go_of_ray(said, driver, monkeypatch):
    """Of its own job's actors, and of none of ours."""
    rows = [
        ActorRow(actor_id="1", class_path="a:Typed"),
        ActorRow(actor_id="2", class_path="a:Typed"),
        ActorRow(actor_id="3", class_path="rayguard.cluster.agent.node_agent:NodeAgent", ours=True),
        ActorRow(actor_id="4"),
    ]
    monkeypatch.setattr(gcs_tables, "job_actors", lambda job_id: rows if job_id == "01" else [])
    driver()
    assert [cause.partition("seen: ")[2] for _, cause, _ in said.lines] == ["a:Typed (2 actors)"]
    driver()
    assert len(said.lines) == 1, "the next job of this process has named none"


def test_an_exit_waits_for_no_one(said, driver, monkeypatch):
    """A control process that hangs, one that is gone, a driver that is not connected any more."""
    monkeypatch.setattr(unmatched_paths, "_MOST_S", 0.2)
    hangs = threading.Event()
    monkeypatch.setattr(gcs_tables, "job_actors", lambda _: hangs.wait(30.0))
    began = time.monotonic()
    driver()
    assert time.monotonic() - began < 5.0
    hangs.set()

    def gone(*_, **__):
        raise RuntimeError("nobody answers")

    monkeypatch.setattr(kv, "keys", gone)
    monkeypatch.setattr(unmatched_paths, "_named", ("a:Typo",))
    driver()
    monkeypatch.setattr(unmatched_paths, "_named", ("a:Typo",))
    monkeypatch.setattr(kv, "connected", lambda: False)
    driver()
    assert said.lines == []


def test_the_last_words_come_before_ray_is_left(monkeypatch):
    """Once, however often it is asked for; and Ray does what it did."""
    import ray._private.worker as ray_worker

    order = []

    def tell():
        order.append("told")

    monkeypatch.setattr(worker, "_before_leaving", {})
    monkeypatch.setattr(ray_worker, "disconnect", lambda *args: order.append(args))
    worker._end.forget()
    try:
        for _ in range(2):
            assert worker.before_leaving(tell)
        ray_worker.disconnect(True)
    finally:
        worker._end.forget()
    assert order == ["told", (True,)]
