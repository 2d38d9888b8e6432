"""Agents asked and replaced, many at once, with a Ray that answers as it is told."""

from types import SimpleNamespace

import pytest
import ray

from rayguard.cluster import actor_names, create_actors
from rayguard.cluster.agent import state_files
from rayguard.cluster.install import installation
from rayguard.home import AGENTS
from rayguard.ray_internals import kv, rows


class Agent:
    """Of a version; one whose ``stop`` hangs is ended as it is."""

    def __init__(self, cluster, name, version):
        self.cluster, self.name, self.version = cluster, name, version

    @property
    def hello(self):
        return SimpleNamespace(remote=lambda: {"version": self.version, "pid": 1})

    @property
    def stop(self):
        return SimpleNamespace(remote=lambda: None)


class Cluster:
    def __init__(self, monkeypatch, versions):
        self.agents = {}
        for node, version in versions.items():
            name = f"{actor_names.AGENT}{node}"
            self.agents[name] = Agent(self, name, version)
        self.timeouts, self.lines = [], {}
        monkeypatch.setattr(ray, "get_actor", self.get_actor)
        monkeypatch.setattr(ray, "get", self.get)
        monkeypatch.setattr(ray, "wait", lambda refs, **_: ([], refs))
        monkeypatch.setattr(ray, "kill", lambda one, **_: self.agents.pop(one.name))
        monkeypatch.setattr(create_actors, "create_agents", self.create)
        monkeypatch.setattr(installation, "actor_names", lambda: list(self.agents))
        monkeypatch.setattr(kv, "keys", lambda prefix: [one for one in self.lines if one.startswith(prefix)])
        monkeypatch.setattr(kv, "put_record", self.lines.__setitem__)

    def get_actor(self, name, namespace):
        if name not in self.agents:
            raise ValueError(f"Failed to look up actor {name}")
        return self.agents[name]

    def get(self, answer, timeout):
        self.timeouts.append(timeout)
        if answer["version"] == "hangs":
            raise ray.exceptions.GetTimeoutError("Get timed out")
        return answer

    def create(self, actor_class, nodes):
        for node in nodes:
            name = f"{actor_names.AGENT}{node}"
            self.agents[name] = Agent(self, name, state_files.version())


def test_one_that_does_not_stop_is_replaced_all_the_same_and_the_others_are_told(monkeypatch):
    """What is wrong with one node keeps nobody from the others."""
    mine = state_files.version()
    Cluster(monkeypatch, {"a": mine, "b": "0.0.1", "c": "hangs", "e": "0.0.1"})
    names = [f"{actor_names.AGENT}{node}" for node in "abcde"]
    found = installation._answered(names)
    assert [one.name for one in found] == names
    assert [(one.version, one.why) for one in found] == [
        (mine, ""),
        (mine, ""),
        ("", "Get timed out"),
        ("", f"Failed to look up actor {names[3]}"),
        (mine, ""),
    ]


def test_many_that_hang_take_no_longer_than_one(monkeypatch):
    """The deadline is that of all of them."""
    cluster = Cluster(monkeypatch, {f"n{n}": "hangs" for n in range(100)})
    clock = iter(range(0, 10_000, 30))
    monkeypatch.setattr(installation, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    installation._answered(list(cluster.agents))
    assert sum(cluster.timeouts) < 200.0


def test_the_lock_lets_an_error_of_its_holder_out(tmp_path, monkeypatch):
    """A fork that fails for want of processes is a ``BlockingIOError`` too."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    with pytest.raises(BlockingIOError, match="of a fork"), installation._only_one() as alone:
        assert alone
        with installation._only_one() as other:
            assert not other
        raise BlockingIOError("of a fork")
    with installation._only_one() as again:
        assert again
    assert (tmp_path / AGENTS).is_dir()


def test_lines_of_the_table_are_fetched_at_once(monkeypatch):
    """A thousand agents that ask for a thousand lines one by one would keep Ray's control process busy."""
    lines = {b"agent:a": b'{"pid": 1}', b"agent:b": b'{"pid": 2}'}
    asked = []

    def fetched(keys, namespace, deadline_s):
        asked.append(keys)
        return {key: lines[key] for key in keys if key != b"agent:b"}  # it went just now

    table = SimpleNamespace(internal_kv_keys=lambda *_: list(lines), internal_kv_multi_get=fetched)
    monkeypatch.setattr(kv, "_client", lambda: table)
    assert kv.records("agent:") == {"a": {"pid": 1}}
    assert asked == [list(lines)]


@pytest.mark.parametrize(
    ("row", "job"),
    [({"job_id": b"\1\0\0\0"}, "01000000"), ({"job_id": b"\xff" * 4}, ""), ({"job_id": b""}, ""), ({}, "")],
)
def test_a_worker_that_no_job_has_taken_belongs_to_none(row, job):
    """Ray writes ff for "none", and an old one nothing."""
    assert rows.somebody(row.get("job_id", b"")) == job
