"""What people reported in public, with the cure that the thread found: kind, scope, and the cure's telling words.

The texts lie beside the project (``../shared/cases/logs``) and are not part of it.
"""

import json
from pathlib import Path

import pytest

from rayguard.faults.counsel import NO_FAILURE
from rayguard.logs.report import diagnose_text

CASES = Path(__file__).parents[3] / "shared" / "cases" / "logs"
# Words of the cure that the advice must have, and words of wrong cures that it must not have.
CURES = {
    "01": (["one event loop", "run_coroutine_threadsafe"], ["plain numbers", "upgrade"]),
    "02": (["one event loop"], ["plain numbers"]),
    "08": (["nothing failed", "no step was made"], ["wandb"]),
    "09": (["RAY_worker_register_timeout_seconds", "local disk"], []),
    "11": (["orphan", "host memory", "kill -9"], ["lower gpu_memory_utilization"]),
    "12": (["orphan", "VLLM::", "ps -eo pid"], ["lower"]),
    "13": (["--ddp_timeout", "gloo", "network and GPUs are not at fault"], []),
    "15": (["same NCCL", "NCCL_SOCKET_IFNAME", "vllm_mode=server"], []),
    "16": (["worker-*-434344.err", "RAY_DEDUP_LOGS=0"], ["above this"]),
    "17": (["MAX_JOBS"], []),
    "18": (["mistake of the framework", "Upgrade", "initialisation"], ["compare the installed versions"]),
    "19": (["detached", "owner", "from the driver"], []),
    "20": (["continue_generation"], []),
    "22": (["adapter_config.json", "mount"], []),
    "23": (["dmesg", "host memory", "swap"], ["look higher"]),
    "25": (["empty_cache", "save_contents", "async_save"], ["micro batch"]),
    "29": (["sleep(level=2)", "reload"], []),
    "30": (["parsing_timeout=None", "timeout_seconds=None", "subprocess"], []),
    "31": (["subprocess"], []),
    "32": (["barrier", "once"], ["compare names"]),
    "34": (["ray.kill", "orphaned core", "ppid 1"], ["lower gpu_memory_utilization"]),
    "36": (["restart the engine", "/health", "progress"], []),
    "37": (["define_metric", "nothing failed"], []),
    "39": (["nothing failed", "counters"], []),
    "40": (
        [
            "gcs_server_rpc_server_thread_num",
            "worker_register_timeout_seconds",
            "gcs_rpc_server_connect_timeout_s",
            "groups",
        ],
        [],
    ),
    "52": (["one thread", "one event loop"], ["suspect binaries"]),
}


@pytest.mark.parametrize("number", CURES)
def test_a_reported_failure_comes_with_its_cure(number):
    """In the words that the thread found."""
    folder = CASES / number
    if not folder.is_dir():
        pytest.skip(f"the reported texts are not here: {folder}")
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    found = diagnose_text((folder / "input.log").read_text(encoding="utf-8")).diagnosis
    right, wrong = CURES[number]
    assert found.kind.value in (expected["kind"], *expected["also_ok"])
    if found.kind.value == expected["kind"] and expected["scope"]:
        assert found.scope.value == expected["scope"]
    if expected["kind"] == "unknown" and not expected["also_ok"]:
        assert found.signature == NO_FAILURE
    assert [words for words in right if words not in found.advice] == []
    assert [words for words in wrong if words in found.advice] == []
