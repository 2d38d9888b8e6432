"""The five published failures under ``rayguard run``: what each is started again with, or stopped with."""

from __future__ import annotations

import sys

SITE = "/opt/env/lib/python3.12/site-packages"
CHUNKED = f"""\
(WorkerDict pid=31) Traceback (most recent call last):
(WorkerDict pid=31)   File "{SITE}/vllm/core/scheduler.py", line 1390, in free_finished_seq_groups
(WorkerDict pid=31)     assert len(self._async_stopped) == 0
(WorkerDict pid=31) AssertionError
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
"""
TWO_THREADS = f"""\
[rank0]: Traceback (most recent call last):
[rank0]:   File "{SITE}/vllm/core/scheduler.py", line 1243, in _schedule_chunked_prefill
[rank0]:     assert len(running_scheduled.prefill_seq_groups) == 0
[rank0]: AssertionError
"""
CHUNKS = """\
ray.exceptions.RayTaskError(AssertionError): ray::main_task() (pid=20, ip=10.0.0.2)
  File "/workspace/EasyR1/verl/protocol.py", line 506, in chunk
AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.
"""
CREEP = """\
  File "/workspace/EasyR1/verl/trainer/main.py", line 121, in <module>
    main()
ray.exceptions.ActorUnavailableError: The actor 71f0 is unavailable: The actor is temporarily unavailable: RpcError: RPC Error message: Connection refused
/opt/env/lib/python3.10/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown
"""
ASSERT = """\
/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.
RuntimeError: CUDA error: device-side assert triggered
"""


def once(text):
    """Fail so in the first life alone."""
    return f"if life == 0:\n    fail({text!r})"


def test_easyr1_goes_on_without_chunked_prefill(stage):
    """With the override in its own spelling, once, in place of what stood there."""
    ran = stage.easyr1("worker.rollout.enable_chunked_prefill=true", story=once(CHUNKED))
    assert ran.returncode == 0, ran.stderr.decode()
    first, second = (life["words"] for life in stage.lives())
    assert "worker.rollout.enable_chunked_prefill=true" in first
    assert [word for word in second if "chunked" in word] == ["worker.rollout.enable_chunked_prefill=false"]
    assert [one.outcome.value for one in stage.incidents()] == ["recovered"]
    assert stage.incidents()[0].remedy == "relaunch+chunked_prefill_off"
    assert b"1 restart" in ran.stderr


def test_easyr1_s_batch_is_corrected_for_the_ranks_that_the_failure_names(stage):
    """Nobody had told preflight of six GPUs: the text does."""
    ran = stage.easyr1(
        "data.rollout_batch_size=512",
        "trainer.n_gpus_per_node=8",
        options=["--no-preflight"],
        story=once(CHUNKS),
    )
    assert ran.returncode == 0, ran.stderr.decode()
    said = dict(word.partition("=")[::2] for word in stage.lives()[1]["words"])
    assert int(said["data.rollout_batch_size"]) % 6 == 0
    assert int(said["data.rollout_batch_size"]) % int(said["worker.actor.global_batch_size"]) == 0


def test_a_batch_that_cannot_divide_is_never_started(stage):
    """Preflight has the correction spelled out; ``--force`` starts it all the same."""
    words = ("data.rollout_batch_size=512", "trainer.n_gpus_per_node=6")
    ran = stage.easyr1(*words)
    assert ran.returncode == 125
    assert stage.lives() == []
    assert b"write data.rollout_batch_size=528 worker.actor.global_batch_size=264" in ran.stderr
    assert stage.easyr1(*words, options=["--force"]).returncode == 0
    assert len(stage.lives()) == 1


def test_easyr1_s_memory_is_relieved_of_what_is_offloaded(stage):
    """As its published cure has it."""
    ran = stage.easyr1("worker.actor.offload.offload_params=true", story=once(CREEP))
    assert ran.returncode == 0, ran.stderr.decode()
    assert "worker.actor.offload.offload_params=false" in stage.lives()[1]["words"]


def test_ms_swift_goes_on_with_a_server(stage):
    """Two threads of one process stepped one engine: it needs a process of its own."""
    ran = stage.run(
        stage.swift,
        *[
            "rlhf",
            "--rlhf_type",
            "grpo",
            "--use_vllm",
            "true",
            "--vllm_mode",
            "colocate",
            "--async_generate",
            "true",
        ],
        *["--vllm_server_host", "127.0.0.1"],
        options=["--force"],
        story=once(TWO_THREADS),
    )
    assert ran.returncode == 0, ran.stderr.decode()
    words = stage.lives()[1]["words"]
    assert words[words.index("--vllm_mode") + 1] == "server"
    assert words.count("--vllm_mode") == 1


def test_trl_gets_its_launcher(stage):
    """Where two GPUs were visible to one process, and no rank was started for each."""
    stage.script.write_text(f"# import trl\n{stage.script.read_text()}")
    ran = stage.run(
        "CUDA_VISIBLE_DEVICES=0,1",
        sys.executable,
        "train.py",
        *["--use_vllm", "true", "--output_dir", "out"],
        options=["--force"],
        story=once(ASSERT),
    )
    assert ran.returncode == 0, ran.stderr.decode()
    first, second = stage.lives()
    assert first["program"] == "train.py"
    assert second["program"] == "launch.py"
    assert "train.py" in second["words"]
    assert second["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"
