"""The earliest cause among many processes, what followed from it, and that nothing upsets it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.faults.catalog import Catalog
from rayguard.faults.counsel import NO_FAILURE
from rayguard.faults.diagnose import UNKNOWN
from rayguard.faults.diagnosis import Kind
from rayguard.logs.report import diagnose_text

CASCADE = """\
(Rollout pid=7) INFO 11-02 10:00:00 [loggers.py:236] Engine 000: Avg prompt throughput: 12.0 tokens/s
(Trainer pid=9) Training Progress:  12%|#   | 12/100
(EngineCore_0 pid=8) ERROR 11-02 10:00:01 [core.py:700] Traceback (most recent call last):
(Trainer pid=9) step:12 - actor/entropy_loss:0.4
(EngineCore_0 pid=8) ERROR 11-02 10:00:01 [core.py:700]   File "/opt/env/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 667, in step
(EngineCore_0 pid=8) ERROR 11-02 10:00:01 [core.py:700]     scheduler_output = self.scheduler.schedule()
(Rollout pid=7) Traceback (most recent call last):
(Rollout pid=7)   File "/opt/env/lib/python3.12/site-packages/vllm/v1/engine/async_llm.py", line 392, in generate
(EngineCore_0 pid=8) ERROR 11-02 10:00:01 [core.py:700]   File "/opt/env/lib/python3.12/site-packages/vllm/v1/core/sched/scheduler.py", line 1407, in schedule
(EngineCore_0 pid=8) ERROR 11-02 10:00:01 [core.py:700]     assert token_budget >= 0
(EngineCore_0 pid=8) ERROR 11-02 10:00:01 [core.py:700] AssertionError
(Rollout pid=7) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
ConnectionRefusedError: [Errno 111] Connection refused
"""


def test_the_earliest_cause_is_named_and_the_rest_are_consequences():
    """Scheduler assertion, dead engine, dead actor, refused connection: interleaved as Ray prints them."""
    found = diagnose_text(CASCADE)
    assert found.diagnosis.kind is Kind.SCHEDULER_ASSERTION
    assert found.evidence[0].line == 11
    assert "assert token_budget >= 0" in found.diagnosis.cause
    assert [one.kind for one in found.consequences] == [
        Kind.ENGINE_DEAD,
        Kind.ACTOR_DIED,
        Kind.ACTOR_UNAVAILABLE,
    ]


TORCHRUN = """\
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  traceback : Traceback (most recent call last):
    File "/home/me/train.py", line 9, in main
      dist.barrier()
    File "/opt/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 5356, in barrier
      work.wait()
  RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:30106

------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  traceback : Traceback (most recent call last):
    File "/home/me/train.py", line 11, in main
      rate = cfg["critic"]["lr"]
  KeyError: 'critic'

============================================================
"""


def test_torchrun_says_itself_which_rank_failed_first():
    """It lists the others before it: what their collectives met is a consequence."""
    found = diagnose_text(TORCHRUN)
    assert found.diagnosis.kind is Kind.USER_CODE
    assert "KeyError: 'critic'" in found.diagnosis.cause
    assert [(one.kind, one.line) for one in found.consequences] == [(Kind.GLOO_ERROR, 11)]
    others_alone = diagnose_text(TORCHRUN.partition("Root Cause")[0])
    assert others_alone.diagnosis.kind is Kind.GLOO_ERROR


def test_two_causes_are_both_named():
    """The first is to be treated first; the answer is less sure of itself."""
    alone = diagnose_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    both = diagnose_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
        "OSError: [Errno 28] No space left on device: '/ckpt/step_4'"
    )
    assert both.diagnosis.kind is alone.diagnosis.kind is Kind.CUDA_OOM
    assert [one.kind for one in both.others] == [Kind.DISK_FULL]
    assert both.diagnosis.confidence < alone.diagnosis.confidence


def test_what_is_not_known_is_said_to_be_unknown_with_the_most_telling_lines():
    """No evidence, no verdict."""
    found = diagnose_text("step 1\nMyOddError: the frobnicator is out of juice\nstep 2")
    assert found.diagnosis.kind is Kind.UNKNOWN
    assert found.diagnosis.confidence == 0.0
    assert [one.line for one in found.evidence] == [2]


@pytest.mark.parametrize("text", ["", "\n\n", "all is well\n" * 50, "[2024-01-01 10:00:00] step 4 done"])
def test_in_a_healthy_text_no_failure_is_seen(text):
    """None is invented, and what was said last is told."""
    found = diagnose_text(text).diagnosis
    assert (found.kind, found.signature) == (Kind.UNKNOWN, NO_FAILURE)
    last = next((line for line in reversed(text.splitlines()) if line), "nothing at all")
    assert last.rpartition("] ")[2] in found.cause


@pytest.mark.parametrize(
    "line",
    [
        "MyOddError: the frobnicator is out of juice",
        "[frob] fatal: the table fell over",
        "bash: frob: command not found",
        "2026-01-01 10:00:00,000 ERROR frob.py:12 -- table 7",
        "worker 7 died at once",
    ],
)
def test_what_tells_of_something_wrong_is_a_failure_though_unknown(line):
    """It is not called healthy, and the line is quoted."""
    found = diagnose_text(f"step 1\n{line}\nstep 2", Catalog(()))
    assert found.diagnosis.signature == UNKNOWN
    assert [one.line for one in found.evidence] == [2]


@pytest.mark.parametrize(
    "line",
    ["errors: 0, failed: 0", "word error rate: 0.041", "retry on failure (timeout=30 s)", "no errors found"],
)
def test_a_word_of_failure_is_no_failure(line):
    """A count of none, a metric, a policy."""
    assert diagnose_text(line, Catalog(())).diagnosis.signature == NO_FAILURE


@given(st.text(st.characters(), max_size=400))
def test_any_text_has_a_verdict(text):
    """Never raises."""
    assert diagnose_text(text).diagnosis.kind in Kind


WORDS = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "/a.py", line 3, in f',
        "    raise ValueError",
        "KeyError: 1",
        "ray::f()",
        "ray.exceptions.RayTaskError(KeyError): ray::f()",
        "(A pid=1) ",
        "\x1b[31m",
        "\r",
        "",
        "CUDA out of memory",
        "  ^^^",
        "During handling of the above exception, another exception occurred:",
        "[rank0]: ",
        "AssertionError",
        "\x00\ud800",
        "│ /a.py:3 in f │",
    ]
)


@given(st.lists(WORDS, max_size=40))
def test_any_order_of_a_tracebacks_lines_has_a_verdict(lines):
    """Cut, doubled, shuffled."""
    found = diagnose_text("\n".join(lines))
    assert 0.0 <= found.diagnosis.confidence <= 1.0
    assert all(1 <= one.line <= len(lines) for one in found.evidence)


@pytest.mark.parametrize(
    "unit",
    [
        "KeyError: 1\n",
        '  File "/a.py", line 3, in f\n',
        "(A pid={n}) x\n",
        "CUDA out of memory " * 20 + "\n",
        "{n}: Traceback\n",
    ],
)
def test_time_grows_with_the_text_and_not_faster(unit):
    """Four times the lines take about four times as long."""

    def spent(count):
        text = "".join(unit.replace("{n}", str(n)) for n in range(count))
        return min(_seconds(text) for _ in range(3))

    spent(50)
    assert spent(4_000) < 8 * spent(1_000) + 0.1


def _seconds(text):
    began = time.process_time()
    diagnose_text(text)
    return time.process_time() - began


def test_a_name_in_source_code_is_not_what_was_raised():
    """Pytest prints the code round the line that raised."""
    found = diagnose_text("""\
    if isinstance(value, ray.exceptions.ObjectLostError):
        worker.dump()
>   raise value
E       ray.exceptions.RuntimeEnvSetupError: Failed to setup runtime environment.
""")
    assert found.diagnosis.kind is Kind.RUNTIME_ENV_FAILED


NAN_SAID = "WARN: rank 0 grad_norm is not finite: nan"


@pytest.mark.parametrize(
    "later",
    [
        "{'loss': 0.31, 'grad_norm': 1.25}",
        "step:4 - actor/pg_loss:-0.02 - actor/grad_norm:1.0",
        "epoch 1 train_loss=0.5",
    ],
)
def test_nan_that_training_outlived_is_no_cause(later):
    """A step that came later printed finite numbers."""
    assert diagnose_text(f"{NAN_SAID}\n{later}\n").diagnosis.signature == NO_FAILURE
    assert diagnose_text(f"{later}\n{NAN_SAID}\n").diagnosis.kind is Kind.NUMERIC_NAN


@pytest.mark.parametrize(
    "later",
    [
        "{'loss': 0.0, 'grad_norm': nan}",
        "{'loss': 0.0}",
        "step 4 loss: nan reward: 0.5",
        "loss is inf",
        "max_grad_norm: 1.0",
        "loss_scale: 2.0",
    ],
)
def test_nan_that_goes_on_is_the_cause(later):
    """0 is printed in place of NaN, and settings are no numbers of a step."""
    assert diagnose_text(f"{NAN_SAID}\n{later}\n").diagnosis.kind is Kind.NUMERIC_NAN


def test_a_raised_nan_is_the_cause_whatever_another_process_prints_later():
    """Of an exception nobody goes on."""
    raised = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\nFloatingPointError: gradients are NaN'
    assert diagnose_text(f"{raised}\nstep 4 loss: 0.5\n").diagnosis.kind is Kind.NUMERIC_NAN
