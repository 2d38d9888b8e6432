"""The examples for frameworks, as a user starts them: each command is read, checked and corrected in its own words."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
BIN = Path(sys.executable).parent
CHUNKED = """\
(WorkerDict pid=31) Traceback (most recent call last):
(WorkerDict pid=31)   File "/opt/env/lib/python3.12/site-packages/vllm/core/scheduler.py", line 1390, in free_finished_seq_groups
(WorkerDict pid=31)     assert len(self._async_stopped) == 0
(WorkerDict pid=31) AssertionError
"""
KILLED = """\
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.
"""
NAMES = sorted(path.name for path in EXAMPLES.glob("*.sh"))
PROGRAMS = {
    "easyr1_grpo.sh": "verl.trainer.main",
    "openrlhf_reinforce.sh": "openrlhf.cli.train_ppo_ray",
    "swift_grpo.sh": "swift",
    "verl_grpo.sh": "verl.trainer.main_ppo",
}


@pytest.fixture
def dry(tmp_path):
    """Return what an example says about a run with this log."""
    (tmp_path / "config.yaml").write_text("trainer:\n  find_last_checkpoint: true\n")

    def _dry(name: str, text: str, *more: str) -> str:
        log = tmp_path / "train.log"
        log.write_text(text)
        around = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OPTIONS": f"--dry-run {log}",
            "CONFIG": "config.yaml",
            "REWARD": "reward.py",
        }
        ran = subprocess.run(
            [EXAMPLES / name, *more],
            cwd=tmp_path,
            env=os.environ | around,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr.decode()
        return ran.stdout.decode()

    return _dry


def test_each_framework_has_an_example():
    """TRL's is a script, which has its line within."""
    assert set(NAMES) == set(PROGRAMS)
    assert (EXAMPLES / "trl_grpo.py").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_a_command_that_is_known(dry, name):
    """After a death it would be started again, with its user's own words last."""
    said = dry(name, KILLED, "--save_steps=7")
    words = shlex.split(said.splitlines()[-1])
    assert PROGRAMS[name] in words, said
    assert words[-1] == "--save_steps=7"
    assert "would start it again" in said


@pytest.mark.parametrize(
    ("name", "corrected"),
    [
        ("easyr1_grpo.sh", "worker.rollout.enable_chunked_prefill=false"),
        ("verl_grpo.sh", "actor_rollout_ref.rollout.enable_chunked_prefill=false"),
    ],
)
def test_an_example_is_corrected_in_its_own_words(dry, name, corrected):
    """As its framework spells the setting."""
    assert dry(name, CHUNKED).splitlines()[-1].endswith(corrected)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_passes_preflight(tmp_path, name):
    """Nothing in it is known to fail: what is checked before each start."""
    (tmp_path / "config.yaml").write_text("trainer:\n  find_last_checkpoint: true\n")
    shown = tmp_path / "rayguard"
    shown.write_text(f'#!/bin/sh\nshift 2\nexec {BIN / "rayguard"} preflight --gpus 8 -- "$@"\n')
    shown.chmod(0o755)
    around = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CONFIG": "config.yaml", "REWARD": "reward.py"}
    ran = subprocess.run(
        ["bash", EXAMPLES / name],
        cwd=tmp_path,
        env=os.environ | around,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout.decode() + ran.stderr.decode()
