"""A tiny Qwen2 and its tokenizer, built on the spot: no download, about 120 000 parameters.

Built, not fetched, so that the demo runs offline. How it learns: ``trainer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from examples.grpo.text import sentences

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 512
CONTEXT = 256
END = "<|endoftext|>"


def build(folder: Path, seed: int = 0) -> Path:
    """Write model and tokenizer to ``folder`` and return it; the same seed gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    _build_tokenizer(folder, seed)
    _build_model(folder, seed)
    return folder


def _build_model(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,  # so that the bare run can push weights with what vLLM itself offers
        bos_token_id=0,
        eos_token_id=0,
    )
    # float32: the trainer's and the engine's logprobs then agree to 1e-6, which proves that both hold the
    # same weights; in bfloat16 a difference of 0.01 could hide a stale layer.
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)


def _build_tokenizer(folder: Path, seed: int) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(seed, 2_000), trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END).save_pretrained(folder)
