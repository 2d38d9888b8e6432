"""Versions that differ over the nodes of a cluster: told with who has which; what is not known says nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import types

import pytest

import rayguard
from rayguard.errors import ConfigError
from rayguard.preflight_checks import node_versions, versions
from rayguard.preflight_checks.versions import ClusterVersions, NodeVersions

SAME = {
    "Python": "3.12.3",
    "Ray": "2.60.0",
    "torch": "2.13.0+cu128",
    "CUDA": "12.8",
    "NCCL": "2.27.3",
    "vLLM": "0.32.0",
}


def node(name, gpus=8.0, **changed):
    return NodeVersions(node=name, gpus=gpus, versions={**SAME, **changed})


def told(*nodes, **more):
    return [(one.id, one.level.value) for one in versions.check(ClusterVersions(nodes=nodes, **more))]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"NCCL": "2.21.5"}, [("versions.nccl", "error")]),
        ({"Python": "3.12.4"}, [("versions.python", "error")]),
        ({"Ray": "2.59.0"}, [("versions.ray", "error")]),
        ({"torch": "2.12.0+cu128"}, [("versions.torch", "warning")]),
        ({"CUDA": "12.6"}, [("versions.cuda", "warning")]),
        ({"vLLM": "0.31.0"}, [("versions.vllm", "warning")]),
        ({"vLLM": ""}, [("versions.no_vllm", "warning")]),
        ({"NCCL": ""}, []),
    ],
)
def test_one_node_that_differs_is_told(changed, expected):
    """By what follows of it."""
    assert told(node("a"), node("b"), node("c", **changed)) == expected


def test_a_node_without_gpus_may_have_another_torch():
    """A head for the driver alone; among such nodes alone, they are compared."""
    head = node("head", gpus=0.0, torch="2.13.0+cpu", CUDA="", NCCL="", vLLM="")
    assert told(head, node("a"), node("b")) == []
    assert told(head, node("c", gpus=0.0, torch="2.13.0+cpu", CUDA="", NCCL="", vLLM="")) == []
    assert told(head, node("c", gpus=0.0, torch="2.1.0", CUDA="", NCCL="", vLLM="")) == [
        ("versions.torch", "warning")
    ]
    assert told(head, node("a", Ray="2.1.0")) == [("versions.ray", "error")]


def test_the_sentence_names_nodes_and_what_most_have():
    """Four by name, the rest by number."""
    many = [node(f"gpu-{n}") for n in range(6)]
    (one,) = versions.check(ClusterVersions(nodes=(*many, node("gpu-9", NCCL="2.21.5"))))
    assert "2.27.3 on gpu-0, gpu-1, gpu-2, gpu-3 and 2 more nodes, 2.21.5 on gpu-9" in one.message
    assert "Install 2.27.3 everywhere" in one.message
    assert told(node("a"), silent=("b",)) == [("versions.silent_nodes", "warning")]
    assert told(failed="nobody there") == [("versions.no_cluster", "warning")]
    assert told() == []


def test_the_task_tells_the_versions_of_this_environment_and_loads_nothing():
    """It travels as code: a node needs no rayguard."""
    code = (
        "import sys, json; from rayguard.preflight_checks.node_versions import _task; said = _task()();"
        "print(json.dumps([said, [n for n in ('torch', 'vllm', 'ray') if n in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, loaded = json.loads(done.stdout)
    assert loaded == []
    assert said["Python"] == "{}.{}.{}".format(*sys.version_info)
    assert said["Ray"][:2] == "2."
    assert said["torch"][:2] == "2."


def test_no_cluster_is_asked_where_none_is_named(monkeypatch):
    """A dashboard's address is none, and `local` means a cluster that is yet to be."""
    asked = []
    monkeypatch.setattr(
        "rayguard.preflight_checks.report.of_cluster",
        lambda address: asked.append(address) or ClusterVersions(),
    )
    monkeypatch.setattr("rayguard.preflight_checks.report.connected_here", lambda: False)
    for value in (None, "", "local", "http://h:8265"):
        if value is None:
            monkeypatch.delenv("RAY_ADDRESS", raising=False)
        else:
            monkeypatch.setenv("RAY_ADDRESS", value)
        rayguard.preflight(prompts=8)
    assert asked == []
    rayguard.preflight(prompts=8, address="auto")
    rayguard.preflight("RAY_ADDRESS=10.0.0.1:6379 python x.py")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    monkeypatch.setattr("rayguard.preflight_checks.report.connected_here", lambda: True)
    rayguard.preflight(prompts=8)
    assert asked == ["auto", "10.0.0.1:6379", None]
    for wrong in ("", 3):
        with pytest.raises(ConfigError, match="address must be that of a Ray cluster"):
            rayguard.preflight(prompts=8, address=wrong)


def test_a_cluster_that_does_not_answer_is_a_warning_in_time(monkeypatch):
    """The process that asks it is ended, and what it said last is told."""
    assert not node_versions.connected_here() or "ray" in sys.modules
    monkeypatch.setattr(node_versions, "_TO_END_S", 0.05)
    assert "did not answer within 0 s" in node_versions.of_cluster("auto", wait_s=0.0).failed
    assert "nothing answers on 127.0.0.1:1 (" in node_versions.of_cluster("127.0.0.1:1").failed
    assert "nothing answers" in node_versions.of_cluster("ray://127.0.0.1:99999").failed

    def run(*_, **__):
        return types.SimpleNamespace(stdout="", stderr="Traceback\nConnectionError: nobody there\n\n")

    monkeypatch.setattr(node_versions.subprocess, "run", run)
    assert node_versions.of_cluster("auto").failed == "auto: ConnectionError: nobody there"
