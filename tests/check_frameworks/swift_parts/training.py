"""``swift rlhf``: GRPO of a random model on the CPU, as a command, bare or with rayguard; and what it left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rayguard.frameworks.swift import PLUGIN
from tests.check_frameworks.environments import ROOT

BARE, RUN, BY_PLUGIN = "bare", "rayguard run", "--external_plugins"
STEPS = 4
PROMPTS = ["What is 1 + 1?", "Name a colour.", "Say a word.", "How are you?"]
_RUN_S, _END_S = 600.0, 60.0
_BIN = Path(sys.executable).parent
RAYGUARD, SWIFT = str(_BIN / "rayguard"), str(_BIN / "swift")
TEMPLATE = ("--model_type", "qwen2", "--template", "qwen2_5", "--torch_dtype", "float32", "--use_hf", "true")
_JOB = Path(__file__).parent / "job"
_OWN = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Trained:
    """How a run ended, what it said, what it left: checkpoints and curves of all its launches."""

    code: int
    said: str
    took_s: float
    folder: Path

    @property
    def checkpoints(self):
        """Return those of all launches, the newest last."""
        found = self.folder.glob("v*/checkpoint-*")
        return sorted(found, key=lambda one: (one.parent.name, int(one.name.partition("-")[2])))

    def weights(self, which=-1):
        """Return a checkpoint's model, as it lies there."""
        return (self.checkpoints[which] / "model.safetensors").read_bytes()

    def curve(self, name="loss"):
        """Return a figure of each step; of a step that was made twice the later one."""
        found = {}
        for file in sorted(self.folder.glob("v*/logging.jsonl")):
            for line in map(json.loads, file.read_text("utf-8").splitlines()):
                if name in line:
                    found[int(str(line["global_step/max_steps"]).partition("/")[0])] = line[name]
        return [found[step] for step in sorted(found)]

    def last_error(self):
        """Return the last line that tells of one."""
        lines = [line for line in self.said.splitlines() if "Error" in line]
        return lines[-1].strip()[:160] if lines else f"it ended with {self.code}"


def environment_of(**more: object) -> dict[str, str]:
    """Return the environment of a process of ms-swift, without a word of rayguard."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAYGUARD")}
    return {**kept, **_OWN, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in more.items()}}


def built(folder: Path) -> Path:
    """Make a model and its data; return the folder of the model."""
    from rayguard.testing.tiny_qwen import build

    rows = [{"messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS * 8]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return build(folder / "model", 0, texts=PROMPTS, spread=0.05)


def trained(
    folder: Path,
    how: str,
    *more: str,
    name: str = "",
    within_s: float = _RUN_S,
    **environment: object,
):
    """Train the model in ``folder``, and return what came of it.

    Args:
        folder: Where ``built`` has made a model.
        how: ``BARE``, ``RUN`` or ``BY_PLUGIN``.
        more: Further options of ``swift rlhf``.
        name: Of the folder for what it makes; a run with the same one goes on there.
        within_s: It is ended then.
        environment: Further variables.
    """
    out = folder / (name or how.strip("-").replace(" ", "-"))
    plugins = [str(_JOB / "check_plugin.py"), *([PLUGIN] if how == BY_PLUGIN else [])]
    words = [
        SWIFT, "rlhf", "--rlhf_type", "grpo", "--model", str(folder / "model"), *TEMPLATE, "--check_model", "false",
        "--dataset", str(folder / "data.jsonl"), "--split_dataset_ratio", "0", "--dataset_num_proc", "1",
        "--load_from_cache_file", "false", "--dataloader_num_workers", "0", "--tuner_type", "full",
        "--external_plugins", *plugins, "--callbacks", "faults", *(["rayguard"] if how == BY_PLUGIN else []),
        "--reward_funcs", "varied", "--num_generations", "2", "--per_device_train_batch_size", "4",
        "--gradient_accumulation_steps", "1", "--max_completion_length", "8", "--max_steps", str(STEPS),
        "--save_steps", "1", "--logging_steps", "1", "--learning_rate", "1e-3", "--gradient_checkpointing", "false",
        "--report_to", "none", "--seed", "0", "--output_dir", str(out), *more,
    ]  # fmt: skip
    if how == RUN:
        words = [RAYGUARD, "run", "--", *words]
    began = time.monotonic()
    own = environment_of(RAYGUARD_HOME=folder / "home", **environment)
    process = subprocess.Popen(
        words, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        said = _ended(process) + f"\nTimeoutError: no end in {within_s:.0f} s"
    out.with_suffix(".log").write_text(said, "utf-8")
    return Trained(process.returncode, said, round(time.monotonic() - began, 1), out)


def _ended(process):
    """End a run that hangs; return what it has said."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=_END_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]
