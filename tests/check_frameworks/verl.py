"""verl: its real groups of workers, and its real client and balancer of rollouts, on the CPU.

Their workers and servers are small ones of our own: its trainers and its own workers need GPUs. What is run stands
in ``SCRIPTS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.check_frameworks.answers import FrameworkAnswer
from tests.check_frameworks.by_path import fault_of, is_bad, lines_of, problem
from tests.check_frameworks.environments import FrameworkEnvironment

if TYPE_CHECKING:
    from pathlib import Path

VERL = "verl==0.9.1"
SCRIPTS = (
    "tests/frameworks/worker_groups/checks_verl.py",
    "tests/frameworks/verl_rollouts/checks_rollouts.py",
)
_OF_ROLLOUTS = ("orjson", "cachetools", "uvicorn", "fastapi")  # what its rollouts import and it does not name
_RAN = (
    "RayWorkerGroup, create_colocated_worker_cls and spawn with gloo; LLMServerClient, FullyAsyncLLMServerClient, "
    "the load balancer and CheckpointEngineManager; workers and servers are small ones of our own, on the CPU"
)


def environment() -> FrameworkEnvironment:
    """Return what verl's checks need; it asks for an older transformers than vLLM does."""
    return FrameworkEnvironment(
        "verl",
        (VERL, "transferqueue", "torch==2.13.0", "pytest", *_OF_ROLLOUTS),
        ("transformers==5.19.0", "tensordict>=0.8"),
    )


def answered(python: Path) -> FrameworkAnswer:
    """Run the checks with the Python of that environment."""
    return read_lines([line for script in SCRIPTS for line in lines_of(python, script)])


def read_lines(lines: list[dict[str, object]]) -> FrameworkAnswer:
    """Return what the printed lines come to."""
    version = next((str(line["version"]) for line in lines if line.get("version")), "")
    identical = [bool(line["no_fault_identical"]) for line in lines if "no_fault_identical" in line]
    return FrameworkAnswer(
        version,
        _RAN,
        [fault_of(line) for line in lines if "fault" in line],
        bool(identical) and all(identical),
        [problem(line) for line in lines if is_bad(line)],
    )
