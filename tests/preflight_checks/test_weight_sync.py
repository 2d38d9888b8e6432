"""Ways to get weights to the engines that cannot work: a GPU twice in an NCCL group, sleep that is ignored or refused."""

from __future__ import annotations

import pytest

import rayguard
from rayguard.dialects.job_settings import JobSettings
from rayguard.preflight_checks import weight_sync
from rayguard.preflight_checks.finding import Level
from rayguard.preflight_checks.machine import MachineFacts

ORLHF = "python3 -m openrlhf.cli.train_ppo_ray"
TRL = "accelerate launch --num_processes 2 train.py --use_vllm"
SIZE = "--vllm_tensor_parallel_size"
WEIGHTS = ("weights.", "engine.", "parallel.", "place.no_launcher")
CASES = [
    # OpenRLHF, old spelling and new
    (
        f"{ORLHF} --colocate_all_models --vllm_num_engines 8 --vllm_sync_backend gloo",
        {"weights.same_gpu": "--vllm_sync_backend nccl"},
    ),
    (f"{ORLHF} --colocate_all_models --vllm_num_engines 8 --vllm_sync_backend nccl", {}),
    (f"{ORLHF} --colocate_all_models --vllm_num_engines 8", {}),
    (f"{ORLHF} --vllm_num_engines 3 --vllm_tensor_parallel_size 3 --vllm_sync_backend gloo", {}),
    (f"{ORLHF} --colocate_all_models --vllm_num_engines 8 --vllm_sync_backend gloo --vllm_sync_with_ray", {}),
    (f"{ORLHF} --colocate_all_models --async_train --vllm_num_engines 3 --vllm_sync_backend gloo", {}),
    (f"{ORLHF} --colocate_all_models --vllm_sync_backend gloo", {}),
    (
        f"ray job submit -- {ORLHF} --train.colocate_all --vllm.num_engines 2 --vllm.tensor_parallel_size 2",
        {"weights.colocated_engines": "--vllm.num_engines 4"},
    ),
    (
        f"{ORLHF} --colocate_all_models --actor_num_gpus_per_node 6 --vllm_num_engines 4 {SIZE} 4",
        {
            "weights.colocated_engines": f"--vllm_num_engines 2 {SIZE} 3",
            "parallel.tensor_over_ranks": f"{SIZE} 3",
        },
    ),
    (
        f"{ORLHF} --colocate_all_models --async_train --vllm_num_engines 4 --vllm_enable_sleep",
        {"engine.sleep_async": "(without --vllm_enable_sleep)"},
    ),
    (
        f"{ORLHF} --vllm_num_engines 4 --vllm_enable_sleep",
        {"engine.sleep_ignored": "(without --vllm_enable_sleep)"},
    ),
    # TRL and ms-swift
    (f"{TRL} --vllm_mode server", {}),
    (f"{TRL} --vllm_mode colocate --vllm_enable_sleep_mode", {}),
    (
        f"{TRL} --vllm_mode server --vllm_enable_sleep_mode",
        {"engine.sleep_ignored": "--vllm_enable_sleep_mode false"},
    ),
    (f"{TRL} --vllm_mode server --use_cpu", {"weights.cpu": ""}),
    (f"CUDA_VISIBLE_DEVICES=-1 {TRL} --vllm_mode server", {"weights.cpu": ""}),
    (f"{TRL} --vllm_mode colocate --use_cpu", {}),
    (
        "NPROC_PER_NODE=2 swift rlhf --use_vllm true --vllm_mode server --sleep_level 1",
        {"engine.sleep_ignored": "--sleep_level 0"},
    ),
    ("NPROC_PER_NODE=2 swift rlhf --use_vllm true --vllm_mode colocate --sleep_level 1", {}),
    # started by Ray, not by a launcher: no false alarm
    ("CUDA_VISIBLE_DEVICES=0,1 python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=2", {}),
    (f"CUDA_VISIBLE_DEVICES=0,1 {ORLHF} --vllm_num_engines 2", {}),
    ("CUDA_VISIBLE_DEVICES=0,1 python -m vllm.entrypoints.openai.api_server --model m", {}),
]


@pytest.mark.parametrize(("command", "expected"), CASES)
def test_a_command_is_told_what_its_first_push_would_fail_of(command, expected):
    """And a clean one hears nothing."""
    report = rayguard.preflight(command, host_bytes=1 << 40)
    assert {one.id: one.write for one in report.findings if one.id.startswith(WEIGHTS)} == expected


def ids(machine=None, **settings):
    return [one.id for one in weight_sync.check(JobSettings(**settings), machine or MachineFacts())]


def test_a_server_on_the_trainers_gpu_is_told():
    """Where both are known, and where there is one GPU."""
    server = {"vllm_mode": "server", "colocated": False}
    assert ids(**server, trainer_devices="0,1", engine_devices="1,2") == ["weights.same_gpu"]
    assert ids(**server, trainer_devices="0,1", engine_devices="1,2", local_server=False) == []
    assert ids(**server, trainer_devices="0,1", engine_devices="2,3") == []
    assert ids(MachineFacts(gpus=1, gpus_here=1), **server, local_server=True) == ["weights.same_gpu"]
    assert ids(MachineFacts(gpus=1, gpus_here=8), **server, local_server=True) == []
    assert ids(MachineFacts(gpus_here=1), **server) == [], "the server may be elsewhere"
    assert ids(weight_sync="nccl", colocated=True) == ["weights.same_gpu"]
    assert ids(weight_sync="nccl") == ids(weight_sync="nccl", colocated=False) == []
    assert ids(weight_sync="ipc", colocated=True) == []
    report = rayguard.preflight(
        f"CUDA_VISIBLE_DEVICES=0,1 {TRL} --vllm_mode server", engine_devices=[0], host_bytes=1 << 40
    )
    assert [one.write for one in report.errors] == ["--vllm_mode colocate"]


@pytest.mark.parametrize(
    ("vllm", "expected"),
    [
        ("0.11.0", ["engine.sleep_segments"]),
        ("0.20.0", ["engine.sleep_segments"]),
        ("0.20.1", []),
        ("0.32.0", []),
        ("", []),
    ],
)
def test_sleep_and_expandable_segments_are_refused_by_old_engines_only(vllm, expected):
    """A vLLM that is not known says nothing."""
    machine = MachineFacts(
        environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:8,expandable_segments:True"},
        installed={"vllm": vllm},
    )
    assert ids(machine, sleep=True, colocated=True) == expected
    assert ids(machine, sleep=False) == []


def test_an_old_openrlhf_may_use_gloo():
    """Its groups are of any backend; a version that is not known counts as a new one."""
    job = {"framework": "OpenRLHF", "colocated": True, "weight_sync": "gloo"}
    assert ids(MachineFacts(installed={"openrlhf": "0.8.5"}), **job) == []
    assert ids(MachineFacts(installed={"openrlhf": "0.9.1"}), **job) == ids(**job) == ["weights.same_gpu"]


def test_sleep_that_does_nothing_is_no_error():
    """The job runs."""
    (one,) = weight_sync.check(JobSettings(sleep=True, colocated=False), MachineFacts())
    assert one.level is Level.WARNING


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--vllm_num_engines two", "--vllm_num_engines must be a whole number"),
        ("--vllm_num_engines 2 --vllm_sync_backend", "--vllm_sync_backend must be text; got True"),
        ("--vllm.num_engines -3", "--vllm.num_engines must be a whole number, 1 or more; got -3"),
    ],
)
def test_what_cannot_be_read_names_the_option(options, words):
    """As it was spelled."""
    with pytest.raises(rayguard.ConfigError, match=words):
        rayguard.preflight(f"{ORLHF} {options}")
