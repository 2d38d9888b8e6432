"""Options that all trainers of transformers share: how often checkpoints are made, which one is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.dialects.options import TRUE
from rayguard.dialects.spelling import KEPT, positive, steps
from rayguard.dialects.values import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RESUME = "resume_from_checkpoint"
CHECKPOINTS = "checkpoint-*[0-9]"  # not those of adapters merged into their model, checkpoint-8-merged
MODEL_ONLY = "it is told to keep no optimizer: nothing goes on from a checkpoint without one"
_USUAL_STEPS = "500"


def saves(texts: Mapping[str, str | None]) -> bool:
    """Say whether checkpoints are made that one can go on from."""
    strategy = texts.get("save_strategy") or "steps"
    often = positive(value_of(texts.get("save_steps") or _USUAL_STEPS))
    return not model_only(texts) and (often if strategy == "steps" else strategy != "no")


def model_only(texts: Mapping[str, str | None]) -> bool:
    """Say whether checkpoints are made without their optimizer."""
    return "save_only_model" in texts and value_of(texts["save_only_model"] or "true") in TRUE


def why_not_saving(texts: Mapping[str, str | None]) -> str:
    """Return why checkpoints are left as they are; '' where they may be made as often as asked."""
    if model_only(texts):
        return MODEL_ONLY
    best = "load_best_model_at_end"
    tied = best in texts and value_of(texts[best] or "true") in TRUE
    return f"--{best} ties checkpoints to evaluations" if tied else ""


def saving_options(texts: Mapping[str, str | None], every: int, folder: Path | None) -> dict[str, object]:
    """Return the options for a checkpoint every ``every`` steps, in ``folder`` (None: in one that is new).

    Raises:
        ConfigError: ``every`` is no number of steps.
    """
    options: dict[str, object] = {"save_strategy": "steps", "save_steps": steps(every)}
    # A limit takes what lies there from before, too.
    fresh = folder is None or not any(folder.glob(CHECKPOINTS))
    if not saves(texts) and "save_total_limit" not in texts and fresh:
        options["save_total_limit"] = KEPT
    return options
