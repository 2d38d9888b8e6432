"""The five published failures that rayguard began with: each is recognised from its log, with its published cure."""

import pytest

from rayguard.logs.report import diagnose_text

SITE = "/opt/env/lib/python3.12/site-packages"
PUBLISHED = {
    "EasyR1: chunked prefill": (
        f"""\
(WorkerDict pid=31) Traceback (most recent call last):
(WorkerDict pid=31)   File "{SITE}/vllm/engine/llm_engine.py", line 1423, in step
(WorkerDict pid=31)     ctx.append_output(outputs=outputs,
(WorkerDict pid=31)   File "{SITE}/vllm/core/scheduler.py", line 1390, in free_finished_seq_groups
(WorkerDict pid=31)     assert len(self._async_stopped) == 0
(WorkerDict pid=31) AssertionError
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
""",
        "scheduler_assertion",
        ["worker.rollout.enable_chunked_prefill=false"],
    ),
    "ms-swift: two threads, one engine": (
        f"""\
[rank0]: Traceback (most recent call last):
[rank0]:   File "{SITE}/vllm/engine/llm_engine.py", line 1352, in step
[rank0]:     ) = self.scheduler[virtual_engine].schedule()
[rank0]:   File "{SITE}/vllm/core/scheduler.py", line 1243, in _schedule_chunked_prefill
[rank0]:     assert len(running_scheduled.prefill_seq_groups) == 0
[rank0]: AssertionError
""",
        "scheduler_assertion",
        ["vllm_mode=server", "after each update"],
    ),
    "EasyR1: sizes that do not divide": (
        """\
ray.exceptions.RayTaskError(AssertionError): ray::main_task() (pid=20, ip=10.0.0.2)
  File "/workspace/EasyR1/verl/protocol.py", line 506, in chunk
AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.
""",
        "batch_indivisible",
        ["504", "pad"],
    ),
    "EasyR1: memory creeps up until step 4": (
        """\
  File "/workspace/EasyR1/verl/trainer/main.py", line 121, in <module>
    main()
ray.exceptions.ActorUnavailableError: The actor 71f0 is unavailable: The actor is temporarily unavailable: RpcError: RPC Error message: Connection refused
/opt/env/lib/python3.10/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown
""",
        "host_oom",
        ["offload", "batch"],
    ),
    "TRL: device-side assert": (
        """\
/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
""",
        "cuda_device_assert",
        ["accelerate launch", "clip"],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_failure_comes_with_its_published_cure(name):
    """From a few lines of the log, as people paste them."""
    text, kind, cure = PUBLISHED[name]
    found = diagnose_text(text).diagnosis
    assert found.kind.value == kind
    for words in cure:
        assert words in found.advice
