"""Versions that must be the same on all nodes of a cluster: Python, Ray, torch, CUDA, NCCL, vLLM.

Asked of the nodes by ``rayguard.preflight_checks.node_versions``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.preflight_checks.finding import PreflightFinding, error, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SHOWN = 4  # nodes by name
_WHY = {
    "Python": "Ray does not let a node with another one in, and what one pickles may not load on another",
    "Ray": "Ray does not let a node with another one in",
    "torch": "ranks of one group must run the same code",
    "CUDA": "ranks of one group must run the same code",
    "NCCL": "ranks with different ones do not find together: they hang, or end with an internal error",
    "vLLM": "engines must give the same answers, and take weights in the same way",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVersions:
    """What is installed on one node; a version that is '' or missing is not known, or not there."""

    node: str  # name or address
    gpus: float = 0.0  # that Ray counts there
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterVersions:
    """What was heard of a cluster: ``failed`` is why nothing was, ``silent`` are nodes without an answer."""

    nodes: tuple[NodeVersions, ...] = ()
    silent: tuple[str, ...] = ()
    failed: str = ""


def check(cluster: ClusterVersions) -> Iterator[PreflightFinding]:
    """Yield versions that differ, and nodes that did not say theirs."""
    if cluster.failed:
        yield warning("versions.no_cluster", f"versions were not compared: {cluster.failed}")
        return
    if cluster.silent:
        yield warning(
            "versions.silent_nodes",
            f"{_named(cluster.silent)} did not say which versions it has: a task on it did not end in time",
        )
    trains = [one for one in cluster.nodes if one.gpus > 0] or list(cluster.nodes)
    for name in ("Python", "Ray"):
        yield from _differs(name, cluster.nodes, error)
    yield from _differs("NCCL", trains, error)
    for name in ("torch", "CUDA", "vLLM"):
        yield from _differs(name, trains, warning)
    yield from _missing(trains)


def _differs(
    name: str, nodes: Sequence[NodeVersions], level: Callable[[str, str], PreflightFinding]
) -> Iterator[PreflightFinding]:
    by_version: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if node.versions.get(name):
            by_version[node.versions[name]].append(node.node)
    if len(by_version) > 1:
        found = sorted(by_version.items(), key=lambda one: (-len(one[1]), one[0]))
        told = ", ".join(f"{version} on {_named(theirs)}" for version, theirs in found)
        yield level(
            f"versions.{name.lower()}",
            f"{name} is not the same on all nodes: {told} ({_WHY[name]}). Install {found[0][0]} everywhere",
        )


def _missing(nodes: Sequence[NodeVersions]) -> Iterator[PreflightFinding]:
    for name in ("torch", "vLLM"):
        without = [one.node for one in nodes if not one.versions.get(name)]
        if without and len(without) < len(nodes):
            yield warning(
                f"versions.no_{name.lower()}",
                f"{name} is installed on other nodes, and not on {_named(without)}: an actor that needs it "
                "fails there",
            )


def _named(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:_SHOWN])
    return shown if len(nodes) <= _SHOWN else f"{shown} and {len(nodes) - _SHOWN} more nodes"
