"""Why a command failed: what it outlived is not blamed for what ended it later."""

from __future__ import annotations

import time

import pytest

from rayguard.faults.diagnosis import Kind
from rayguard.logs.files import find
from rayguard.runner.ending import Ending
from rayguard.runner.failure import Circumstances, failure_of

OURS = "rayguard: training: at step 3 gradients are NaN or infinite: model.layers.0.weight (the step is left out)"
SKIPPED = "(WorkerDict pid=7) WARN: rank 0 grad_norm is not finite: nan"
WENT_ON = "{'loss': 0.31, 'grad_norm': 1.25, 'epoch': 0.2}"
RAISED = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise FloatingPointError("gradients are NaN")
FloatingPointError: gradients are NaN"""


@pytest.fixture
def blamed(tmp_path, monkeypatch):
    """Return the diagnosis of a life that printed these lines and ended so."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "journal"))

    def _blamed(ending: int, *lines: str):
        log = tmp_path / "out.log"
        log.write_text("\n".join(lines) + "\n")
        life = Circumstances(
            ending=Ending(ending), began_at=time.time(), pid=99_999_999, last_words=log.read_bytes()
        )
        return failure_of(list(find([str(log)]).files), life)

    return _blamed


@pytest.mark.parametrize("code", [-9, 137, 247])
@pytest.mark.parametrize(
    "said", [OURS, f"[WARNING:rayguard] {OURS}", SKIPPED, "step 3: loss is nan, skipped"]
)
def test_a_kill_is_not_blamed_on_nan_that_was_said_before(blamed, code, said):
    """Also where it struck before the next numbers were printed: nobody is killed by another for NaN."""
    failure = blamed(code, WENT_ON, said)
    assert failure.diagnosis.kind is Kind.ACTOR_DIED
    assert "SIGKILL" in failure.cause
    assert failure.diagnosis.retry_same_settings, "the run would be given up"


@pytest.mark.parametrize("code", [1, -9])
def test_nan_that_was_raised_is_blamed(blamed, code):
    """An exception ends its process, whatever its launcher makes of it."""
    assert blamed(code, WENT_ON, RAISED).diagnosis.kind is Kind.NUMERIC_NAN


def test_an_error_is_not_blamed_on_nan_that_training_outlived(blamed):
    """Numbers of later steps are finite: the error at the end is the cause."""
    failure = blamed(
        1,
        SKIPPED,
        WENT_ON,
        "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.",
    )
    assert failure.diagnosis.signature == "process.killed"


def test_what_was_seen_to_is_no_cause(blamed):
    """Rayguard's own line tells of a fault that was dealt with; what ended the job nobody said."""
    assert blamed(
        1, OURS, "rayguard: engine 0: AssertionError in the scheduler; started again"
    ).diagnosis.kind is (Kind.UNKNOWN)


def test_a_kill_is_blamed_on_what_may_have_brought_it(blamed):
    """A machine that ran out of memory says so, and then somebody is killed."""
    line = "oom-kill:constraint=CONSTRAINT_MEMCG, task=python,pid=99999999,uid=0"
    failure = blamed(
        -9, f"[12345.678901] Memory cgroup out of memory: Killed process 99999999 (python)\n{line}"
    )
    assert failure.diagnosis.kind is Kind.HOST_OOM
