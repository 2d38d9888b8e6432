"""A GRPO run of TRL with rayguard's callback: ``python examples/frameworks/trl_grpo.py [FOLDER]``.

A random model of 100 000 parameters, on any machine, in a minute: it learns to use many different letters.
Started again it goes on from the newest checkpoint that is whole and finite. Needs TRL (``pip install trl``);
nothing is downloaded.
"""

from __future__ import annotations

import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rayguard.dialects.dialect import CheckpointPlace
from rayguard.frameworks.trl import Callback
from rayguard.runner.checkpoint_look import newest_good
from rayguard.testing.tiny_qwen import tiny_model, tiny_tokenizer

PROMPTS = ["What is 1 + 1?", "Name a colour.", "Say a word.", "How are you?"]
LOOK_S = 600.0


def letters(completions: list[str], **_: object) -> list[float]:
    """Reward each answer for its different letters."""
    return [float(len(set(answer))) for answer in completions]


def newest_in(folder: Path) -> str | None:
    """Return the checkpoint to go on from, None where there is none; say what was passed over."""
    place = CheckpointPlace(folder=folder, pattern="checkpoint-*", saves=True, resumes_newest=False)
    found = newest_good(place, deadline_s=LOOK_S)
    for one in found.passed_over:
        print(f"passed over: {one}")
    return str(found.good) if found.good is not None else None


def main(folder: Path) -> None:
    """Train for twenty steps, from wherever the last run came."""
    settings = GRPOConfig(
        output_dir=str(folder),
        max_steps=20,
        save_steps=5,
        logging_steps=5,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=tiny_model(),
        reward_funcs=letters,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 8}),
        processing_class=tiny_tokenizer(PROMPTS),
        callbacks=[Callback()],  # the one line
    )
    trainer.train(resume_from_checkpoint=newest_in(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "run/trl_grpo").absolute())
