"""The model and its tokenizer, built on the spot: the demo runs offline. How it learns: ``trainer``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.grpo.text import sentences
from rayguard.testing import tiny_qwen

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = tiny_qwen.VOCABULARY
CONTEXT = 256


def build(folder: Path, seed: int = 0) -> Path:
    """Write model and tokenizer to ``folder`` and return it; the same seed gives the same bytes.

    Its parameters are float32: the trainer's and the engine's logprobs then agree to 1e-6, which proves that
    both hold the same weights; in bfloat16 a difference of 0.01 could hide a stale layer. Its embeddings are
    not tied, so that the bare run can push weights with what vLLM itself offers.
    """
    return tiny_qwen.build(folder, seed, texts=sentences(seed, 2_000), context=CONTEXT)
